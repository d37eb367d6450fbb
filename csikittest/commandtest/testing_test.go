package commandtest

import (
	"errors"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/csikit/flagset"
)

// options are those of a small component.
type options struct {
	workers int
	driver  string
	ignored flagset.Ignored
}

func newOptions() options { return options{workers: 10, driver: "d"} }

// AddFlags implements flagset.Group.
func (o *options) AddFlags(fs *flag.FlagSet) {
	fs.IntVar(&o.workers, "workers", o.workers, "how many `workers` there are")
	fs.StringVar(&o.driver, "driver", o.driver, "name of the driver")
	o.ignored.AutoMaxProcs(fs)
	o.ignored.Int(fs, "threads", "there are none")
}

// Validate implements flagset.Group.
func (o *options) Validate() error {
	var errs []error
	if o.workers < 1 {
		errs = append(errs, fmt.Errorf("--workers=%d: must be at least 1", o.workers))
	}
	if o.driver == "" {
		errs = append(errs, errors.New(`--driver="": must be set`))
	}
	return errors.Join(errs...)
}

// Warnings implements flagset.Warner.
func (o *options) Warnings() []string { return o.ignored.Warnings() }

// silent are options without warnings.
type silent struct{ n int }

// AddFlags implements flagset.Group.
func (o *silent) AddFlags(fs *flag.FlagSet) { fs.IntVar(&o.n, "n", o.n, "a number") }

// Validate implements flagset.Group.
func (o *silent) Validate() error { return nil }

var (
	_ flagset.Group  = (*options)(nil)
	_ flagset.Group  = (*silent)(nil)
	_ flagset.Warner = (*options)(nil)
)

// recorder is a test whose failures are noted.
type recorder struct {
	testing.TB
	failures []string
}

// Helper implements testing.TB.
func (r *recorder) Helper() {}

// Errorf implements testing.TB.
func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

// Fatalf implements testing.TB: it ends the goroutine.
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// failuresOf runs a test and returns how it fails.
func failuresOf(t *testing.T, test func(t testing.TB)) []string {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(r)
	}()
	<-done
	return r.failures
}

// wantFailures tests that there is one failure for each part, in any order.
func wantFailures(t *testing.T, reason string, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: failures %q, want %d", reason, got, len(want))
	}
	for _, part := range want {
		if !slices.ContainsFunc(got, func(failure string) bool { return strings.Contains(failure, part) }) {
			t.Errorf("%s: failures %q, want one about %q", reason, got, part)
		}
	}
}
