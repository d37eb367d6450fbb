package clusters

import (
	"fmt"
	"testing"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// TestManyNodesInOneProcess: nodes that are one process, with their drivers, run pods with volumes as others do, and leave nothing.
func TestManyNodesInOneProcess(t *testing.T) {
	dev(t)
	cluster := newCluster(t, 5, "--nodes-per-agent=4")
	s := cluster.NewScene(t)
	for i := range 5 {
		name := fmt.Sprint("data-", i)
		s.CreateClaim(name, s.LateClass())
		s.CreatePodOn(fmt.Sprintf("node-%d", i+1), name, testbed.FromClaim(name))
	}
	for i := range 5 {
		s.WaitRunning(fmt.Sprint("data-", i))
	}
	for i := range 5 {
		s.DeletePod(fmt.Sprint("data-", i))
		s.WaitNoPod(fmt.Sprint("data-", i))
		s.DeleteClaim(fmt.Sprint("data-", i))
	}
	s.WaitNothingLeft()
}
