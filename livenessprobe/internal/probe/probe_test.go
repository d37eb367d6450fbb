package probe

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeDriver answers after a while, as it is told.
type fakeDriver struct {
	mu      sync.Mutex
	takes   time.Duration
	ready   bool
	err     error
	nameErr error
	probes  int
	names   int
}

func (d *fakeDriver) Probe(ctx context.Context) (bool, error) {
	d.mu.Lock()
	d.probes++
	takes, ready, err := d.takes, d.ready, d.err
	d.mu.Unlock()
	select {
	case <-time.After(takes):
		return ready, err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (d *fakeDriver) DriverName(context.Context) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names++
	return "test.csi.example", d.nameErr
}

func (d *fakeDriver) set(change func(*fakeDriver)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

func (d *fakeDriver) asked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.probes
}

func newProber(d Driver, change func(*Config)) (*Prober, *prometheus.Registry) {
	reg := prometheus.NewRegistry()
	cfg := Config{Driver: d, MaxAge: time.Second, Registerer: reg}
	if change != nil {
		change(&cfg)
	}
	return New(cfg), reg
}

func TestCheck(t *testing.T) {
	broken := errors.New("broken")
	cases := map[string]struct {
		reason string
		driver *fakeDriver
		want   error
	}{
		"Ready":    {reason: "a ready driver is healthy", driver: &fakeDriver{ready: true}},
		"NotReady": {reason: "a driver that says it is not ready is not healthy", driver: &fakeDriver{}, want: ErrNotReady},
		"Error":    {reason: "the error of the call is passed on", driver: &fakeDriver{err: broken}, want: broken},
		"NoName": {
			reason: "a driver that is ready but does not tell its name is healthy",
			driver: &fakeDriver{ready: true, nameErr: broken},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p, reg := newProber(tc.driver, nil)
			if err := p.Check(t.Context()); !errors.Is(err, tc.want) {
				t.Errorf("%s: got %v, want %v", tc.reason, err, tc.want)
			}
			want := "1"
			if tc.want != nil {
				want = "0"
			}
			expected := "# HELP csi_liveness_probe_last_result Result of the last Probe call to the CSI driver: 1 for ready, 0 for not ready or no answer.\n" +
				"# TYPE csi_liveness_probe_last_result gauge\ncsi_liveness_probe_last_result " + want + "\n"
			if err := testutil.GatherAndCompare(reg, strings.NewReader(expected), "csi_liveness_probe_last_result"); err != nil {
				t.Errorf("%s: %v", tc.reason, err)
			}
		})
	}
}

func TestManyWhoAskAtOnceAskTheDriverOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDriver{ready: true, takes: 2 * time.Second}
		p, _ := newProber(d, nil)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if err := p.Check(t.Context()); err != nil {
					t.Errorf("Check: %v", err)
				}
			})
		}
		all.Wait()
		if got := d.asked(); got != 1 {
			t.Errorf("the driver was asked %d times, want once", got)
		}
	})
}

func TestAnAnswerIsGoodForMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDriver{ready: true}
		p, _ := newProber(d, nil)
		steps := []struct {
			after time.Duration
			ready bool
			want  error
			asked int
		}{
			{0, true, nil, 1},
			{999 * time.Millisecond, false, nil, 1}, // the old answer
			{time.Millisecond, false, ErrNotReady, 2},
			{500 * time.Millisecond, true, ErrNotReady, 2}, // failures are kept as long
			{500 * time.Millisecond, true, nil, 3},
		}
		for i, s := range steps {
			time.Sleep(s.after)
			d.set(func(d *fakeDriver) { d.ready = s.ready })
			if err := p.Check(t.Context()); !errors.Is(err, s.want) || d.asked() != s.asked {
				t.Errorf("step %d: got %v after %d questions, want %v after %d", i, err, d.asked(), s.want, s.asked)
			}
		}
	})
}

// The first who asks may go away, for instance because a kubelet gives up; the
// others still get the answer.
func TestQuestionOutlivesWhoAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDriver{ready: true, takes: 2 * time.Second}
		p, _ := newProber(d, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var both sync.WaitGroup
		both.Go(func() { _ = p.Check(ctx) })
		synctest.Wait()
		cancel()
		both.Go(func() {
			if err := p.Check(t.Context()); err != nil {
				t.Errorf("the second who asked: %v", err)
			}
		})
		both.Wait()
		if got := d.asked(); got != 1 {
			t.Errorf("the driver was asked %d times, want once", got)
		}
	})
}

func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDriver{}
		p, _ := newProber(d, func(cfg *Config) { cfg.Grace, cfg.MaxAge = time.Minute, 0 })
		if err := p.Check(t.Context()); err != nil {
			t.Errorf("within the grace: got %v, want nil", err)
		}
		d.set(func(d *fakeDriver) { d.ready = true })
		if err := p.Check(t.Context()); err != nil {
			t.Errorf("ready: got %v, want nil", err)
		}
		d.set(func(d *fakeDriver) { d.ready = false })
		if err := p.Check(t.Context()); !errors.Is(err, ErrNotReady) {
			t.Errorf("not ready any more: got %v, want %v: the grace is for coming up only", err, ErrNotReady)
		}

		late, _ := newProber(d, func(cfg *Config) { cfg.Grace = time.Minute })
		time.Sleep(time.Minute)
		if err := late.Check(t.Context()); !errors.Is(err, ErrNotReady) {
			t.Errorf("after the grace: got %v, want %v", err, ErrNotReady)
		}
	})
}

func TestAnswerAndName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDriver{ready: true, nameErr: errors.New("later")}
		var names []string
		p, _ := newProber(d, func(cfg *Config) {
			cfg.MaxAge, cfg.Named = 0, func(name string) { names = append(names, name) }
		})
		if diff := cmp.Diff(Answer{}, p.Answer()); diff != "" {
			t.Errorf("before the first question, -want +got:\n%s", diff)
		}
		for i := range 3 {
			if i == 1 {
				d.set(func(d *fakeDriver) { d.nameErr = nil })
			}
			if err := p.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(Answer{Driver: "test.csi.example", Asked: time.Now(), Ready: true}, p.Answer()); diff != "" {
			t.Errorf("answer, -want +got:\n%s", diff)
		}
		if diff := cmp.Diff([]string{"test.csi.example"}, names); diff != "" || d.names != 2 {
			t.Errorf("the name was asked %d times, want 2; names told, -want +got:\n%s", d.names, diff)
		}
	})
}

func TestMetricsAreWellFormed(t *testing.T) {
	_, reg := newProber(&fakeDriver{}, nil)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}
