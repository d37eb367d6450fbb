package claim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// reign has processes follow each other, with an election or without.
type reign struct {
	*chaos

	elected bool
	self    process
	lives   []*life
}

// hasRecords reports whether an object has records of a journal: a document without records is shorter.
func hasRecords(obj kube.Object) bool { return len(obj.GetAnnotations()[journal.Annotation]) > 250 }

// onReign runs a test with and without an election, in virtual time. Each process is ended in the end.
func onReign(t *testing.T, options csitest.Options, play func(t *testing.T, r *reign), objs ...runtime.Object) {
	t.Helper()
	for name, elected := range map[string]bool{"Elected": true, "Alone": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &reign{chaos: &chaos{t: t, cluster: kubeapitest.NewCluster(objs...), driver: csitest.New(options)}, elected: elected}
				play(t, r)
				for _, l := range r.lives {
					l.stop(context.Canceled)
					<-l.ended
				}
			})
		})
	}
}

// next starts the next process.
func (r *reign) next() {
	r.t.Helper()
	r.self.identity = fmt.Sprint("life-", len(r.lives))
	if r.elected {
		r.self.term.Lease = "election"
		r.self.term.Transitions++
	}
	r.lives = append(r.lives, r.live(fixtures.Quiet(r.t), r.self))
	synctest.Wait()
}

// kill ends the process that runs, without giving it any chance.
func (r *reign) kill() {
	r.t.Helper()
	last := r.lives[len(r.lives)-1]
	last.kill()
	<-last.ended
	last.ended <- nil
}

// lost kills the process while the volume of the claim is made: the answer is lost.
func (r *reign) lost(claim *corev1.PersistentVolumeClaim) {
	r.t.Helper()
	r.next()
	r.driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Hang: true, Times: 1})
	claim.ResourceVersion = ""
	r.apply(claim)
	time.Sleep(2 * time.Second)
	if diff := cmp.Diff([]string{"pvc-uid-1"}, r.volumes()); diff != "" {
		r.t.Fatalf("volumes when the process is killed (-want +got):\n%s", diff)
	}
	r.kill()
}

// node stores a node with the driver in a zone.
func (r *reign) node(name, zone string) {
	r.apply(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}})
	r.apply(&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: name, TopologyKeys: []string{"zone"}}}}})
}

// class replaces the class.
func (r *reign) class(change func(*storagev1.StorageClass)) {
	r.remove("storageclasses", "", "fast")
	class := fixtures.Class()
	class.UID, class.ResourceVersion = "class-2", ""
	change(class)
	r.apply(class)
}

// select changes the selected node of the claim; empty: none.
func (r *reign) selectNode(name string) {
	for _, obj := range r.cluster.Objects("persistentvolumeclaims") {
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok {
			if claim.Annotations[view.AnnSelectedNode] = name; name == "" {
				delete(claim.Annotations, view.AnnSelectedNode)
			}
			r.apply(claim)
		}
	}
}

// want checks the volumes of the driver, the number of PersistentVolumes and of calls of DeleteVolume.
func (r *reign) want(when string, volumes []string, saved, deleted int) {
	r.t.Helper()
	if diff := cmp.Diff(volumes, r.volumes()); diff != "" {
		r.t.Errorf("%s: volumes (-want +got):\n%s", when, diff)
	}
	if got := len(r.cluster.Objects("persistentvolumes")); got != saved {
		r.t.Errorf("%s: %d PersistentVolumes, want %d", when, got, saved)
	}
	if got := len(r.calls("DeleteVolume")); got != deleted {
		r.t.Errorf("%s: %d calls of DeleteVolume, want %d", when, got, deleted)
	}
}

