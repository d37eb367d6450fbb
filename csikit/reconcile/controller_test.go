package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

var (
	errBoom     = errors.New("boom")
	errOtherUID = apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "other", "field is immutable")})
	errConflict = apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errBoom)
)

// abortError is the cause of an end that forbids to finish.
type abortError struct{ abort bool }

func (abortError) Error() string { return "abort" }
func (a abortError) Abort() bool { return a.abort }

// diary notes calls with the time since its beginning.
type diary struct {
	mu    sync.Mutex
	began time.Time
	lines []string
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.began.IsZero() {
		d.began = time.Now()
	}
	d.lines = append(d.lines, fmt.Sprintf("%v %s", time.Since(d.began).Round(100*time.Millisecond), fmt.Sprintf(format, args...)))
}

func (d *diary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lines
}

// fixture is a running controller.
type fixture struct {
	*reconcile.Controller[string]
	cancel context.CancelCauseFunc
	done   chan error
	log    *ktesting.BufferTL
}

func (f *fixture) end(t *testing.T, cause error) {
	t.Helper()
	f.cancel(cause)
	if err := <-f.done; err != nil {
		t.Errorf("end of Run: %v", err)
	}
}

func launch(t *testing.T, cfg reconcile.Config[string]) *fixture {
	t.Helper()
	cfg.Name = "test"
	c, err := reconcile.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{Controller: c, done: make(chan error, 1), log: &ktesting.BufferTL{}}
	logger := ktesting.NewLogger(f.log, ktesting.NewConfig(ktesting.Verbosity(2)))
	ctx, cancel := context.WithCancelCause(klog.NewContext(t.Context(), logger))
	f.cancel = cancel
	go func() { f.done <- c.Run(ctx) }()
	return f
}

func TestRetries(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason  string
		results []reconcile.Result
		errs    []error
		want    []string
		logged  int // errors in the log
	}{
		"Success":  {reason: "Once is enough.", errs: []error{nil}, want: []string{"0s a"}},
		"Failures": {reason: "Pauses double up to the maximum, a little lengthened.", errs: []error{errBoom, errBoom, errBoom, errBoom, nil}, want: []string{"0s a", "1s a", "3.3s a", "8s a", "13.3s a"}, logged: 4},
		"OtherUID": {reason: "So are patches for a predecessor of the object.", errs: []error{errOtherUID, nil}, want: []string{"0s a", "100ms a"}},
		"Conflict": {reason: "Conflicts are repeated soon and in silence.", errs: []error{fmt.Errorf("update: %w", errConflict), errConflict, nil}, want: []string{"0s a", "100ms a", "200ms a"}},
		"After":    {reason: "Another look can be asked for, and is no failure.", results: []reconcile.Result{{After: time.Minute}}, errs: []error{nil, nil}, want: []string{"0s a", "1m0s a"}},
		"Reset": {
			reason: "Success forgets failures.", results: []reconcile.Result{{}, {After: time.Minute}}, errs: []error{errBoom, nil, errBoom, nil},
			want: []string{"0s a", "1s a", "1m1s a", "1m2s a"}, logged: 2,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var d diary
				call := 0
				f := launch(t, reconcile.Config[string]{
					Retry: flagset.Retry{Start: time.Second, Max: 5 * time.Second},
					Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
						d.note("%s", key)
						defer func() { call++ }()
						var result reconcile.Result
						if call < len(tc.results) {
							result = tc.results[call]
						}
						return result, tc.errs[min(call, len(tc.errs)-1)]
					},
				})
				f.Add("a")
				time.Sleep(10 * time.Minute)
				f.end(t, nil)
				if diff := cmp.Diff(tc.want, d.read()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
				}
				if got := strings.Count(f.log.String(), "did not succeed"); got != tc.logged {
					t.Errorf("%s: want %d errors in the log, got %d:\n%s", tc.reason, tc.logged, got, f.log)
				}
			})
		})
	}
}

func TestKeysAreNotWorkedOnTwiceAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d diary
		f := launch(t, reconcile.Config[string]{
			Workers: 5,
			Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
				d.note("%s", key)
				time.Sleep(time.Minute)
				return reconcile.Result{}, nil
			},
		})
		for range 3 {
			f.Add("a")
		}
		synctest.Wait()
		f.Add("a") // while it is worked on: once more afterwards
		f.Add("a")
		f.AddAfter("b", 90*time.Second)
		time.Sleep(time.Hour)
		f.end(t, nil)
		if diff := cmp.Diff([]string{"0s a", "1m0s a", "1m30s b"}, d.read()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestWakeMakesTheNextFailureTheFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d diary
		f := launch(t, reconcile.Config[string]{
			Retry: flagset.Retry{Start: time.Second, Max: time.Hour},
			Reconcile: func(context.Context, string) (reconcile.Result, error) {
				d.note("a")
				return reconcile.Result{}, errBoom
			},
			Inputs: func(string) any { return 1 },
		})
		f.Add("a")
		time.Sleep(10 * time.Second) // 0, 1, 3.3, 8
		state := f.State()
		if state.Failing != 1 || len(state.Failures) != 1 {
			t.Fatalf("one key fails, got %+v", state)
		}
		want := reconcile.Failing{Key: "a", Failures: 4, Error: errBoom.Error(), Next: state.Failures[0].Next}
		if diff := cmp.Diff(want, state.Failures[0]); diff != "" || time.Until(want.Next).Truncate(time.Second) != 6*time.Second {
			t.Errorf("it is tried again in %v, want 6s to 7s; (-want +got):\n%s", time.Until(want.Next), diff)
		}
		f.Add("a") // which starts no attempt: its inputs are the same
		f.WakeAfter("a", 2*time.Second)
		if got := f.State().Failing; got != 0 {
			t.Errorf("none does, got %d", got)
		}
		time.Sleep(6 * time.Second)
		f.end(t, nil)
		if diff := cmp.Diff([]string{"0s a", "1s a", "3.3s a", "8s a", "10s a", "11s a", "13.3s a"}, d.read()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

// TestWakeDuringAnAttempt ends the wait of a key while an attempt runs, which may not have seen why: the next one follows at once.
func TestWakeDuringAnAttempt(t *testing.T) {
	t.Parallel()
	for name, wake := range map[string]func(c *reconcile.Controller[string]){
		"Wake":    func(c *reconcile.Controller[string]) { c.Wake("a") },
		"WakeAll": func(c *reconcile.Controller[string]) { c.WakeAll(func() []string { return []string{"a"} }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var d diary
				f := launch(t, reconcile.Config[string]{
					Retry: flagset.Retry{Start: time.Minute, Max: time.Hour}, Inputs: func(string) any { return nil },
					Reconcile: func(context.Context, string) (reconcile.Result, error) {
						d.note("a")
						time.Sleep(4 * time.Second)
						return reconcile.Result{}, errBoom
					},
				})
				f.Add("a")
				time.Sleep(2 * time.Second)
				wake(f.Controller)
				time.Sleep(30 * time.Second)
				f.end(t, nil)
				if diff := cmp.Diff([]string{"0s a", "4s a"}, d.read()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestPauses adds a key each second after its first attempt at 0s, as a watch does that brings back what the attempt wrote.
func TestPauses(t *testing.T) {
	t.Parallel()
	retry := flagset.Retry{Start: 10 * time.Second, Max: 40 * time.Second}
	cases := map[string]struct {
		reason  string
		inputs  func(after time.Duration) any // nil: no Config.Inputs
		attempt func() (reconcile.Result, error)
		wake    time.Duration // when WakeAll is called
		want    []string
	}{
		"Echo": {
			reason: "A key that failed waits, however often it is added.", inputs: func(time.Duration) any { return "same" },
			attempt: func() (reconcile.Result, error) { return reconcile.Result{}, errBoom }, want: []string{"0s", "10s"},
		},
		"Changed": {
			reason: "Other inputs end the wait and the failures.", inputs: func(after time.Duration) any { return after >= 4*time.Second },
			attempt: func() (reconcile.Result, error) { return reconcile.Result{}, errBoom }, want: []string{"0s", "4s", "14s"},
		},
		"ChangedAlways": {
			reason: "A user who may change the inputs gets one attempt in the shortest pause.", inputs: func(after time.Duration) any { return after },
			attempt: func() (reconcile.Result, error) { return reconcile.Result{}, errBoom }, want: []string{"0s", "1s", "11s"},
		},
		"Slow": {
			reason: "An error after which a retry makes no sense has the longest pause.", inputs: func(time.Duration) any { return nil },
			attempt: func() (reconcile.Result, error) { return reconcile.Result{}, reconcile.Slow(errBoom) }, want: []string{"0s"},
		},
		"Another": {
			reason: "So does a key that asked for another look.", inputs: func(time.Duration) any { return nil },
			attempt: func() (reconcile.Result, error) { return reconcile.Result{After: 7 * time.Second}, nil }, want: []string{"0s", "7s", "14s"},
		},
		"Done": {
			reason: "A key that asked for nothing is reconciled each time that it is added.", inputs: func(time.Duration) any { return nil },
			attempt: func() (reconcile.Result, error) { return reconcile.Result{}, nil },
			want:    []string{"0s", "1s", "2s", "3s", "4s", "5s", "6s", "7s", "8s", "9s", "10s", "11s", "12s", "13s", "14s", "15s"},
		},
		"Panics": {
			reason: "Inputs that cannot be had are no other inputs, and end no process.", inputs: func(time.Duration) any { panic("inputs") },
			attempt: func() (reconcile.Result, error) { return reconcile.Result{}, errBoom }, want: []string{"0s", "10s"},
		},
		"NotComparable": {
			reason: "So are those that cannot be compared.", inputs: func(time.Duration) any { return []int{1} },
			attempt: func() (reconcile.Result, error) { return reconcile.Result{}, errBoom }, want: []string{"0s", "10s"},
		},
		"NoInputs": {
			reason: "Without inputs each Add ends the wait.", attempt: func() (reconcile.Result, error) { return reconcile.Result{}, errBoom },
			want: []string{"0s", "1s", "2s", "3s", "4s", "5s", "6s", "7s", "8s", "9s", "10s", "10s", "11s", "12s", "13s", "14s", "15s"},
		},
		"WakeAll": {
			reason: "What comes back ends the wait, and not the failures.", inputs: func(time.Duration) any { return nil }, wake: 3 * time.Second,
			attempt: func() (reconcile.Result, error) { return reconcile.Result{}, errBoom }, want: []string{"0s", "3s"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var got []string
				cfg := reconcile.Config[string]{Retry: retry, Reconcile: func(context.Context, string) (reconcile.Result, error) {
					got = append(got, time.Since(began).Round(time.Second).String())
					return tc.attempt()
				}}
				if tc.inputs != nil {
					cfg.Inputs = func(string) any { return tc.inputs(time.Since(began).Round(time.Second)) }
				}
				f := launch(t, cfg)
				for second := range 16 {
					f.Add("a")
					if tc.wake > 0 && second == int(tc.wake.Seconds()) {
						f.WakeAll(func() []string { return []string{"a"} })
					}
					time.Sleep(time.Second)
				}
				f.end(t, nil)
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
				}
			})
		})
	}
}

func TestPanicIsAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d diary
		f := launch(t, reconcile.Config[string]{Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
			d.note("%s", key)
			if key == "bad" {
				panic("oops")
			}
			return reconcile.Result{}, nil
		}})
		f.Add("bad")
		f.Add("good")
		time.Sleep(1300 * time.Millisecond)
		f.end(t, nil)
		if diff := cmp.Diff([]string{"0s bad", "0s good", "1.1s bad"}, d.read()); diff != "" {
			t.Errorf("others go on (-want +got):\n%s", diff)
		}
		for _, part := range []string{"Reconcile panicked", "oops", "controller_test.go", "panic: oops"} {
			if !strings.Contains(f.log.String(), part) {
				t.Errorf("want %q in the log:\n%s", part, f.log)
			}
		}
	})
}

