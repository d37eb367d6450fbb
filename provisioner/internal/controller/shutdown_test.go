package controller

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/reconciletest"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
)

// ending runs a controller, plays, and ends it by a cause; it returns how long the end took.
func ending(t *testing.T, cause error, play func(g *chaos), check func(g *chaos, took time.Duration)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := &chaos{t: t, cluster: kubeapitest.NewCluster(fixtures.Class()), driver: csitest.New(csitest.Options{})}
		ctx, end := context.WithCancelCause(fixtures.Quiet(t))
		ended := make(chan error, 1)
		go func() {
			ended <- runController(ctx, &reconciletest.Env{Kube: g.cluster.Client(), Conn: g.driver.Conn(), Driver: g.driver, Cluster: g.cluster})
		}()
		synctest.Wait()
		play(g)
		begin := time.Now()
		end(cause)
		if err := <-ended; err != nil {
			t.Errorf("the controller ended with %v", err)
		}
		check(g, time.Since(begin))
	})
}

// TestShutdownForgotVolumesOfDeletedClaims ends the process while the volume of a deleted claim waits for its next attempt: there may be no further process.
func TestShutdownForgotVolumesOfDeletedClaims(t *testing.T) {
	for name, tc := range faultsAtTheEnd() {
		t.Run(name, func(t *testing.T) {
			ending(t, context.Canceled, tc.play, func(g *chaos, took time.Duration) {
				if left := g.volumes(); len(left) > 0 {
					t.Errorf("%s: volumes %q are left after %v", tc.reason, left, took)
				}
			})
		})
	}
}

// faultAtTheEnd is what has happened to the volume of a claim when the process ends.
type faultAtTheEnd struct {
	reason string
	fault  []csitest.Fault
	// wanted says that the claim is still there.
	wanted bool
}

func faultsAtTheEnd() map[string]faultAtTheEnd {
	return map[string]faultAtTheEnd{
		"Creating": {
			reason: "The outcome of CreateVolume is unknown.",
			fault:  []csitest.Fault{{Method: "CreateVolume", After: true, Code: codes.DeadlineExceeded, Times: 4}},
		},
		"Undoing": {
			reason: "DeleteVolume has failed.",
			fault:  []csitest.Fault{{Method: "CreateVolume", Delay: 2 * time.Second}, {Method: "DeleteVolume", Code: codes.Internal, Times: 3}},
		},
	}
}

// play lets the fault happen.
func (f faultAtTheEnd) play(g *chaos) {
	for _, fault := range f.fault {
		g.driver.Inject(fault)
	}
	g.claimNamed("data", "u1")
	time.Sleep(100 * time.Millisecond)
	if !f.wanted {
		g.remove("persistentvolumeclaims", "team", "data")
	}
	time.Sleep(4100 * time.Millisecond)
}

// TestShutdownWithoutTheLease loses the lease while a volume is in progress: another instance goes on with it, so no call is made.
func TestShutdownWithoutTheLease(t *testing.T) {
	cases := faultsAtTheEnd()
	cases["Wanted"] = faultAtTheEnd{reason: "The claim waits for its volume.", fault: cases["Creating"].fault, wanted: true}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var before int
			ending(t, leader.ErrLost, func(g *chaos) {
				tc.play(g)
				before = len(g.driver.Calls())
			}, func(g *chaos, took time.Duration) {
				if after := len(g.driver.Calls()); after != before || took > 0 {
					t.Errorf("%s\n%d calls after the loss of the lease, %v later", tc.reason, after-before, took)
				}
			})
		})
	}
}

// TestShutdownTookLongerThanThePodMayTake has a driver with a long deadline that hangs, and an API server that is away: the
// end comes in time all the same. It used to take the deadline of a call, and more.
func TestShutdownTookLongerThanThePodMayTake(t *testing.T) {
	cases := map[string]struct {
		reason string
		play   func(r *rig)
	}{
		"DriverHangs": {
			reason: "A call that hangs is cancelled.",
			play:   func(r *rig) { r.Driver.Inject(csitest.Fault{Hang: true}) },
		},
		"APIAway": {
			reason: "A PersistentVolume that cannot be saved is given up.",
			play: func(r *rig) {
				r.Cluster.Fail("create", "persistentvolumes", apierrors.NewServiceUnavailable("away"), 0)
			},
		},
		"APIHangs": {
			reason: "So is one whose request hangs.",
			play: func(r *rig) {
				r.Cluster.Inject(kubetest.Fault{Verb: "create", Resource: "persistentvolumes", Hang: true})
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			settings := rigSettings()
			settings.Timeout = time.Minute
			onRigWith(t, csitest.Options{}, settings, func(t *testing.T, r *rig) {
				tc.play(r)
				ctx, cancel := context.WithCancel(fixtures.Quiet(t))
				ended := make(chan error, 1)
				go func() { ended <- r.work(ctx) }()
				r.claims.Add(keyOf(fixtures.Claim()))
				time.Sleep(3 * time.Second)
				begin := time.Now()
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
				if took := time.Since(begin); took > settings.Drain+FlushTime {
					t.Errorf("%s\nthe end took %v, want at most %v", tc.reason, took, settings.Drain+FlushTime)
				}
			}, fixtures.Claim(), fixtures.Class())
		})
	}
}

// TestUndoTrustedTheCache deletes an unwanted volume while the cache lacks the PersistentVolume that another process has saved
// for it: the server is asked, and the volume stays.
func TestUndoTrustedTheCache(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		intent := r.asked()
		r.Deaf("persistentvolumes")
		saved := fixtures.PV()
		saved.Spec.CSI.VolumeHandle = "vol-pvc-uid-1"
		if err := r.Cluster.Apply(saved); err != nil {
			t.Fatal(err)
		}
		intent.Stage, intent.VolumeID = journal.Undoing, "vol-pvc-uid-1"
		if err := r.cfg.Journal.Update(intent); err != nil {
			t.Fatal(err)
		}
		if _, err := r.undo(fixtures.Quiet(t), intent); err == nil && r.StoredClaim() != nil {
			t.Error("no error, so that the claim starts over without a pause")
		}
		if calls := r.Calls(); len(calls) > 0 {
			t.Errorf("calls %q, want none: a PersistentVolume has the volume", calls)
		}
		if got := r.stage(); got != "closed" {
			t.Errorf("stage %s, want closed", got)
		}
		r.Hear()
	}, fixtures.Claim(), fixtures.Class())
}
