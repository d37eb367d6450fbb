package clusters

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

func TestMain(m *testing.M) {
	flag.Parse()
	ok, err := testbed.Prepare("e2e/clusters")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if !ok {
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// dev skips a test where E2E_KUBECONFIG names a cluster: the tests of this package start development clusters.
func dev(t *testing.T) {
	t.Helper()
	if os.Getenv(testbed.KubeconfigEnv) != "" {
		t.Skip("needs a development cluster: kills processes and looks at the nodes' disks")
	}
}

// newCluster starts a development cluster for a test. When the test has passed, the API server of the cluster must have no volume, attachment or snapshot. What may
// be left on the disks depends on the driver: tests of ours look at them with WaitNothingLeft.
func newCluster(t *testing.T, nodes int, flags ...string) *testbed.Bed {
	t.Helper()
	cluster := testbed.OwnCluster(t, nodes, flags...)
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		if err := cluster.WaitNothingRemainsInAPI(context.Background()); err != nil {
			t.Errorf("the cluster at its end: %v", err)
		}
	})
	return cluster
}

// story is a scene in a cluster of its own.
type story struct{ *testbed.Scene }
