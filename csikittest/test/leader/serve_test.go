package leader_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// serve starts an instance that takes part in elections until it is stopped.
func serve(t *testing.T, cluster *kubetest.Cluster, r *leaderships, who string, change func(*leader.Config)) *candidate {
	t.Helper()
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	c := &candidate{cancel: cancel, session: cluster.NewSession(), done: make(chan struct{})}
	cfg := leader.Config{Client: c.session.Client(), Namespace: namespace, Name: name, Identity: who}
	change(&cfg)
	go func() {
		defer close(c.done)
		c.err = leader.Serve(ctx, cfg, nil, func(ctx context.Context) error {
			r.begin(who)
			defer r.end(who)
			<-ctx.Done()
			time.Sleep(time.Second)
			return ctx.Err()
		})
	}()
	return c
}

// TestServeLeadsAgain takes the Lease from an instance in several ways. It stops its work, is healthy meanwhile, and leads again when it may.
func TestServeLeadsAgain(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		lose   func(t *testing.T, cluster *kubetest.Cluster)
		wait   time.Duration
		want   []string
	}{
		"Unreachable": {
			reason: "the API server answers no request about the Lease for two minutes", wait: 2 * time.Minute, want: []string{"+a", "-a", "+a", "-a"},
			lose: func(_ *testing.T, cluster *kubetest.Cluster) {
				cluster.Fail("", "leases", apierrors.NewServiceUnavailable("down"), 0)
			},
		},
		"Taken": {
			reason: "another instance holds it, until it is not renewed any more", wait: 2 * time.Minute, want: []string{"+a", "-a", "+a", "-a"},
			lose: func(t *testing.T, cluster *kubetest.Cluster) {
				t.Helper()
				if err := cluster.Merge("leases", namespace, name, []byte(`{"spec":{"holderIdentity":"thief"}}`)); err != nil {
					t.Fatal(err)
				}
			},
		},
		"Short": {
			reason: "an outage that ends within the deadline costs nothing", wait: 2 * time.Second, want: []string{"+a", "-a"},
			lose: func(_ *testing.T, cluster *kubetest.Cluster) {
				cluster.Fail("", "leases", apierrors.NewServiceUnavailable("down"), 0)
			},
		},
	}
	for label, tc := range cases {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cluster, r, health := kubetest.New(), &leaderships{}, &leader.Health{}
				a := serve(t, cluster, r, "a", func(c *leader.Config) { c.Health = health })
				time.Sleep(time.Minute)
				tc.lose(t, cluster)
				for range tc.wait / time.Second {
					time.Sleep(time.Second)
					if err := health.Check(); err != nil {
						t.Fatalf("%s: not healthy, although the work ends in time: %v", tc.reason, err)
					}
				}
				cluster.Heal()
				time.Sleep(time.Minute)
				if !r.leads("a") {
					t.Errorf("%s: a does not lead again", tc.reason)
				}
				if err := a.stop(); !errors.Is(err, context.Canceled) {
					t.Errorf("%s: the end that was asked for is that of the work, got %v", tc.reason, err)
				}
				if diff := cmp.Diff(tc.want, r.lines); diff != "" {
					t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
				}
			})
		})
	}
}

// TestServeBesideAnother cuts the leader off for a while: the other instance leads, and the first one after that one has ended.
func TestServeBesideAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster, r := kubetest.New(), &leaderships{}
		none := func(*leader.Config) {}
		a := serve(t, cluster, r, "a", none)
		synctest.Wait()
		b := serve(t, cluster, r, "b", none)
		a.session.Cut()
		time.Sleep(time.Minute)
		a.session.Restore()
		time.Sleep(time.Minute)
		if err := b.stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("b ended with %v", err)
		}
		time.Sleep(time.Minute)
		if err := a.stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("a ended with %v", err)
		}
		if diff := cmp.Diff([]string{"+a", "-a", "+b", "-b", "+a", "-a"}, r.lines); diff != "" || r.twice {
			t.Errorf("one after the other (-want +got):\n%s", diff)
		}
	})
}

// TestServeEnds has work that ends by itself, and a configuration that is not valid.
func TestServeEnds(t *testing.T) {
	t.Parallel()
	cluster, failed := kubetest.New(), errors.New("failed")
	cfg := leader.Config{Client: cluster.Client(), Namespace: namespace, Name: name, Identity: "a"}
	if err := leader.Serve(t.Context(), cfg, nil, func(context.Context) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("got %v, want the error of the work", err)
	}
	if err := leader.Serve(t.Context(), leader.Config{}, nil, nil); err == nil {
		t.Error("a configuration that is not valid is an error")
	}
}
