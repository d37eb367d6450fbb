package claim

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// TestQueued looks at which claims and volumes are looked at after a change.
func TestQueued(t *testing.T) {
	bound := func() *corev1.PersistentVolumeClaim {
		claim := fixtures.Claim()
		claim.Spec.VolumeName = "pvc-uid-1"
		return claim
	}
	foreignClaim := func() *corev1.PersistentVolumeClaim {
		claim := fixtures.Claim()
		claim.Annotations[view.AnnProvisioner] = "other"
		return claim
	}
	foreignPV := func() *corev1.PersistentVolume {
		pv := fixtures.PV()
		pv.Annotations[volume.AnnProvisionedBy] = "other"
		return pv
	}
	successor := func() *corev1.PersistentVolumeClaim {
		claim := fixtures.Claim()
		claim.UID = "uid-2"
		return claim
	}
	released := func(uid types.UID) *corev1.PersistentVolume {
		pv := fixtures.PV()
		pv.UID, pv.Status.Phase = uid, corev1.VolumeReleased
		return pv
	}
	cases := map[string]struct {
		reason string
		open   bool
		cached []runtime.Object
		change func(c *Controller)
		// want is how many claims and how many volumes are looked at.
		want [2]int
	}{
		"NewClaim":       {reason: "A claim of ours is looked at.", change: func(c *Controller) { c.claimChanged(nil, fixtures.Claim()) }, want: [2]int{1, 0}},
		"ForeignClaim":   {reason: "Claims of other drivers are dropped at the door.", change: func(c *Controller) { c.claimChanged(nil, foreignClaim()) }},
		"BoundClaim":     {reason: "A claim that has its volume is done.", change: func(c *Controller) { c.claimChanged(fixtures.Claim(), bound()) }},
		"BoundClaimOpen": {reason: "The fate of a volume that is under way is open, even if the claim has another.", open: true, change: func(c *Controller) { c.claimChanged(fixtures.Claim(), bound()) }, want: [2]int{1, 0}},
		"ClaimGone":      {reason: "Nothing is left to do for a claim that is gone.", change: func(c *Controller) { c.claimChanged(fixtures.Claim(), nil) }},
		"ClaimGoneOpen":  {reason: "What is under way for it is brought to its end.", open: true, change: func(c *Controller) { c.claimChanged(fixtures.Claim(), nil) }, want: [2]int{1, 0}},
		"ClaimReplaced":  {reason: "A claim and its successor are two.", open: true, change: func(c *Controller) { c.claimChanged(fixtures.Claim(), successor()) }, want: [2]int{2, 0}},
		"ClaimUnchanged": {reason: "The same claim twice is looked at once.", change: func(c *Controller) {
			c.claimChanged(nil, fixtures.Claim())
			c.claimChanged(fixtures.Claim(), fixtures.Claim())
		}, want: [2]int{1, 0}},
		"NewVolume":         {reason: "A volume of ours is looked at.", change: func(c *Controller) { c.volumeChanged(nil, released("pv-1")) }, want: [2]int{0, 1}},
		"UsedVolume":        {reason: "Nothing is to be done about a volume in use, as most are.", change: func(c *Controller) { c.volumeChanged(nil, fixtures.PV()) }},
		"ForeignVolume":     {reason: "Volumes of other drivers are dropped at the door.", change: func(c *Controller) { c.volumeChanged(nil, foreignPV()) }},
		"VolumeGone":        {reason: "The claim that wants a volume of the name may have one now.", cached: []runtime.Object{fixtures.Claim()}, change: func(c *Controller) { c.volumeChanged(fixtures.PV(), nil) }, want: [2]int{1, 0}},
		"ForeignVolumeGone": {reason: "Also when another's volume had the name.", cached: []runtime.Object{fixtures.Claim()}, change: func(c *Controller) { c.volumeChanged(foreignPV(), nil) }, want: [2]int{1, 0}},
		"VolumeReplaced":    {reason: "A volume and its successor are two: the first is gone.", cached: []runtime.Object{fixtures.Claim()}, change: func(c *Controller) { c.volumeChanged(fixtures.PV(), released("pv-2")) }, want: [2]int{1, 1}},
		"NewClass":          {reason: "The claims of the class are looked at.", cached: []runtime.Object{fixtures.Claim()}, change: func(c *Controller) { c.classChanged(nil, fixtures.Class()) }, want: [2]int{1, 0}},
		"ClassGone":         {reason: "Without a class there is nothing to do.", cached: []runtime.Object{fixtures.Claim()}, change: func(c *Controller) { c.classChanged(fixtures.Class(), nil) }},
		"OtherClass": {
			reason: "The claims of other classes are left alone.", cached: []runtime.Object{fixtures.Claim()},
			change: func(c *Controller) {
				class := fixtures.Class()
				class.Name = "slow"
				c.classChanged(nil, class)
			},
		},
		"Requeue":     {reason: "A driver that is back may serve what it could not before.", cached: []runtime.Object{fixtures.Claim(), released("pv-1")}, change: func(c *Controller) { c.Requeue() }, want: [2]int{1, 1}},
		"RequeueOpen": {reason: "What is under way for a claim that is gone need not wait for the end of its pause.", open: true, change: func(c *Controller) { c.Requeue() }, want: [2]int{1, 0}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.emptyQueues()
				if tc.open {
					if err := r.cfg.Journal.Open(fixtures.Quiet(t), *newIntent(journal.Creating)); err != nil {
						t.Fatal(err)
					}
				}
				tc.change(r.Controller)
				if got := r.waiting(); got != tc.want {
					t.Errorf("%s\nclaims and volumes that wait: %v, want %v", tc.reason, got, tc.want)
				}
			}, tc.cached...)
		})
	}
}