func TestEnd(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		cause  error
		work   time.Duration
		want   []string
		took   time.Duration
		logged bool
	}{
		"Drain":    {reason: "What runs may finish, what waits is not begun.", work: 10 * time.Second, want: []string{"0s a", "10s done <nil>"}, took: 9 * time.Second},
		"TooLong":  {reason: "But not forever.", work: time.Hour, want: []string{"0s a", "31s done context canceled"}, took: 30 * time.Second, logged: true},
		"Abort":    {reason: "A lost lease ends it at once.", cause: fmt.Errorf("lost: %w", abortError{abort: true}), work: time.Hour, want: []string{"0s a", "1s done context canceled"}},
		"NoAbort":  {reason: "Other causes do not.", cause: abortError{}, work: 10 * time.Second, want: []string{"0s a", "10s done <nil>"}, took: 9 * time.Second},
		"Deadline": {reason: "The deadline of one call ends it, too.", work: 2 * time.Hour, want: []string{"0s a", "31s done context canceled"}, took: 30 * time.Second, logged: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var d diary
				f := launch(t, reconcile.Config[string]{
					Drain: 30 * time.Second, Timeout: 90 * time.Minute,
					Reconcile: func(ctx context.Context, key string) (reconcile.Result, error) {
						d.note("%s", key)
						select {
						case <-time.After(tc.work):
						case <-ctx.Done():
						}
						d.note("done %v", ctx.Err())
						return reconcile.Result{}, ctx.Err()
					},
				})
				f.Add("a")
				f.Add("b") // waits for the only worker
				time.Sleep(time.Second)
				began := time.Now()
				f.end(t, tc.cause)
				if took := time.Since(began); took != tc.took {
					t.Errorf("%s: want Run to return after %v, got %v", tc.reason, tc.took, took)
				}
				if diff := cmp.Diff(tc.want, d.read()); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
				}
				if got := strings.Contains(f.log.String(), "Work is cancelled"); got != tc.logged {
					t.Errorf("%s: logged is %t:\n%s", tc.reason, got, f.log)
				}
			})
		})
	}
}

