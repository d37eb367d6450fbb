package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/longshore-csi/longshore/e2e/testbed"
	"github.com/longshore-csi/longshore/kubeletplugin/kubeletplugintest"
)

// TestKubelet has a kubelet without a cluster mount volumes of our driver, which is killed and started again.
func TestKubelet(t *testing.T) {
	dev(t)
	program := filepath.Join(t.TempDir(), "hostpathplugin")
	testbed.Build(t, program, "hostpathdriver", "./cmd/hostpathplugin")
	for name, parameters := range map[string]map[string]string{"Directories": nil, "Images": {"backend": "image"}} {
		t.Run(name, func(t *testing.T) { runKubelet(t, program, parameters) })
	}
}

// runKubelet runs a hostpath driver, which attaches volumes, and all that happens to them on a node.
func runKubelet(t *testing.T, program string, parameters map[string]string) {
	t.Helper()
	kubeletplugintest.Run(t, func(t *testing.T) kubeletplugintest.Config {
		dir, err := os.MkdirTemp("/tmp", "kt") // TMPDIR may be a path that is too long for a socket.
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		socket := "unix://" + filepath.Join(dir, "csi.sock")
		start := func() (kill func()) {
			return startProcess(t, exec.Command(program, "--drivername=hostpath.csi.k8s.io", "--endpoint="+socket, "--nodeid=node",
				"--statedir="+filepath.Join(dir, "state"), "--enable-attach"))
		}
		kill := start()
		return kubeletplugintest.Config{Endpoint: socket, Parameters: parameters, Inline: map[string]string{}, Restart: func() {
			kill()
			kill = start()
		}}
	})
}