// TestTakenOver kills a process while it makes a volume, and changes what the request was made from: first the recorded request is settled, and then the claim gets what it
// asks for now. Nothing is left, and nothing waits without an end.
func TestTakenOver(t *testing.T) {
	one := []string{"pvc-uid-1"}
	cases := map[string]struct {
		reason string
		// between is what happens before the next process starts, and then is what happens an hour later.
		between, then func(r *reign)
		// saved and deleted are after an hour, and then after another one.
		saved, deleted         int
		lastly                 []string
		savedThen, deletedThen int
	}{
		"Unchanged": {reason: "The volume is the claim's.", saved: 1, lastly: one, savedThen: 1},
		"ClaimGone": {
			reason: "Nobody wants it.", deleted: 1, deletedThen: 1,
			between: func(r *reign) { r.remove("persistentvolumeclaims", "team", "data") },
		},
		"ClassChanged": {
			reason: "The claim asks for another volume by now.", saved: 1, deleted: 1, lastly: one, savedThen: 1, deletedThen: 1,
			between: func(r *reign) {
				r.class(func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"pool": "other"}; late(c) })
			},
		},
		"ClassGone": {
			reason: "The claim may get its class back.", lastly: one, savedThen: 1,
			between: func(r *reign) { r.remove("storageclasses", "", "fast") },
			then:    func(r *reign) { class := fixtures.Class(); class.ResourceVersion = ""; late(class); r.apply(class) },
		},
		"ClassOfOther": {
			reason: "Another driver's class is nothing that a PersistentVolume of this driver may have.", deletedThen: 1,
			between: func(r *reign) {
				r.class(func(c *storagev1.StorageClass) { c.Provisioner = "other.example.com"; late(c) })
			},
			then: func(r *reign) { r.remove("persistentvolumeclaims", "team", "data") },
		},
		"NodeGone": {
			reason: "The scheduler selects another node, which reaches the volume.", lastly: one, savedThen: 1,
			between: func(r *reign) { r.remove("nodes", "", "n1"); r.remove("csinodes", "", "n1") },
			then:    func(r *reign) { r.wantUnselected(); r.selectNode("n2") },
		},
		"NodeUnselected": {
			reason: "No volume is given to a claim that no node is selected for.", lastly: one, savedThen: 1,
			between: func(r *reign) { r.selectNode("") },
			then:    func(r *reign) { r.selectNode("n2") },
		},
		"Prefix": {
			reason: "Another --volume-name-prefix gives another volume.", saved: 1, deleted: 1, lastly: []string{"vol-uid-1"}, savedThen: 1, deletedThen: 1,
			between: func(r *reign) { r.args = map[string]string{"prefix": "vol"} },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			class := fixtures.Class()
			late(class)
			onReign(t, csitest.Options{Topology: map[string]string{"zone": "a"}}, func(_ *testing.T, r *reign) {
				r.node("n1", "a")
				r.node("n2", "a")
				r.node("n3", "b")
				r.lost(onNode("n1"))
				if tc.between != nil {
					tc.between(r)
				}
				r.next()
				time.Sleep(time.Hour)
				first := one
				if tc.saved > 0 || tc.deleted > 0 {
					first = tc.lastly
				}
				r.want(tc.reason+" After an hour", first, tc.saved, tc.deleted)
				if tc.then != nil {
					tc.then(r)
				}
				time.Sleep(time.Hour)
				r.want(tc.reason+" Then", tc.lastly, tc.savedThen, tc.deletedThen)
				if tc.savedThen == tc.saved && tc.savedThen == 0 {
					return
				}
				r.manage()
				time.Sleep(time.Minute)
				for _, lease := range r.cluster.Objects("leases") {
					if hasRecords(lease) {
						r.t.Error("a record is left")
					}
				}
			}, class)
		})
	}
}

