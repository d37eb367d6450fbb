package clusters

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// TestSnapshotAndRestore takes a snapshot of a volume of the reference driver, makes a volume of it, which has the former content, and deletes
// both: with our csi-snapshotter and snapshot-controller, and with each of them beside the other half of kubernetes-csi.
func TestSnapshotAndRestore(t *testing.T) {
	dev(t)
	cluster := newCluster(t, 1, testbed.WithoutSnapshotPair)
	const upstream = "Upstream"
	for _, pair := range [][2]string{{"Ours", "Ours"}, {"Ours", upstream}, {upstream, "Ours"}} {
		t.Run(pair[0]+"Controller"+pair[1]+"Snapshotter", func(t *testing.T) {
			s := &story{cluster.NewScene(t)}
			start := func(whose, name string, args ...string) {
				args = append([]string{"--kubeconfig=" + cluster.Kubeconfig}, args...)
				if whose == upstream {
					s.runForeign(testbed.UpstreamProgram(t, name), args...)
				} else {
					s.Run(name, args...)
				}
			}
			start(pair[0], "snapshot-controller")
			start(pair[1], "csi-snapshotter", "--csi-address="+s.Dev.Socket())
			s.snapshotAndRestore()
		})
	}
}

// snapshotAndRestore is the life of one snapshot.
func (s *story) snapshotAndRestore() {
	s.T.Helper()
	s.CreateClaim("data", s.ImmediateClass())
	s.WaitBound("data")
	s.CreatePod("pod", testbed.FromClaim("data"))
	file := filepath.Join(s.MountPath("pod", "data"), "file")
	testbed.WriteText(s.T, file, "before")
	s.AddSnapshotClass("")
	taken := s.TakeSnapshot("monday", "data")
	s.WaitSnapshotReady(taken)
	testbed.WriteText(s.T, file, "after")

	s.RestoreSnapshot("copy", "monday")
	s.WaitBound("copy")
	s.CreatePod("reader", testbed.FromClaim("copy"))
	s.CheckText("pod", "data", "after")
	s.CheckText("reader", "copy", "before")

	s.Delete(taken)
	s.WaitNoSnapshots()
	for _, pod := range []string{"pod", "reader"} {
		s.DeletePod(pod)
		s.WaitNoPod(pod)
	}
	s.DeleteClaim("data")
	s.DeleteClaim("copy")
	s.WaitNothingLeft()
}

// runForeign runs a program of others until the test ends.
func (s *story) runForeign(path string, args ...string) {
	s.T.Helper()
	var log bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG=")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() {
		testbed.Kill(cmd)
		if s.T.Failed() {
			s.T.Logf("the log of %s: %s", filepath.Base(path), log.String())
		}
	})
}
