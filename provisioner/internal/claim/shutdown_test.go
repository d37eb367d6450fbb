package claim

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
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

// TestShutdownForgotVolumesOfDeletedClaims ends the process while the volume of a deleted claim waits for its next attempt: the next process deletes it.
func TestShutdownForgotVolumesOfDeletedClaims(t *testing.T) {
	for name, tc := range faultsAtTheEnd() {
		t.Run(name, func(t *testing.T) {
			ending(t, context.Canceled, tc.play, func(g *chaos, took time.Duration) {
				next := g.live(fixtures.Quiet(g.t), nextProcess(false))
				time.Sleep(time.Minute)
				if left := g.volumes(); len(left) > 0 || took > 0 {
					t.Errorf("%s: volumes %q are left; the end took %v, although no call was running", tc.reason, left, took)
				}
				next.stop(context.Canceled)
				if err := <-next.ended; err != nil {
					t.Error(err)
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
				if took := time.Since(begin); took > settings.Drain+saveDrain {
					t.Errorf("%s\nthe end took %v, want at most %v", tc.reason, took, settings.Drain+saveDrain)
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

// subject says what a request is about.
func subject(request proto.Message) string {
	switch r := request.(type) {
	case *csi.CreateVolumeRequest:
		return "create " + r.GetName()
	case *csi.DeleteVolumeRequest:
		return "delete " + r.GetVolumeId()
	}
	return ""
}

// TestHandOver ends an elected process while a call is running: another one provisions the next claim a second later, and leaves the volume of the call alone until that
// has ended, or could have.
func TestHandOver(t *testing.T) {
	const asked = "create pvc-slow"
	cases := map[string]struct {
		reason string
		fault  csitest.Fault
		// deleted says that the claim is deleted during the call.
		deleted bool
		// calls are those about the claim, with when they began after the signal.
		calls map[time.Duration]string
	}{
		"Succeeds": {
			reason: "The process that ends saves the volume.",
			fault:  csitest.Fault{Delay: 9 * time.Second},
			calls:  map[time.Duration]string{0: asked},
		},
		"Fails": {
			reason: "The driver has said that there is no volume, so that the claim is provisioned again.",
			fault:  csitest.Fault{Delay: 9 * time.Second, Code: codes.ResourceExhausted},
			calls:  map[time.Duration]string{0: asked, 18 * time.Second: asked},
		},
		"Hangs": {
			reason: "The call is cancelled in the end, and the request repeated once that is certain.",
			fault:  csitest.Fault{Hang: true},
			calls:  map[time.Duration]string{0: asked, 18 * time.Second: asked},
		},
		"Deleted": {
			reason:  "The process that ends deletes the volume.",
			fault:   csitest.Fault{Delay: 9 * time.Second},
			deleted: true,
			calls:   map[time.Duration]string{0: asked, 9 * time.Second: "delete vol-pvc-slow"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &chaos{t: t, cluster: kubeapitest.NewCluster(fixtures.Class()), driver: csitest.New(csitest.Options{})}
				calls, begun := map[time.Duration]string{}, time.Now()
				tc.fault.Method, tc.fault.Times = "CreateVolume", 1
				g.driver.Inject(csitest.Fault{Match: func(request proto.Message) bool {
					if about := subject(request); strings.HasSuffix(about, "pvc-slow") {
						calls[time.Since(begun).Truncate(time.Second)] = about
					}
					return false
				}})
				g.driver.Inject(tc.fault)
				self := nextProcess(true)
				before := g.live(fixtures.Quiet(t), self)
				g.claimNamed("slow", "slow")
				synctest.Wait()
				before.end()
				g.claimNamed("next", "next")
				next := g.live(fixtures.Quiet(t), process{identity: "next", term: journal.Term{Lease: self.term.Lease, Transitions: self.term.Transitions + 1}})
				time.Sleep(time.Second)
				if took := time.Since(begun); !g.volumeExists("pvc-next") || took > 3*time.Second {
					t.Errorf("volumes %q %v after the signal, want that of the next claim", g.volumes(), took)
				}
				if tc.deleted {
					g.remove("persistentvolumeclaims", "team", "slow")
				}
				time.Sleep(time.Minute)
				g.manage()
				if diff := cmp.Diff(tc.calls, calls); diff != "" {
					t.Errorf("%s\ncalls (-want +got):\n%s", tc.reason, diff)
				}
				next.stop(context.Canceled)
				for _, l := range []*life{before, next} {
					if err := <-l.ended; err != nil {
						t.Errorf("%s\na process ended with %v", tc.reason, err)
					}
				}
				g.check()
			})
		})
	}
}