// TestIsSame compares a volume that another process has requested with what is requested now.
func TestIsSame(t *testing.T) {
	in := func(zones ...string) (found []*csi.Topology) {
		for _, zone := range zones {
			found = append(found, &csi.Topology{Segments: map[string]string{"zone": zone}})
		}
		return found
	}
	cases := map[string]struct {
		reason   string
		change   func(now *csi.CreateVolumeRequest)
		from     []*csi.Topology
		selected bool
		want     bool
	}{
		"Equal":      {reason: "It is.", want: true},
		"Size":       {reason: "Another size is another volume.", change: func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{RequiredBytes: 2} }},
		"Parameters": {reason: "So are other parameters.", change: func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"pool": "slow"} }},
		"Name":       {reason: "So is another name.", change: func(r *csi.CreateVolumeRequest) { r.Name = "vol-1" }},
		"Elsewhere": {
			reason: "Where it was to be does not count, but where it is.", want: true, selected: true, from: in("b"),
			change: func(r *csi.CreateVolumeRequest) {
				r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: in("a", "b"), Preferred: in("b", "a")}
			},
		},
		"NotSelected": {
			reason: "The selected node does not reach it.", selected: true, from: in("a"),
			change: func(r *csi.CreateVolumeRequest) {
				r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: in("a", "b"), Preferred: in("b", "a")}
			},
		},
		"Immediate": {
			reason: "Without a selected node, each allowed segment is good.", want: true, from: in("a"),
			change: func(r *csi.CreateVolumeRequest) {
				r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: in("a", "b"), Preferred: in("b", "a")}
			},
		},
		"NotAllowed": {
			reason: "No other is.", from: in("c"),
			change: func(r *csi.CreateVolumeRequest) {
				r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: in("a", "b"), Preferred: in("b", "a")}
			},
		},
		"OnlyPreferred": {
			reason: "A requirement may have preferred segments only.", from: in("a"), selected: true,
			change: func(r *csi.CreateVolumeRequest) {
				r.AccessibilityRequirements = &csi.TopologyRequirement{Preferred: in("b")}
			},
		},
		"Everywhere": {
			reason: "It is accessible from everywhere.", want: true, selected: true,
			change: func(r *csi.CreateVolumeRequest) {
				r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: in("b"), Preferred: in("b")}
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			request := func() *csi.CreateVolumeRequest {
				return &csi.CreateVolumeRequest{
					Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 1}, Parameters: map[string]string{"pool": "fast"},
					AccessibilityRequirements: &csi.TopologyRequirement{Requisite: in("a"), Preferred: in("a")},
				}
			}
			now := request()
			if tc.change != nil {
				tc.change(now)
			}
			if got := isSame(request(), now, &csi.Volume{AccessibleTopology: tc.from}, tc.selected); got != tc.want {
				t.Errorf("%s\nsame: %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

// wantUnselected checks that the claim was given back to the scheduler.
func (r *reign) wantUnselected() {
	r.t.Helper()
	if claim, ok := r.cluster.Objects("persistentvolumeclaims")[0].(*corev1.PersistentVolumeClaim); !ok || view.SelectedNode(claim) != "" {
		r.t.Errorf("the claim is still for node %q", view.SelectedNode(claim))
	}
}

// provisioned plays kubernetes-csi's sidecar, which provisions the claim with the volume that exists.
func (r *reign) provisioned(event bool) {
	r.t.Helper()
	pv := fixtures.PV()
	pv.ResourceVersion, pv.Spec.CSI.VolumeHandle, pv.Spec.PersistentVolumeReclaimPolicy = "", "vol-pvc-uid-1", corev1.PersistentVolumeReclaimRetain
	r.apply(pv)
	if event {
		r.apply(&corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data.1"}, InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "team", Name: "data", UID: "uid-1"},
			Reason: "ProvisioningSucceeded", Source: corev1.EventSource{Component: driver + "_host_1"},
		})
	}
}

// detach has an administrator keep the volume apart from the cluster: its PersistentVolume is removed, and then its claim.
func (r *reign) detach() {
	r.t.Helper()
	if err := r.cluster.Drop("persistentvolumes", "", "pvc-uid-1"); err != nil {
		r.t.Fatal(err)
	}
	if err := r.cluster.Drop("persistentvolumeclaims", "team", "data"); err != nil {
		r.t.Fatal(err)
	}
}

// expire ends the events, as the API server does after an hour.
func (r *reign) expire() {
	r.t.Helper()
	for _, e := range r.cluster.Objects("events") {
		if err := r.cluster.Drop("events", e.GetNamespace(), e.GetName()); err != nil {
			r.t.Fatal(err)
		}
	}
}

// former stores a Lease of version 1 with the record of the claim.
func (r *reign) former() {
	r.t.Helper()
	r.apply(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: driver + "-journal-0", Annotations: map[string]string{journal.Annotation: fmt.Sprintf(
		`{"version":1,"records":[{"uid":"uid-1","volume":"pvc-*","claim":"team/data","since":%d,"bytes":1073741824,"request":"8d189923f470"}],"parts":{"8d189923f470":"EgAaBhoCCAcSAA=="}}`, time.Now().Unix())}}})
}

