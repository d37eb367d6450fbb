package bench

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

// nodes is the number of nodes of the cluster that benchmarks share.
const nodes = 3

// bed is the cluster that benchmarks share, but for those that need one of their own.
var bed *testbed.Bed

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	ok, err := testbed.Prepare("e2e/bench")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if !ok {
		return 0
	}
	size, flags, many := nodes, []string(nil), false
	if n, more := bedOfManyNodes(); n > 0 {
		size, flags, many = n, more, true
	}
	b, end, err := testbed.Up(context.Background(), size, flags...)
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
	if err := errors.Join(bed.WaitNothingRemains(context.Background()), checkCalls(many)); err != nil {
		fmt.Fprintln(os.Stderr, "all benchmarks:", err)
		return 1
	}
	return 0
}

// checkCalls returns an error if the components of the cluster have made calls that no rule of deploy/ allows. A cluster of many nodes has no audit log.
func checkCalls(many bool) error {
	if bed.Dev == nil || many {
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