// emptyQueues replaces the queues, which the first lists have filled.
func (r *rig) emptyQueues() {
	r.T.Helper()
	if err := r.makeQueues(); err != nil {
		r.T.Fatal(err)
	}
}

// TestForgotten looks at the notes about claims and volumes: none may outlive what it is about.
func TestForgotten(t *testing.T) {
	bound := fixtures.Claim()
	bound.Spec.VolumeName = "pvc-uid-1"
	successor := fixtures.Claim()
	successor.UID = "uid-2"
	cases := map[string]struct {
		reason string
		change func(c *Controller)
		claim  bool
	}{
		"ClaimChanged":  {reason: "A claim that still waits keeps its notes.", change: func(c *Controller) { c.claimChanged(fixtures.Claim(), fixtures.Claim()) }, claim: true},
		"ClaimBound":    {reason: "A claim that has its volume needs no notes.", change: func(c *Controller) { c.claimChanged(fixtures.Claim(), bound) }},
		"ClaimGone":     {reason: "A claim that is gone needs no notes.", change: func(c *Controller) { c.claimChanged(fixtures.Claim(), nil) }},
		"ClaimReplaced": {reason: "The notes about a claim are not about its successor.", change: func(c *Controller) { c.claimChanged(fixtures.Claim(), successor) }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				r.claimRecords.Change("uid-1", func(record *claimRecord) { record.unverified = true })
				tc.change(r.Controller)
				if got := r.claimRecords.Get("uid-1") != (claimRecord{}); got != tc.claim {
					t.Errorf("%s\nthe record of the claim is kept: %v, want %v", tc.reason, got, tc.claim)
				}
			})
		})
	}
}

// TestNothingIsNotedTooLate lets the end of a claim or volume be announced in the middle of the work on it: notes that are
// made afterwards must not stay for good.
func TestNothingIsNotedTooLate(t *testing.T) {
	taken := fixtures.PV()
	taken.Spec.CSI.VolumeHandle, taken.Spec.ClaimRef.UID = created().VolumeId, "uid-2"
	cases := map[string]struct {
		reason string
		objs   []runtime.Object
		run    func(t *testing.T, r *rig) error
	}{
		"ClaimGoneWhileSaving": {
			reason: "A volume that another claim has is left to it, and ours is gone.",
			objs:   []runtime.Object{taken, fixtures.Class(), fixtures.Claim()},
			run: func(t *testing.T, r *rig) error {
				r.Cluster.Fail("create", "persistentvolumes", apierrors.NewServiceUnavailable("away"), 1)
				if _, err := r.save(fixtures.Quiet(t), r.asked(), created()); err != nil {
					return err
				}
				r.dropClaim()
				_, err := r.reconcileUnsaved(fixtures.Quiet(t), "uid-1")
				return err
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onRig(t, func(t *testing.T, r *rig) {
				if err := tc.run(t, r); err != nil {
					t.Fatalf("%s\n%v", tc.reason, err)
				}
				r.WatchesCatchUp()
				if n := len(r.claimRecords.Matching(func(claimRecord) bool { return true })); n > 0 {
					t.Errorf("%s\n%d records stay", tc.reason, n)
				}
			}, tc.objs...)
		})
	}
}

// TestVolumeGoneIsVerified has the claim of a volume that was deleted read live before it gets another one.
func TestVolumeGoneIsVerified(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.volumeChanged(fixtures.PV(), nil)
		if !r.claimRecords.Get("uid-1").unverified {
			t.Error("the claim is provisioned from the cache, which may be behind")
		}
	}, fixtures.Claim())
}

// TestTopologySettles looks at claims without a place again some time after a node has come, once for all
// nodes that come by then.
func TestTopologySettles(t *testing.T) {
	onRig(t, func(t *testing.T, r *rig) {
		r.emptyQueues()
		r.topologyChanged()
		r.claimRecords.Change("uid-1", func(record *claimRecord) { record.unplaced = unplaced{key: keyOf(fixtures.Claim()), since: time.Now()} })
		r.topologyChanged()
		r.topologyChanged()
		ctx, stop := context.WithCancel(fixtures.Quiet(t))
		ended := make(chan error, 1)
		go func() { ended <- r.claims.Run(ctx) }()
		for _, step := range []struct {
			pause  time.Duration
			events int
		}{{topologySettle - time.Millisecond, 0}, {2 * time.Millisecond, 1}, {time.Minute, 1}} {
			time.Sleep(step.pause)
			r.WatchesCatchUp()
			if got := len(r.Calls()); got != step.events {
				t.Errorf("%d calls after %v more, want %d", got, step.pause, step.events)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}, fixtures.Claim(), fixtures.Class())
}
