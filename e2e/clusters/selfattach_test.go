package clusters

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// TestSelfAttach: without the attach/detach controller the node agent attaches a volume with csi-attacher, under the name of the seeds, also if the agent is
// killed while the pod runs; nothing is left after the pod.
func TestSelfAttach(t *testing.T) {
	dev(t)
	s := foreignScene(t, "--self-attach=pv")
	node := devcluster.NodeNames(1)[0]
	s.CreateClaim("data", s.LateClass())
	s.CreatePod("first", testbed.FromClaim("data"))
	s.WaitRunning("first")
	pv := s.Volume("data").Name
	sum := sha256.Sum256([]byte(pv + node))
	want := "pv-" + hex.EncodeToString(sum[:])
	list, err := s.Attachments(t.Context(), pv)
	if err != nil || len(list) != 1 || list[0].Name != want || !list[0].Status.Attached {
		t.Fatalf("attachments %+v, %v, want %s alone, attached", list, err, want)
	}
	n, err := s.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if value, ok := n.Annotations["volumes.kubernetes.io/controller-managed-attach-detach"]; ok || len(n.Status.VolumesInUse) != 1 || len(n.Status.VolumesAttached) != 0 {
		t.Errorf("the Node is managed (%q), or volumesInUse %q or volumesAttached %+v are wrong", value, n.Status.VolumesInUse, n.Status.VolumesAttached)
	}
	s.killAgent(node)
	s.DeletePod("first")
	s.WaitNoPod("first")
	s.Wait("the volume to be detached", func(ctx context.Context) (bool, error) {
		list, err := s.Attachments(ctx, pv)
		if err == nil && len(list) > 0 {
			err = fmt.Errorf("attachments %+v", list)
		}
		return err == nil, err
	})
	s.CreatePod("second", testbed.FromClaim("data"))
	s.WaitRunning("second")
	s.DeletePod("second")
	s.DeleteClaim("data")
	s.WaitNothingLeft()
}

// killAgent kills the node agent, which the supervisor starts again.
func (s *story) killAgent(node string) {
	s.T.Helper()
	status, err := s.Dev.Client.Status(s.T.Context(), 0)
	if err != nil {
		s.T.Fatal(err)
	}
	i := slices.IndexFunc(status.Processes, func(p devcluster.Process) bool { return p.Name == "csi-node-agent."+node })
	if err := syscall.Kill(status.Processes[i].PID, syscall.SIGKILL); err != nil {
		s.T.Fatal(err)
	}
}