// TestKept has a volume that an administrator has set to Retain, and detached from the cluster, and yet a record of its creation: it is never deleted, and
// the administrator learns of it.
func TestKept(t *testing.T) {
	day := 24 * time.Hour
	cases := map[string]struct {
		reason string
		// happens ends with the volume detached, and a process that starts.
		happens func(r *reign)
		// quiet says that nothing is to be reported, as no record is left.
		quiet bool
	}{
		"Restart": {
			reason: "A volume that was saved has no record.", quiet: true,
			happens: func(r *reign) { r.provisionHere(); time.Sleep(time.Minute); r.detach(); r.kill(); r.next() },
		},
		"OtherBetween": {
			reason: "kubernetes-csi's sidecar has led in between, and provisioned the claim.",
			happens: func(r *reign) {
				r.lost(fixtures.Claim())
				r.self.term.Transitions++
				r.provisioned(true)
				r.detach()
				r.next()
			},
		},
		"OtherBetweenMonths": {
			reason: "It did so for three months: the events are over.",
			happens: func(r *reign) {
				r.lost(fixtures.Claim())
				r.self.term.Transitions++
				r.provisioned(false)
				r.detach()
				time.Sleep(90 * day)
				r.next()
			},
		},
		"Months": {
			reason: "Nobody knows what has happened in three months.",
			happens: func(r *reign) {
				r.lost(fixtures.Claim())
				r.provisioned(false)
				r.detach()
				time.Sleep(90 * day)
				r.next()
			},
		},
		"Restored": {
			reason:  "The Lease comes from a backup of a few minutes ago.",
			happens: func(r *reign) { r.restoreLease(10 * time.Minute); r.next() },
		},
		"RestoredOld": {
			reason:  "The Lease comes from a backup of yesterday.",
			happens: func(r *reign) { r.restoreLease(day); r.expire(); r.next() },
		},
		"NotWritten": {
			reason: "The end of the creation could not be written.",
			happens: func(r *reign) {
				r.next()
				r.cluster.Inject(kubetest.Fault{Verb: "create", Resource: "persistentvolumes", Do: func() {
					r.cluster.Fail("update", "leases", apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "journal", nil), 0)
				}, Times: 1})
				claim := fixtures.Claim()
				claim.ResourceVersion = ""
				r.apply(claim)
				time.Sleep(30 * time.Minute)
				r.manage()
				r.detach()
				r.kill()
				r.cluster.Heal()
				r.next()
			},
		},
		"Former": {
			reason:  "A record of version 1 does not say who was in between.",
			happens: func(r *reign) { r.provisionHere(); r.detach(); r.kill(); r.former(); r.next() },
		},
		"FormerMonths": {
			reason: "A record of version 1 is three months old.",
			happens: func(r *reign) {
				r.provisionHere()
				r.detach()
				r.kill()
				r.former()
				time.Sleep(90 * day)
				r.expire()
				r.next()
			},
		},
		"EventsForbidden": {
			reason: "Whether the claim was provisioned cannot be known.",
			happens: func(r *reign) {
				r.lost(fixtures.Claim())
				r.provisioned(false)
				r.detach()
				r.cluster.Fail("list", "events", apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", nil), 0)
				r.next()
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			class, policy := fixtures.Class(), corev1.PersistentVolumeReclaimRetain
			class.ReclaimPolicy = &policy
			onReign(t, csitest.Options{}, func(t *testing.T, r *reign) {
				if !r.elected && strings.HasPrefix(name, "OtherBetween") && name != "OtherBetween" {
					return // which is Months
				}
				tc.happens(r)
				time.Sleep(70 * time.Minute) // longer than any pause
				r.want(tc.reason, []string{"pvc-uid-1"}, 0, 0)
				if events := r.eventsOn("CSIDriver"); tc.quiet != (len(events) == 0) {
					t.Errorf("%s\nevents %q", tc.reason, events)
				}
				if !tc.quiet {
					fixtures.Contains(t, tc.reason, r.eventsOn("CSIDriver"), "VolumeLeft", `"pvc-uid-1"`, "team/data", journal.AnnotationAbandon)
				}
			}, class)
		})
	}
}

// provisionHere provisions the claim.
func (r *reign) provisionHere() {
	r.t.Helper()
	r.next()
	claim := fixtures.Claim()
	claim.ResourceVersion = ""
	r.apply(claim)
	time.Sleep(time.Minute)
	r.manage()
	time.Sleep(time.Minute)
}

