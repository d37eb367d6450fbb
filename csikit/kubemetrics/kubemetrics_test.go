package kubemetrics_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/longshore-csi/longshore/csikit/kubemetrics"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

func lint(t *testing.T, reg prometheus.Gatherer) {
	t.Helper()
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

// names returns what is measured: name{labels}.
func names(t *testing.T, reg prometheus.Gatherer) []string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, family := range families {
		var labels []string
		for _, pair := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, pair.GetName())
		}
		names = append(names, family.GetName()+"{"+strings.Join(labels, ",")+"}")
	}
	return names
}

func TestQueuesAreNamedAsInKubernetes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		fail := errors.New("fail")
		loop, err := reconcile.New(reconcile.Config[string]{
			Name: "claims", Metrics: kubemetrics.NewQueues(reg),
			Reconcile: func(_ context.Context, key string) (reconcile.Result, error) {
				time.Sleep(2 * time.Second)
				if key == "bad" {
					return reconcile.Result{}, fail
				}
				return reconcile.Result{}, nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- loop.Run(ctx) }()
		for _, key := range []string{"good", "bad", "waiting", "waiting"} {
			loop.Add(key)
		}
		time.Sleep(4500 * time.Millisecond) // the third is at work, the second pauses
		want := []string{
			"workqueue_adds_total{name}", "workqueue_depth{name}", "workqueue_longest_running_processor_seconds{name}", "workqueue_queue_duration_seconds{name}",
			"workqueue_retries_total{name}", "workqueue_unfinished_work_seconds{name}", "workqueue_work_duration_seconds{name}",
		}
		if d := cmp.Diff(want, names(t, reg)); d != "" {
			t.Errorf("metrics (-want +got):\n%s", d)
		}
		err = testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP workqueue_adds_total How many items were added.
# TYPE workqueue_adds_total counter
workqueue_adds_total{name="claims"} 3
# HELP workqueue_depth How many items wait.
# TYPE workqueue_depth gauge
workqueue_depth{name="claims"} 0
# HELP workqueue_longest_running_processor_seconds How many seconds the longest running worker has been at its item.
# TYPE workqueue_longest_running_processor_seconds gauge
workqueue_longest_running_processor_seconds{name="claims"} 0.5
# HELP workqueue_retries_total How many items were added to be worked on later.
# TYPE workqueue_retries_total counter
workqueue_retries_total{name="claims"} 1
# HELP workqueue_unfinished_work_seconds How many seconds of work are in progress and not yet observed by work_duration.
# TYPE workqueue_unfinished_work_seconds gauge
workqueue_unfinished_work_seconds{name="claims"} 0.5
`), "workqueue_adds_total", "workqueue_depth", "workqueue_retries_total", "workqueue_unfinished_work_seconds", "workqueue_longest_running_processor_seconds")
		if err != nil {
			t.Error(err)
		}
		lint(t, reg)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestQueueBuckets(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	kubemetrics.NewQueues(reg).NewLatencyMetric("q").Observe(1)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	buckets := families[0].GetMetric()[0].GetHistogram().GetBucket()
	if n := len(buckets); n != 12 || buckets[0].GetUpperBound() != 1e-8 || buckets[n-1].GetUpperBound() < 999 || buckets[n-1].GetUpperBound() > 1001 {
		t.Errorf("want 12 buckets from 10ns to 1000s, got %v", buckets)
	}
}

func TestLeaderSlowpath(t *testing.T) {
	reg := prometheus.NewRegistry()
	l := kubemetrics.NewLeader(reg)
	l.SlowpathExercised("lease")
	l.SlowpathExercised("lease")
	want := "# HELP leader_election_slowpath_total Renewals of the lease that had to read it first, because another client had changed it, by the name of the lease.\n" +
		"# TYPE leader_election_slowpath_total counter\nleader_election_slowpath_total{name=\"lease\"} 2\n"
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "leader_election_slowpath_total"); err != nil {
		t.Error(err)
	}
}

func TestLeader(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	l := kubemetrics.NewLeader(reg)
	const head = "# HELP leader_election_master_status Whether this instance leads (1) or waits (0), by the name of the lease.\n# TYPE leader_election_master_status gauge\n"
	for _, step := range []struct {
		reason string
		do     func(string)
		want   string
	}{
		{"Waiting is 0.", l.Off, `leader_election_master_status{name="lease"} 0`},
		{"Leading is 1.", l.On, `leader_election_master_status{name="lease"} 1`},
		{"Lost is 0 again.", l.Off, `leader_election_master_status{name="lease"} 0`},
	} {
		step.do("lease")
		if err := testutil.GatherAndCompare(reg, strings.NewReader(head+step.want+"\n")); err != nil {
			t.Errorf("%s: %v", step.reason, err)
		}
	}
	lint(t, reg)
}

// answer is a transport without a network.
type answer func(*http.Request) (*http.Response, error)

func (a answer) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

func TestRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		down := errors.New("down")
		inner := answer(func(r *http.Request) (*http.Response, error) {
			time.Sleep(200 * time.Millisecond)
			if r.URL.Path == "/down" {
				return nil, down
			}
			return &http.Response{StatusCode: http.StatusCreated, Body: io.NopCloser(strings.NewReader(""))}, nil
		})
		transport := kubemetrics.NewRest(reg).Wrap(inner)
		for _, path := range []string{"/up", "/up?secret=1", "/down"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.test:6443"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := transport.RoundTrip(req)
			if err == nil {
				err = resp.Body.Close()
			}
			if (path == "/down") != errors.Is(err, down) {
				t.Errorf("%s: the answer is passed on, got %v", path, err)
			}
		}
		err := testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP rest_client_requests_total How many requests were sent, by status code, method and host; the code is <error> when no answer came.
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="201",host="api.test:6443",method="POST"} 2
rest_client_requests_total{code="<error>",host="api.test:6443",method="POST"} 1
`), "rest_client_requests_total")
		if err != nil {
			t.Error(err)
		}
		if d := cmp.Diff([]string{"rest_client_request_duration_seconds{host,verb}", "rest_client_requests_total{code,host,method}"}, names(t, reg)); d != "" {
			t.Errorf("metrics (-want +got):\n%s", d)
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if sum := families[0].GetMetric()[0].GetHistogram().GetSampleSum(); sum < 0.599 || sum > 0.601 {
			t.Errorf("three times 200ms are measured, got %v", sum)
		}
		lint(t, reg)
		wrapper, ok := transport.(utilnet.RoundTripperWrapper)
		if !ok || wrapper.WrappedRoundTripper() == nil {
			t.Error("client-go can look inside")
		}
	})
}

// Two instances on one registry are a mistake, on two they are not.
func TestNothingIsGlobal(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	for range 2 {
		other := prometheus.NewRegistry()
		kubemetrics.NewQueues(other)
		kubemetrics.NewLeader(other)
		kubemetrics.NewRest(other)
	}
	for name, register := range map[string]func(){
		"Queues": func() { kubemetrics.NewQueues(reg) },
		"Leader": func() { kubemetrics.NewLeader(reg) },
		"Rest":   func() { kubemetrics.NewRest(reg) },
	} {
		register()
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the second on a registry panics", name)
				}
			}()
			register()
		}()
	}
}