// What forbids to finish may come when finishing has begun: the lease is lost while the process stops.
func TestAbortWhileWorkEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		abort, log := make(chan struct{}), &ktesting.BufferTL{}
		c, err := reconcile.New(reconcile.Config[string]{Name: "test", Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
			<-ctx.Done()
			return reconcile.Result{}, ctx.Err()
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx := klog.NewContext(reconcile.WithAbort(t.Context(), abort), ktesting.NewLogger(log, ktesting.NewConfig()))
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		time.AfterFunc(4*time.Second, func() { close(abort) })
		c.Add("a")
		began := time.Now()
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("want Run to return when the abort comes, at 4s, got %v", took)
		}
		if got := log.String(); !strings.Contains(got, "was stopped") || strings.Contains(got, "trying again") {
			t.Errorf("there must be no retry after the end, got:\n%s", got)
		}
	})
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d diary
		f := launch(t, reconcile.Config[string]{
			Timeout: 15 * time.Second, Retry: flagset.Retry{Start: time.Hour, Max: time.Hour},
			Reconcile: func(ctx context.Context, _ string) (reconcile.Result, error) {
				d.note("begin")
				<-ctx.Done()
				d.note("%v", ctx.Err())
				return reconcile.Result{}, ctx.Err()
			},
		})
		f.Add("a")
		time.Sleep(time.Minute)
		f.end(t, nil)
		if diff := cmp.Diff([]string{"0s begin", "15s context deadline exceeded"}, d.read()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestQueueAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		release := make(chan struct{})
		f := launch(t, reconcile.Config[string]{
			Registerer: reg, StuckAfter: 2 * time.Minute,
			Reconcile: func(context.Context, string) (reconcile.Result, error) { <-release; return reconcile.Result{}, nil },
		})
		f.Add("busy")
		synctest.Wait()
		f.Add("waiting")
		time.Sleep(time.Minute)
		f.Add("later")
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		want := "# HELP workqueue_oldest_item_age_seconds How long the item waits that has been waiting longest.\n" +
			"# TYPE workqueue_oldest_item_age_seconds gauge\nworkqueue_oldest_item_age_seconds{name=\"test\"} 300\n"
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
		if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
		state := reconcile.State{Name: "test", Waiting: 2, OldestSeconds: 300, Running: map[string]float64{"busy": 300}}
		if diff := cmp.Diff(state, f.State()); diff != "" {
			t.Errorf("state (-want +got):\n%s", diff)
		}
		if got := strings.Count(f.log.String(), "Queue is backed up"); got != 1 {
			t.Errorf("want a log line only when it is older than two minutes, at the fourth check, got %d:\n%s", got, f.log)
		}
		close(release)
		f.end(t, nil)
		if n, err := testutil.GatherAndCount(reg); err != nil || n != 0 {
			t.Errorf("nothing is measured after the end, got %d, %v", n, err)
		}
	})
}

