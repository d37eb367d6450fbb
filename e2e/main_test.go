package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/longshore-csi/longshore/e2e/rights"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// nodes of the cluster that the tests make for themselves.
const nodes = 3

// bed is the cluster of all tests in this package: a cluster takes longer to start than most tests run.
var bed *testbed.Bed

// scene is a scene on the shared cluster.
type scene struct{ *testbed.Scene }

func newScene(t testing.TB) *scene {
	t.Helper()
	return &scene{bed.NewScene(t)}
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	ok, err := testbed.Prepare("e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if !ok {
		return 0
	}
	b, end, err := testbed.Up(context.Background(), nodes)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}()
	bed = b
	if code := m.Run(); code != 0 {
		return code
	}
	if err := errors.Join(bed.WaitNothingRemains(context.Background()), checkCalls()); err != nil {
		fmt.Fprintln(os.Stderr, "all tests:", err)
		return 1
	}
	return 0
}

// checkCalls returns an error if all tests together made the components ask the API server for what no rule of deploy/ allows.
func checkCalls() error {
	if bed.Dev == nil {
		return nil
	}
	more, err := rights.NotGranted(bed.Dev)
	if err != nil {
		return err
	}
	if len(more) > 0 {
		return fmt.Errorf("calls that no rule of deploy/ allows: %q", more)
	}
	return nil
}

// kubelet skips a test that needs what only Kubernetes' own node agent does.
func kubelet(t *testing.T) {
	t.Helper()
	if bed.Dev != nil {
		t.Skip("needs a kubelet, in a cluster named by " + testbed.KubeconfigEnv + ": the node agent of a development cluster starts no containers")
	}
}

// beside lets a test that disturbs nobody play at the same time as others of its kind, after those that may disturb. A kubelet takes its time
// over everything, and all of it is waiting. On a development cluster tests take a second or two, and each looks at all disks: there they
// stay alone.
func beside(t *testing.T) {
	t.Helper()
	if bed.Dev == nil {
		t.Parallel()
	}
}

// dev skips a test that needs to look at processes and disks where it cannot.
func dev(t *testing.T) *testbed.Dev {
	t.Helper()
	if bed.Dev == nil {
		t.Skip("needs a development cluster: kills processes and looks at the nodes' disks")
	}
	return bed.Dev
}
