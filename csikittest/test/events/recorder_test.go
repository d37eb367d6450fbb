package events_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

func claim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-1", ResourceVersion: "7"}}
}

// fixture is a recorder that runs on a cluster.
type fixture struct {
	*events.Async
	cluster *kubetest.Cluster
	cancel  context.CancelFunc
	done    chan error
}

func launch(t *testing.T, change func(*events.Config)) *fixture {
	t.Helper()
	f := &fixture{cluster: kubetest.New(), done: make(chan error, 1)}
	cfg := events.Config{Client: f.cluster.Client(), Component: "csi-test", Host: "host-1"}
	if change != nil {
		change(&cfg)
	}
	recorder, err := events.NewRecorder(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.Async = recorder
	ctx, cancel := context.WithCancel(t.Context())
	f.cancel = cancel
	go func() { f.done <- recorder.Run(ctx) }()
	return f
}

func (f *fixture) end(t *testing.T) {
	t.Helper()
	f.cancel()
	if err := <-f.done; err != nil {
		t.Errorf("end of Run: %v", err)
	}
}

// messages returns the messages of the events that were written, in order of their writing.
func (f *fixture) messages() (messages []string) {
	synctest.Wait()
	for _, w := range f.cluster.Writes() {
		if event, ok := w.Object.(*corev1.Event); ok {
			messages = append(messages, event.Message)
		}
	}
	return messages
}

func TestEventsAreComplete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := launch(t, nil)
		f.Warning(claim("data"), "ProvisioningFailed", "no space")
		f.Normal(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, "Ready", "fine")
		synctest.Wait()
		now := metav1.NewTime(time.Now().Truncate(time.Second))
		first, ok := f.cluster.Writes()[0].Object.(*corev1.Event)
		if !ok {
			t.Fatal("an event is written")
		}
		if !strings.HasPrefix(first.Name, "data.") || first.Namespace != "ns" {
			t.Errorf("the name begins with the object's, got %s/%s", first.Namespace, first.Name)
		}
		if !first.FirstTimestamp.Equal(&now) || !first.LastTimestamp.Equal(&now) {
			t.Errorf("times are now, got %v, %v", first.FirstTimestamp, first.LastTimestamp)
		}
		first.ObjectMeta, first.FirstTimestamp, first.LastTimestamp = metav1.ObjectMeta{}, metav1.Time{}, metav1.Time{}
		want := &corev1.Event{
			InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "ns", Name: "data", UID: "uid-1", ResourceVersion: "7"},
			Type:           "Warning", Reason: "ProvisioningFailed", Message: "no space", Count: 1,
			Source:              corev1.EventSource{Component: "csi-test", Host: "host-1"},
			ReportingController: "csi-test", ReportingInstance: "host-1",
		}
		if d := cmp.Diff(want, first); d != "" {
			t.Errorf("event (-want +got):\n%s", d)
		}
		second, ok := f.cluster.Writes()[1].Object.(*corev1.Event)
		if !ok || second.Namespace != "default" || second.Type != "Normal" || second.InvolvedObject.Namespace != "" {
			t.Errorf("events about objects without a namespace are in default, got %+v", second)
		}
		f.end(t)
	})
}

func TestBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := launch(t, func(cfg *events.Config) { cfg.QPS, cfg.Burst = 2, 3 })
		for i := range 10 {
			f.Normal(claim(fmt.Sprint("data-", i)), "R", fmt.Sprint(i))
		}
		if got := len(f.messages()); got != 3 {
			t.Errorf("the burst goes at once, got %d", got)
		}
		time.Sleep(2 * time.Second)
		if got := len(f.messages()); got != 7 {
			t.Errorf("then two per second, got %d", got)
		}
		f.end(t)
		if d := cmp.Diff([]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, f.messages()); d != "" {
			t.Errorf("at the end the rest, in order (-want +got):\n%s", d)
		}
	})
}