// restoreLease provisions the claim, and puts the Lease back as it was while the volume was made, some time ago.
func (r *reign) restoreLease(ago time.Duration) {
	r.t.Helper()
	r.next()
	var saved []*coordinationv1.Lease
	r.cluster.Inject(kubetest.Fault{Verb: "create", Resource: "persistentvolumes", Times: 1, Do: func() {
		for _, obj := range r.cluster.Objects("leases") {
			if lease, ok := obj.(*coordinationv1.Lease); ok {
				saved = append(saved, lease)
			}
		}
	}})
	claim := fixtures.Claim()
	claim.ResourceVersion = ""
	r.apply(claim)
	time.Sleep(ago)
	r.manage()
	r.detach()
	r.kill()
	if len(saved) == 0 {
		r.t.Fatal("no Lease was stored when the PersistentVolume was written")
	}
	for _, lease := range saved {
		if err := r.cluster.Drop("leases", lease.Namespace, lease.Name); err != nil {
			r.t.Fatal(err)
		}
		lease.ResourceVersion, lease.UID = "", ""
		r.apply(lease)
	}
}

// TestEverythingEnds has one answer in doubt, and then the same error each time: it ends, for a claim that waits and for one that is gone.
func TestEverythingEnds(t *testing.T) {
	for _, doubt := range []codes.Code{codes.DeadlineExceeded, codes.Unknown} {
		for _, code := range []codes.Code{codes.ResourceExhausted, codes.InvalidArgument, codes.PermissionDenied, codes.Internal, codes.Unknown} {
			for _, deleted := range []bool{true, false} {
				t.Run(fmt.Sprint(doubt, code, "Deleted", deleted), func(t *testing.T) {
					class := fixtures.Class()
					late(class)
					onReign(t, csitest.Options{Topology: map[string]string{"zone": "a"}}, func(t *testing.T, r *reign) {
						r.node("n1", "a")
						r.next()
						r.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: doubt, Times: 1})
						r.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: code})
						claim := onNode("n1")
						claim.ResourceVersion = ""
						r.apply(claim)
						time.Sleep(100 * time.Millisecond)
						if deleted {
							r.remove("persistentvolumeclaims", "team", "data")
						}
						time.Sleep(90 * time.Minute)
						before := len(r.calls("CreateVolume"))
						time.Sleep(70 * time.Minute) // longer than any pause
						switch more := len(r.calls("CreateVolume")) - before; {
						case deleted && more > 0:
							t.Errorf("%d calls for a claim that is gone for 90 minutes", more)
						case deleted:
							fixtures.Contains(t, "The administrator learns how it ended.", r.eventsOn("CSIDriver"), "VolumeSettled", `"pvc-uid-1"`, code.String())
						case code == codes.ResourceExhausted:
							r.wantUnselected()
						}
						if deleted && hasRecords(r.cluster.Objects("leases")[0]) {
							t.Errorf("a record is left")
						}
					}, class)
				})
			}
		}
	}
}

// TestMarksAreRemoved has claims with what a former version has put on them, also where no record is to be found, as after a restore from a backup: the marks go, and
// so does the claim if it is to.
func TestMarksAreRemoved(t *testing.T) {
	now := metav1.Now()
	cases := map[string]struct {
		reason string
		change func(*corev1.PersistentVolumeClaim)
		left   int
		calls  []string
	}{
		"Wanted":   {reason: "The claim gets its volume.", change: func(*corev1.PersistentVolumeClaim) {}, left: 1, calls: []string{"CreateVolume"}},
		"Bound":    {reason: "It has its volume.", change: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "other" }, left: 1},
		"Deleting": {reason: "Its volume is looked for, and the claim goes.", change: func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &now }, calls: []string{"CreateVolume", "DeleteVolume"}},
		"NoClass": {reason: "Nothing can be looked for.", change: func(c *corev1.PersistentVolumeClaim) {
			other := "none"
			c.DeletionTimestamp, c.Spec.StorageClassName = &now, &other
		}},
		"NoNode": {reason: "Nothing was ever requested.", change: func(c *corev1.PersistentVolumeClaim) {
			other := "late"
			c.DeletionTimestamp, c.Spec.StorageClassName = &now, &other
		}},
	}
	waits := fixtures.Class()
	waits.Name, waits.UID = "late", "class-late"
	late(waits)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onReign(t, csitest.Options{}, func(t *testing.T, r *reign) {
				claim := fixtures.Claim()
				mark(claim)
				claim.ResourceVersion = ""
				tc.change(claim)
				r.apply(claim)
				r.next()
				time.Sleep(time.Minute)
				left := r.cluster.Objects("persistentvolumeclaims")
				if len(left) != tc.left {
					t.Errorf("%s\n%d claims are left, want %d", tc.reason, len(left), tc.left)
				}
				for _, obj := range left {
					if _, ok := obj.GetAnnotations()[volume.AnnInProgress]; ok || slices.Contains(obj.GetFinalizers(), volume.FinalizerInProgress) {
						t.Errorf("%s\nthe claim still has the marks: %v, %v", tc.reason, obj.GetAnnotations(), obj.GetFinalizers())
					}
				}
				var calls []string
				for _, call := range r.driver.Calls() {
					if strings.HasSuffix(call.Method, "Volume") {
						calls = append(calls, call.Method)
					}
				}
				if diff := cmp.Diff(tc.calls, calls); diff != "" {
					t.Errorf("%s\ncalls (-want +got):\n%s", tc.reason, diff)
				}
			}, fixtures.Class(), waits)
		})
	}
}

