package events_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/csikit/events"
)

// seen returns what a user sees of the Event objects, by the time when each was seen last: message and count.
func (f *fixture) seen() (lines []string) {
	synctest.Wait()
	objects := f.cluster.Objects("events")
	for i := range objects {
		for j := range i {
			if last(objects[i]).Before(last(objects[j])) {
				objects[i], objects[j] = objects[j], objects[i]
			}
		}
	}
	for _, o := range objects {
		e := o.(*corev1.Event)
		lines = append(lines, fmt.Sprintf("%s x%d over %v", e.Message, e.Count, e.LastTimestamp.Sub(e.FirstTimestamp.Time)))
	}
	return lines
}

func last(o any) time.Time { return o.(*corev1.Event).LastTimestamp.Time }

func TestWhatUsersSee(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	cases := map[string]struct {
		reason string
		fail   error // of patches
		times  int   // how many of them, 0 for all
		record func(*fixture)
		want   []string
		writes int
	}{
		"Repeated": {
			reason: "count and time of a repetition are written at most once a minute",
			record: func(f *fixture) {
				for range 31 {
					f.Warning(claim("data"), "Failed", "no space")
					time.Sleep(10 * time.Second)
				}
			},
			want: []string{"no space x31 over 5m0s"}, writes: 6,
		},
		"Lasting": {
			reason: "a failure that lasts writes no more than 25 times at once, and then every five minutes",
			record: func(f *fixture) {
				for range 121 {
					f.Warning(claim("data"), "Failed", "no space")
					time.Sleep(time.Minute)
				}
			},
			want: []string{"no space x121 over 2h0m0s"}, writes: 25 + 24,
		},
		"Return": {
			reason: "a cause that comes back is the newest at once (A, B, A)",
			record: func(f *fixture) {
				for _, message := range []string{"driver is down", "no quota", "driver is down"} {
					f.Warning(claim("data"), "Failed", message)
					time.Sleep(10 * time.Second)
				}
			},
			want: []string{"no quota x1 over 0s", "driver is down x2 over 20s"}, writes: 3,
		},
		"Different": {
			reason: "other types, reasons and objects have events of their own",
			record: func(f *fixture) {
				f.Warning(claim("data"), "Failed", "no space")
				f.Normal(claim("data"), "Failed", "no space")
				f.Warning(claim("data"), "Other", "no space")
				f.Warning(claim("other"), "Failed", "no space")
				again := claim("data")
				again.UID = "uid-2"
				f.Warning(again, "Failed", "no space")
			},
			want: []string{"no space x1 over 0s", "no space x1 over 0s", "no space x1 over 0s", "no space x1 over 0s", "no space x1 over 0s"}, writes: 5,
		},
		"RequestIDs": {
			reason: "messages that always differ have ten objects, of which the last has the newest message",
			record: func(f *fixture) {
				for i := range 25 {
					f.Warning(claim("data"), "Failed", fmt.Sprint("request id ", i))
					time.Sleep(time.Minute)
				}
			},
			want: append(numbered("request id %d x1 over 0s", 9), "(combined from similar events): request id 24 x16 over 15m0s"), writes: 25,
		},
		"Calm": {
			reason: "ten minutes without any, and messages have objects of their own again",
			record: func(f *fixture) {
				for i := range 12 {
					f.Warning(claim("data"), "Failed", fmt.Sprint("request id ", i))
				}
				time.Sleep(10 * time.Minute)
				f.Warning(claim("data"), "Failed", "no space")
			},
			want: append(numbered("request id %d x1 over 0s", 9), "(combined from similar events): request id 9 x1 over 0s", "no space x1 over 0s"), writes: 11,
		},
		"NoRight": {
			reason: "without the right to patch, a repetition is written as a new object within the hour for which the API server keeps events",
			fail:   forbidden,
			record: func(f *fixture) {
				for range 121 {
					f.Warning(claim("data"), "Failed", "no space")
					time.Sleep(time.Minute)
				}
			},
			want: []string{"no space x1 over 0s", "no space x51 over 50m0s", "no space x101 over 1h40m0s"}, writes: 3 + 24,
		},
		"NoRightReturn": {
			reason: "and a cause that comes back, too, at once",
			fail:   forbidden,
			record: func(f *fixture) {
				for _, message := range []string{"driver is down", "no quota", "driver is down", "no quota"} {
					f.Warning(claim("data"), "Failed", message)
					time.Sleep(10 * time.Second)
				}
			},
			want: []string{"driver is down x1 over 0s", "no quota x1 over 0s", "driver is down x2 over 20s", "no quota x2 over 20s"}, writes: 5,
		},
		"Forgotten": {
			reason: "an event that the API server has forgotten is created again",
			fail:   apierrors.NewNotFound(schema.GroupResource{}, ""),
			record: func(f *fixture) {
				for range 3 {
					f.Warning(claim("data"), "Failed", "no space")
					time.Sleep(2 * time.Hour)
				}
			},
			want: []string{"no space x1 over 0s", "no space x2 over 2h0m0s", "no space x3 over 4h0m0s"}, writes: 5,
		},
		"Unwell": {
			reason: "a count that could not be written comes with the next repetition",
			fail:   apierrors.NewServiceUnavailable("x"), times: 3,
			record: func(f *fixture) {
				for range 3 {
					f.Warning(claim("data"), "Failed", "no space")
					time.Sleep(time.Minute)
				}
			},
			want: []string{"no space x3 over 2m0s"}, writes: 5,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := launch(t, nil)
				if tc.fail != nil {
					f.cluster.Fail("patch", "events", tc.fail, tc.times)
				}
				tc.record(f)
				if d := cmp.Diff(tc.want, f.seen()); d != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, d)
				}
				if got := len(f.cluster.Writes()); got != tc.writes || f.Dropped() > 0 {
					t.Errorf("%s: %d writes and %d dropped, want %d and 0", tc.reason, got, f.Dropped(), tc.writes)
				}
				f.end(t)
			})
		})
	}
}