func TestFullQueueDropsTheOldest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		f := launch(t, func(cfg *events.Config) { cfg.QueueSize, cfg.Registerer = 2, reg })
		f.cluster.Inject(kubetest.Fault{Delay: time.Second, Times: 1})
		f.Normal(claim("data"), "R", "on its way")
		synctest.Wait()
		for i := range 5 {
			f.Normal(claim("data"), "R", fmt.Sprint(i))
		}
		time.Sleep(time.Minute)
		if d := cmp.Diff([]string{"on its way", "3", "4"}, f.messages()); d != "" {
			t.Errorf("events (-want +got):\n%s", d)
		}
		if got := f.Dropped(); got != 3 {
			t.Errorf("three are lost, got %d", got)
		}
		want := "# HELP csi_sidecar_events_dropped_total Events that were not written because the queue was full or the API server refused them.\n" +
			"# TYPE csi_sidecar_events_dropped_total counter\ncsi_sidecar_events_dropped_total 3\n"
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
		if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
		f.end(t)
	})
}

// Normal and Warning shared one queue: a storm of "Provisioning" dropped the reasons why it failed.
func TestNormalEventsDoNotDropWarnings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := launch(t, func(cfg *events.Config) { cfg.QueueSize, cfg.QPS, cfg.Burst = 4, 1, 2 })
		f.cluster.Inject(kubetest.Fault{Delay: time.Second, Times: 1})
		f.Normal(claim("data"), "R", "first")
		synctest.Wait()
		f.Warning(claim("data"), "W", "w1")
		for i := range 5 {
			f.Normal(claim("data"), "R", fmt.Sprint("n", i))
			f.Warning(claim("data"), "W", fmt.Sprint("w", i+2))
		}
		time.Sleep(time.Minute)
		if d := cmp.Diff([]string{"first", "w3", "w4", "w5", "w6"}, f.messages()); d != "" {
			t.Errorf("the newest warnings are written (-want +got):\n%s", d)
		}
		for i := range 3 {
			f.Normal(claim("data"), "R", fmt.Sprint("m", i))
		}
		f.Warning(claim("data"), "W", "urgent")
		time.Sleep(time.Minute)
		if d := cmp.Diff([]string{"urgent", "m0", "m1", "m2"}, f.messages()[5:]); d != "" {
			t.Errorf("in a queue that is longer than the burst, warnings are written first (-want +got):\n%s", d)
		}
		f.end(t)
	})
}

// An event that RBAC refused counted as written: after the role was fixed, the failure stayed silent.
func TestEventRefusedByRBACIsWrittenOnceAllowed(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"Forbidden":    apierrors.NewForbidden(schema.GroupResource{}, "", nil),
		"Unauthorized": apierrors.NewUnauthorized("token"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := launch(t, nil)
				f.cluster.Fail("create", "events", err, 1)
				for range 6 {
					f.Warning(claim("data"), "Failed", "no space")
					time.Sleep(time.Minute)
				}
				if d := cmp.Diff([]string{"no space"}, f.messages()); d != "" || len(f.cluster.Writes()) != 2 {
					t.Errorf("%d attempts; written (-want +got):\n%s", len(f.cluster.Writes()), d)
				}
				f.end(t)
			})
		})
	}
}

