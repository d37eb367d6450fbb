package clusters

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// minimalSize is the size of the claim, in bytes.
const minimalSize = 8 << 20

// TestMinimalDriver has a cluster of two nodes run the smallest driver of driverkit, without a flag: a volume is a tmpfs that outlives the driver
// and the pod, and nothing is left of it in the end.
func TestMinimalDriver(t *testing.T) {
	dev(t)
	program := filepath.Join(t.TempDir(), "minimal")
	testbed.Build(t, program, "examples/minimal", ".")
	s := &story{newCluster(t, 2, "--driver="+program).NewScene(t)}
	claim := testbed.Claim(s.Namespace, "data", s.Driver) // the default class has the name of the driver
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(minimalSize, resource.BinarySI)
	s.AddClaim(claim)

	s.CreatePod("writer", testbed.FromClaim("data"))
	writer := s.WaitRunning("writer")
	node, file := writer.Spec.NodeName, s.minimalVolume(writer)
	if err := os.WriteFile(file, []byte("of the writer"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.killAndWait("driver." + node)
	s.hasText(file)
	s.DeletePod("writer")
	s.WaitNoPod("writer")

	s.CreatePod("reader", testbed.FromClaim("data"))
	reader := s.WaitRunning("reader")
	if reader.Spec.NodeName != node {
		t.Errorf("the volume is in the memory of %s, and its pod on %s", node, reader.Spec.NodeName)
	}
	s.hasText(s.minimalVolume(reader))
	s.DeletePod("reader")
	s.WaitNoPod("reader")
	s.DeleteClaim("data")
	s.WaitNothingLeft() // no object, mount or record
	s.Wait("the driver to have no directory of a volume", func(context.Context) (bool, error) {
		left, err := filepath.Glob(filepath.Join(s.Dev.StateDir, "*", "*", "[^.]*"))
		if len(left) > 0 {
			err = fmt.Errorf("left: %q", left)
		}
		return err == nil, err
	})
}

// minimalVolume checks the file system that a pod has as its volume, and returns the path of a file in it.
func (s *story) minimalVolume(pod *corev1.Pod) (file string) {
	s.T.Helper()
	target := s.Dev.Target(pod.Spec.NodeName, string(pod.UID), s.Volume("data").Name)
	var fs unix.Statfs_t
	if err := unix.Statfs(target, &fs); err != nil {
		s.T.Fatal(err)
	}
	if size := int64(fs.Blocks) * fs.Bsize; fs.Type != unix.TMPFS_MAGIC || size != minimalSize { //nolint:gosec // a few pages
		s.T.Errorf("pod %s has a file system of type %#x with %d bytes, want a tmpfs with %d", pod.Name, fs.Type, size, minimalSize)
	}
	return filepath.Join(target, "file")
}

// hasText checks that a file has what the first pod wrote.
func (s *story) hasText(file string) {
	s.T.Helper()
	if text, err := os.ReadFile(file); err != nil || string(text) != "of the writer" {
		s.T.Errorf("%s has %q, %v", file, text, err)
	}
}

// killAndWait kills a process, and waits until it is ready again.
func (s *story) killAndWait(process string) {
	s.T.Helper()
	before := 0
	look := func(ctx context.Context) (devcluster.Process, error) {
		status, err := s.Dev.Client.Status(ctx, 0)
		if err != nil {
			return devcluster.Process{}, err
		}
		i := slices.IndexFunc(status.Processes, func(p devcluster.Process) bool { return p.Name == process })
		if i < 0 {
			return devcluster.Process{}, errors.New("there is no such process")
		}
		return status.Processes[i], nil
	}
	s.Retry("look at "+process, func(ctx context.Context) error {
		p, err := look(ctx)
		before = p.Restarts
		return err
	})
	s.Signal(process, "KILL")
	s.Wait(process+" to be ready again", func(ctx context.Context) (bool, error) {
		p, err := look(ctx)
		return p.Restarts > before && p.State == devcluster.ProcessReady, err
	})
}