func numbered(format string, n int) (lines []string) {
	for i := range n {
		lines = append(lines, fmt.Sprintf(format, i))
	}
	return lines
}

// One object takes no more than its own share of the writes.
func TestObjectsHaveABudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := launch(t, nil)
		for i := range 40 {
			f.Warning(claim("noisy"), fmt.Sprint("Reason", i), "m")
		}
		f.Warning(claim("quiet"), "Failed", "m")
		if got := len(f.messages()); got != 26 || f.Dropped() != 15 {
			t.Errorf("%d events written and %d dropped, want 25 of one object and 1 of the other, and 15", got, f.Dropped())
		}
		f.end(t)
	})
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := launch(t, func(cfg *events.Config) { cfg.QPS, cfg.Burst, cfg.QueueSize = 1e6, 1e6, 1e5 })
		record := func() {
			for i := range 4096 {
				f.Normal(claim(fmt.Sprint(i/2)), "R", fmt.Sprint(i%2))
			}
		}
		record()
		f.Normal(claim("data"), "R", "one too many") // some of the others are forgotten
		record()
		written := 0
		for _, name := range f.names() {
			if strings.HasPrefix(name, "data.") {
				written++
			}
		}
		if got := len(f.names()); written != 1 || got < 4097+512 || got > 2*4097 {
			t.Errorf("forgetting only leads to repetitions, got %d objects, %d of the new one", got, written)
		}
		time.Sleep(2 * time.Hour)
		f.Normal(claim("data"), "R", "old ones go first")
		f.end(t)
	})
}

// names returns the names of the Event objects.
func (f *fixture) names() (names []string) {
	synctest.Wait()
	for _, o := range f.cluster.Objects("events") {
		names = append(names, o.GetName())
	}
	return names
}