func TestWriteErrors(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason  string
		err     error
		times   int
		want    int // attempts
		dropped uint64
	}{
		"Unwell":    {reason: "A server that is not well is asked again.", err: apierrors.NewServiceUnavailable("x"), times: 2, want: 3},
		"Dead":      {reason: "But not forever.", err: apierrors.NewServiceUnavailable("x"), want: 3, dropped: 1},
		"Forbidden": {reason: "A missing role does not come by asking.", err: apierrors.NewForbidden(schema.GroupResource{}, "", nil), want: 1, dropped: 1},
		"Exists":    {reason: "The answer to an earlier attempt was lost.", err: apierrors.NewAlreadyExists(schema.GroupResource{}, ""), want: 1},
		"Gone":      {reason: "The namespace is going.", err: apierrors.NewNotFound(schema.GroupResource{}, ""), want: 1, dropped: 1},
		"Network":   {reason: "Other errors pass.", err: errors.New("no route"), times: 1, want: 2},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := launch(t, nil)
				f.cluster.Fail("create", "events", tc.err, tc.times)
				f.Normal(claim("data"), "R", "m")
				time.Sleep(time.Minute)
				names := map[string]bool{}
				for _, w := range f.cluster.Writes() {
					names[w.Name] = true
				}
				if got := len(f.cluster.Writes()); got != tc.want || len(names) != 1 {
					t.Errorf("%s: want %d attempts for one object, got %d for %v", tc.reason, tc.want, got, names)
				}
				if got := f.Dropped(); got != tc.dropped {
					t.Errorf("%s: want %d dropped, got %d", tc.reason, tc.dropped, got)
				}
				f.end(t)
			})
		})
	}
}

func TestDrainHasADeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := launch(t, func(cfg *events.Config) { cfg.Drain = 15 * time.Second })
		f.cluster.Inject(kubetest.Fault{Resource: "events", Hang: true})
		for i := range 5 {
			f.Normal(claim("data"), "R", fmt.Sprint(i))
		}
		synctest.Wait()
		began := time.Now()
		f.end(t)
		if took := time.Since(began); took != 15*time.Second {
			t.Errorf("want the write on its way and those behind it to end with the deadline, after 15s, took %v", took)
		}
		if got := f.Dropped(); got != 5 {
			t.Errorf("all are counted, got %d", got)
		}
	})
}

// What a user has never seen is no repetition.
func TestLostEventsAreToldAgain(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		lose   func(f *fixture)
		normal bool
		want   []string
	}{
		"Unwell": {
			reason: "The server was not well for long.", want: []string{"no space"},
			lose: func(f *fixture) {
				f.cluster.Fail("create", "events", apierrors.NewServiceUnavailable("x"), 3)
				f.Warning(claim("data"), "Failed", "no space")
			},
		},
		"Dropped": {
			reason: "Too many were waiting.", want: []string{"on its way", "other", "no space"}, normal: true,
			lose: func(f *fixture) {
				f.cluster.Inject(kubetest.Fault{Delay: time.Second, Times: 1})
				f.Normal(claim("data"), "R", "on its way")
				synctest.Wait()
				f.Normal(claim("data"), "Failed", "no space")
				f.Normal(claim("data"), "R", "other")
			},
		},
		"Forbidden": {
			reason: "A missing role does not come by asking again.",
			lose: func(f *fixture) {
				f.cluster.Fail("create", "events", apierrors.NewForbidden(schema.GroupResource{}, "", nil), 1)
				f.Warning(claim("data"), "Failed", "no space")
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := launch(t, func(cfg *events.Config) { cfg.QueueSize = 1 })
				tc.lose(f)
				time.Sleep(time.Minute)
				again := f.Warning
				if tc.normal {
					again = f.Normal
				}
				again(claim("data"), "Failed", "no space")
				if d := cmp.Diff(tc.want, f.messages()); d != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, d)
				}
				f.end(t)
			})
		})
	}
}

// A context with a deadline that is nearer than the budget allows is not over yet.
func TestDeadlineIsNoEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		recorder, err := events.NewRecorder(events.Config{Client: cluster.Client(), Component: "c", QPS: 0.001, Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		recorder.Normal(claim("data"), "R", "1")
		recorder.Normal(claim("data"), "R", "2")
		began := time.Now()
		if err := recorder.Run(ctx); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != time.Minute || len(cluster.Writes()) != 2 {
			t.Errorf("want Run to last until the deadline and to write both, took %v and wrote %d", took, len(cluster.Writes()))
		}
	})
}

