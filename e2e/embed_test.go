package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// TestEmbed has examples/embed mount volumes of the hostpath driver without a cluster: they keep what is written when the program is killed, and nothing is left
// when it is terminated.
func TestEmbed(t *testing.T) {
	dev(t)
	dir, err := os.MkdirTemp("/tmp", "embed") // TMPDIR may be a path that is too long for a socket.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	driver, program := filepath.Join(dir, "hostpathplugin"), filepath.Join(dir, "embed")
	testbed.Build(t, driver, "hostpathdriver", "./cmd/hostpathplugin")
	testbed.Build(t, program, "examples/embed", ".")
	socket, root, state := "unix://"+filepath.Join(dir, "csi.sock"), filepath.Join(dir, "root"), filepath.Join(dir, "state")
	startProcess(t, exec.Command(driver, "--endpoint="+socket, "--nodeid=node", "--statedir="+state, "--drivername=hostpath.csi.k8s.io"))
	controller := controllerOf(t, socket)
	ctx, cancel := context.WithTimeout(t.Context(), testbed.Patience)
	defer cancel()
	created, err := controller.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: "data", VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	handle := created.GetVolume().GetVolumeId()
	args := []string{"--driver=hostpath.csi.k8s.io", "--endpoint=" + socket, "--volume=" + handle, "--root=" + root}

	first, mounts := startEmbed(t, exec.Command(program, args...))
	for name, path := range mounts {
		if err := os.WriteFile(filepath.Join(path, "file"), []byte("text in "+name), 0o600); err != nil {
			t.Error(err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(state, "volumes", handle, "file")); err != nil || string(text) != "text in data" {
		t.Errorf("the volume has %q, %v", text, err)
	}
	_ = first.Process.Kill()
	_ = first.Wait()

	second, again := startEmbed(t, exec.Command(program, args...))
	for name, path := range again {
		if text, err := os.ReadFile(filepath.Join(path, "file")); err != nil || path != mounts[name] || string(text) != "text in "+name {
			t.Errorf("after a restart volume %s is at %s, was at %s, with %q, %v", name, path, mounts[name], text, err)
		}
	}
	if err := errors.Join(second.Process.Signal(syscall.SIGTERM), second.Wait()); err != nil {
		t.Errorf("the program ended with %v", err)
	}
	if left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root)); err != nil || len(left) > 0 {
		t.Errorf("left mounted: %v, %v", left, err)
	}
	if _, err := controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: handle}); err != nil {
		t.Errorf("delete the volume, which nobody uses: %v", err)
	}
}

// startProcess starts a program, and returns what kills it. It is killed at the end of the test, when its output is shown if the test has failed.
func startProcess(t *testing.T, cmd *exec.Cmd) (kill func()) {
	t.Helper()
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(func() {
		kill()
		if t.Failed() {
			t.Logf("%s: %s", cmd.Path, &output)
		}
	})
	return kill
}

// startEmbed starts the example, and returns the paths that it prints for its two volumes, by name.
func startEmbed(t *testing.T, cmd *exec.Cmd) (*exec.Cmd, map[string]string) {
	t.Helper()
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	late := time.AfterFunc(testbed.Patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	mounts := map[string]string{}
	for lines := bufio.NewScanner(output); len(mounts) < 2 && lines.Scan(); {
		name, path, _ := strings.Cut(lines.Text(), " ")
		mounts[name] = path
	}
	if mounts["data"] == "" || mounts["scratch"] == "" {
		t.Fatalf("waited for the paths of both volumes, got %v: %v", mounts, cmd.Wait())
	}
	return cmd, mounts
}

// controllerOf connects to a driver.
func controllerOf(t *testing.T, endpoint string) csi.ControllerClient {
	t.Helper()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return csi.NewControllerClient(conn)
}
