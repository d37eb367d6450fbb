package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/longshore-csi/longshore/devcluster"
)

// nodes of the cluster that the tests make for themselves.
const nodes = 3

// bed is the cluster of all tests in this package: a cluster takes longer to start than most tests run.
var bed *Bed

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	if os.Getenv(kubeconfigEnv) == "" && os.Geteuid() != 0 {
		fmt.Println("skipped all of e2e: needs root for mounts, or another cluster named by", kubeconfigEnv)
		return 0
	}
	// The components that tests start run as in a pod of this namespace.
	if err := os.Setenv("POD_NAMESPACE", devcluster.Namespace); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	size, flags, many := nodes, []string(nil), false
	if n, more := bedOfManyNodes(); n > 0 {
		size, flags, many = n, more, true
	}
	b, end, err := Up(context.Background(), size, flags...)
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
	if many { // without an audit log
		return nothing(b)
	}
	return max(calls(b.Dev), nothing(b))
}

// nothing sees that the tests together have left nothing: those that play at the same time each look after their own.
func nothing(b *Bed) (code int) {
	var left []string
	err := poll(context.Background(), func(ctx context.Context) (done bool, err error) {
		now, err1 := b.remains(ctx, "")
		snapshots, err2 := b.snapshotsIn(ctx, "")
		now, err = append(now, snapshots...), errors.Join(err1, err2)
		if err == nil {
			left = now
		}
		return len(now) == 0, err
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "left by all tests: %q, %v\n", left, err)
		return 1
	}
	return 0
}

// calls looks at what all tests together made the components ask of the API server.
func calls(d *Dev) (code int) {
	if d == nil {
		return 0
	}
	more, err := d.notGranted()
	if err != nil || len(more) > 0 {
		fmt.Fprintf(os.Stderr, "calls that no rule of deploy/ allows: %q, %v\n", more, err)
		return 1
	}
	return 0
}

// kubelet skips a test that needs what only Kubernetes' own node agent does.
func kubelet(t *testing.T) {
	t.Helper()
	if bed.Dev != nil {
		t.Skip("needs a kubelet, in a cluster named by " + kubeconfigEnv + ": the node agent of a development cluster starts no containers")
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
func dev(t *testing.T) *Dev {
	t.Helper()
	if bed.Dev == nil {
		t.Skip("needs a development cluster: kills processes and looks at the nodes' disks")
	}
	return bed.Dev
}