// What waits for the budget at the end is written, not lost.
func TestNothingIsLostAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := launch(t, func(cfg *events.Config) { cfg.QPS, cfg.Burst = 0.001, 1 })
		f.Normal(claim("data"), "R", "1")
		f.Normal(claim("data"), "R", "2")
		f.Normal(claim("data"), "R", "3")
		synctest.Wait()
		f.end(t)
		if d := cmp.Diff([]string{"1", "2", "3"}, f.messages()); d != "" {
			t.Errorf("events (-want +got):\n%s", d)
		}
	})
}

func TestMessagesFitTheAPI(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason, message, want string
	}{
		"Short":   {reason: "Short ones stay.", message: "x", want: "x"},
		"Exact":   {reason: "The limit is included.", message: strings.Repeat("x", 1024), want: strings.Repeat("x", 1024)},
		"Long":    {reason: "Longer ones are cut.", message: strings.Repeat("x", 1025), want: strings.Repeat("x", 1021) + "..."},
		"Rune":    {reason: "Characters stay whole.", message: strings.Repeat("€", 400), want: strings.Repeat("€", 340) + "..."},
		"Invalid": {reason: "What is no text becomes text.", message: "a\xffb", want: "a\uFFFDb"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := launch(t, nil)
				f.Normal(claim("data"), "R", tc.message)
				got := f.messages()
				if d := cmp.Diff([]string{tc.want}, got); d != "" || len(got[0]) > 1024 || !utf8.ValidString(got[0]) {
					t.Errorf("%s (-want +got):\n%s", tc.reason, d)
				}
				f.end(t)
			})
		})
	}
}

func TestObjects(t *testing.T) {
	t.Parallel()
	unknown := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "snapshot.storage.k8s.io/v1", Kind: "VolumeSnapshot"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "snap"},
	}
	long := claim(strings.Repeat("n", 253))
	cases := map[string]struct {
		reason string
		obj    runtime.Object
		want   string // kind, or nothing
	}{
		"Known":     {reason: "Kinds of the scheme need no type.", obj: claim("c"), want: "v1 PersistentVolumeClaim"},
		"Custom":    {reason: "Others say what they are.", obj: unknown, want: "snapshot.storage.k8s.io/v1 VolumeSnapshot"},
		"Reference": {reason: "A reference is enough.", obj: &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "ns", Name: "p"}, want: "v1 Pod"},
		"LongName":  {reason: "Names of events have a limit, too.", obj: long, want: "v1 PersistentVolumeClaim"},
		"Nameless":  {reason: "Nobody would find it.", obj: claim("")},
		"NilRef":    {reason: "Nothing happened to nothing.", obj: (*corev1.ObjectReference)(nil)},
		"Nil":       {reason: "Nothing happened to nothing.", obj: nil},
		"NoObject":  {reason: "A list is no object.", obj: &metav1.Status{}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := launch(t, nil)
				f.Normal(tc.obj, "R", "m")
				synctest.Wait()
				got := ""
				for _, w := range f.cluster.Writes() {
					if event, ok := w.Object.(*corev1.Event); ok {
						got = event.InvolvedObject.APIVersion + " " + event.InvolvedObject.Kind
						if len(event.Name) > 253 {
							t.Errorf("the name has %d characters", len(event.Name))
						}
					}
				}
				if got != tc.want {
					t.Errorf("%s: want %q, got %q", tc.reason, tc.want, got)
				}
				f.end(t)
			})
		})
	}
}

func TestNewRecorderReportsEverything(t *testing.T) {
	t.Parallel()
	_, err := events.NewRecorder(events.Config{QPS: -1, Drain: -1})
	for _, part := range []string{"client must", "component must", "qps -1"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("want %q in %v", part, err)
		}
	}
	reg := prometheus.NewRegistry()
	cfg := events.Config{Client: kubetest.New().Client(), Component: "c", Registerer: reg}
	if _, err := events.NewRecorder(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := events.NewRecorder(cfg); err == nil || !strings.Contains(err.Error(), `"c"`) {
		t.Errorf("a second counter on one registry is an error, got %v", err)
	}
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	var r events.Recorder = events.Discard{}
	r.Normal(nil, "", "")
	r.Warning(claim("c"), "R", "m")
}