func TestNewReportsEverything(t *testing.T) {
	t.Parallel()
	_, err := reconcile.New(reconcile.Config[string]{
		Workers: -1, Timeout: -1, Drain: -1, StuckAfter: -1, Retry: flagset.Retry{Start: 2, Max: 1},
	})
	for _, part := range []string{"name must", "Reconcile must", "workers -1", "timeout -1ns", "drain -1ns", "stuckAfter -1ns", "--retry-interval-max"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("want %q in %v", part, err)
		}
	}
}

func TestNamesAreUnique(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		cfg := reconcile.Config[string]{Registerer: reg, Reconcile: func(context.Context, string) (reconcile.Result, error) { return reconcile.Result{}, nil }}
		f := launch(t, cfg)
		cfg.Name = "test"
		if _, err := reconcile.New(cfg); err == nil || !strings.Contains(err.Error(), `"test"`) {
			t.Errorf("a second queue of that name is an error, got %v", err)
		}
		synctest.Wait()
		if err := f.Run(t.Context()); err == nil {
			t.Error("a controller runs once")
		}
		f.end(t, nil)
	})
}

// Keys that fail together come back apart, and in every run alike.
func TestPausesAreSpread(t *testing.T) {
	t.Parallel()
	first, second := pauses(t), pauses(t)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("every run is the same (-first +second):\n%s", diff)
	}
	seen := map[time.Duration]bool{}
	for key, pause := range first {
		if pause < 10*time.Second || pause > 12*time.Second {
			t.Errorf("key %s: want a pause of 10s to 12s, got %v", key, pause)
		}
		seen[pause] = true
	}
	if len(seen) < len(first)/2 {
		t.Errorf("want pauses to differ, got %v", first)
	}
}

func pauses(t *testing.T) map[string]time.Duration {
	t.Helper()
	pauses := map[string]time.Duration{}
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		began := time.Now()
		f := launch(t, reconcile.Config[string]{
			Workers: 4, Retry: flagset.Retry{Start: 10 * time.Second, Max: time.Minute},
			Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
				mu.Lock()
				defer mu.Unlock()
				if since := time.Since(began); since > 0 {
					pauses[key] = since
					return reconcile.Result{}, nil
				}
				return reconcile.Result{}, errBoom
			},
		})
		for i := range 20 {
			f.Add(fmt.Sprintf("key-%d", i))
		}
		time.Sleep(time.Minute)
		f.end(t, nil)
	})
	return pauses
}

func TestWorkersStay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		goroutines := map[string]int{}
		f := launch(t, reconcile.Config[string]{Workers: 2, Reconcile: func(context.Context, string) (reconcile.Result, error) {
			id, _, _ := strings.Cut(string(debug.Stack()), " [")
			goroutines[id]++
			return reconcile.Result{}, nil
		}})
		for key := range 10 {
			f.Add(fmt.Sprint(key))
			synctest.Wait()
		}
		f.end(t, nil)
		if len(goroutines) != 1 {
			t.Errorf("keys that come one after the other share a goroutine and its stack, got %v", goroutines)
		}
	})
}