// TestMarkedInDoubt has a driver answer with an error and make the volume all the same, as one does that is still working on the request of a former version: the
// claim, which is marked, is let go, and the volume is found and deleted.
func TestMarkedInDoubt(t *testing.T) {
	now := metav1.Now()
	onReign(t, csitest.Options{}, func(t *testing.T, r *reign) {
		r.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Internal, After: true, Times: 1})
		claim := fixtures.Claim()
		mark(claim)
		claim.ResourceVersion, claim.DeletionTimestamp = "", &now
		r.apply(claim)
		r.next()
		time.Sleep(time.Minute)
		if claims, volumes := r.cluster.Objects("persistentvolumeclaims"), r.driver.Volumes(); len(claims) > 0 || len(volumes) > 0 {
			t.Errorf("%d claims and the volumes %v are left", len(claims), volumes)
		}
	}, fixtures.Class())
}

// TestMarkedByATenant has a user mark claims that are newer than the process, which no former version has seen, and delete them: they leave no request in doubt, which
// would stay in the journal for an hour each.
func TestMarkedByATenant(t *testing.T) {
	onReign(t, csitest.Options{}, func(t *testing.T, r *reign) {
		r.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.OutOfRange})
		r.next()
		for n := range 20 {
			time.Sleep(time.Second)
			now, claim := metav1.Now(), fixtures.Claim()
			mark(claim)
			claim.Name, claim.UID, claim.ResourceVersion = fmt.Sprint("data-", n), types.UID(fmt.Sprint("u", n)), ""
			claim.CreationTimestamp, claim.DeletionTimestamp = now, &now
			r.apply(claim)
		}
		time.Sleep(time.Minute)
		if claims := r.cluster.Objects("persistentvolumeclaims"); len(claims) > 0 {
			t.Errorf("%d claims are left", len(claims))
		}
		for _, lease := range r.cluster.Objects("leases") {
			if hasRecords(lease) {
				t.Errorf("the journal has records: %v", lease.GetAnnotations())
			}
		}
	}, fixtures.Class())
}

// optionsOn returns the options of a driver with an instance on each node; empty: with one for all.
func optionsOn(node string) csitest.Options {
	if node == "" {
		return csitest.Options{}
	}
	return csitest.Options{NodeID: node, Topology: map[string]string{"node": node}}
}

// TestForged has a user put on a claim what a former version did, with a request of his own: each call of the driver is what the claim and its class ask for.
func TestForged(t *testing.T) {
	const forged = `{"version":1,"records":[{"uid":"uid-1","volume":"*/../pvc-of-the-victim","claim":"team/data","since":1,"bytes":1099511627776,"request":"0a","secret":"0b","source":"0c"}],` +
		`"parts":{"0a":"EgAaBhoCCAcSACIPCgZzdWJEaXISBXBvdGhlcg==","0b":{"namespace":"storage","name":"admin"},"0c":{"kind":"VolumeSnapshot","namespace":"other","name":"s"}}}`
	now := metav1.Now()
	class := fixtures.Class()
	class.Parameters = map[string]string{"pool": "fast"}
	for _, deleting := range []bool{true, false} {
		for _, node := range []string{"", "n1"} {
			t.Run(fmt.Sprint("Deleting", deleting, node), func(t *testing.T) {
				onReign(t, optionsOn(node), func(t *testing.T, r *reign) {
					r.args = map[string]string{"node": node}
					claim := fixtures.Claim()
					mark(claim)
					claim.ResourceVersion, claim.Annotations[volume.AnnInProgress] = "", forged
					claim.Annotations[view.AnnSelectedNode] = node
					if deleting {
						claim.DeletionTimestamp = &now
					}
					r.apply(claim)
					r.next()
					time.Sleep(10 * time.Minute)
					creates := r.calls("CreateVolume")
					if len(creates) != 1 {
						t.Errorf("%d calls of CreateVolume, want 1:\n%s", len(creates), strings.Join(creates, "\n"))
					}
					for _, call := range slices.Concat(creates, r.calls("DeleteVolume")) {
						if !strings.Contains(call, "pvc-uid-1") || strings.Contains(call, "victim") || strings.Contains(call, "subDir") || strings.Contains(call, "1099511627776") || strings.Contains(call, "snapshot") {
							t.Errorf("call %s", call)
						}
					}
				}, class)
			})
		}
	}
}

// TestFailingDriver has a driver that always fails, and a controller of another kind that changes the claim all the time: with each code, in each mode, the driver is asked no more
// often than the pauses allow, and the API server is written to accordingly.
func TestFailingDriver(t *testing.T) {
	for code := codes.Code(1); code <= codes.Unauthenticated; code++ {
		for _, node := range []string{"", "n1"} {
			t.Run(fmt.Sprint(code, node), func(t *testing.T) {
				onReign(t, optionsOn(node), func(t *testing.T, r *reign) {
					r.args = map[string]string{"node": node}
					r.next()
					r.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: code})
					claim := fixtures.Claim()
					claim.ResourceVersion, claim.Annotations[view.AnnSelectedNode] = "", node
					r.apply(claim)
					r.cluster.ResetWrites()
					for n := range 120 {
						r.merge("persistentvolumeclaims", claim, fmt.Sprintf(`{"metadata":{"labels":{"seen":"%d"}}}`, n))
						time.Sleep(time.Second)
					}
					// after 1, 2, 4, 8, 16 and 32 seconds at least; the next one is 64 seconds later
					if calls := len(r.calls("CreateVolume")); calls > 7 {
						t.Errorf("%d calls in two minutes, want at most 7", calls)
					}
					if writes := len(r.cluster.Writes()); writes > 40 {
						t.Errorf("%d writes in two minutes, want at most 40", writes)
					}
				}, fixtures.Class())
			})
		}
	}
}

// TestProvisionedSince reads events that a user may have made as well: the worst that these can do is to keep a volume, and to be reported.
func TestProvisionedSince(t *testing.T) {
	from := func(hosts ...string) (items []corev1.Event) {
		for _, host := range hosts {
			items = append(items, corev1.Event{Source: corev1.EventSource{Host: host}})
		}
		return items
	}
	for name, tc := range map[string]struct {
		reason string
		node   view.Node
		items  []corev1.Event
		more   string
		want   string
	}{
		"None":       {reason: "Nothing speaks for it."},
		"One":        {reason: "Whichever instance it was.", items: from("a"), want: "provisioned since"},
		"Own":        {reason: "The own node has it.", node: newNode(), items: from("n2", "n1"), want: "provisioned since"},
		"Elsewhere":  {reason: "That is another volume.", node: newNode(), items: from("n2", "n3")},
		"NoHost":     {reason: "Nobody says whose it is.", node: newNode(), items: from(""), want: "provisioned since"},
		"TooMany":    {reason: "What was not read may speak for it.", node: newNode(), items: from("n2"), more: "page 2", want: "more than 500"},
		"OwnAndMore": {reason: "One is enough.", node: newNode(), items: from("n1"), more: "page 2", want: "provisioned since"},
	} {
		events := &corev1.EventList{ListMeta: metav1.ListMeta{Continue: tc.more}, Items: tc.items}
		if got := provisionedSince(events, tc.node); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %s\n%q, want %q", name, tc.reason, got, tc.want)
		}
	}
}
