package claim

import (
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// TestGateTurnedOff has the record of a volume from a source in another namespace, from a process whose gate was on: the claim does not get that volume before it may
// use the source, and nothing deletes it meanwhile.
func TestGateTurnedOff(t *testing.T) {
	store, claim := "store", fixtures.Claim()
	claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: view.KindClaim, Name: "data", Namespace: &store}
	for name, on := range map[string]bool{"Off": false, "OnWithoutGrant": true} {
		t.Run(name, func(t *testing.T) {
			settings := rigSettings()
			settings.Features.CrossNamespace = on
			onRigWith(t, csitest.Options{}, settings, func(t *testing.T, r *rig) {
				intent := newIntent(journal.Creating)
				intent.Spec.Claim, intent.Recovered, intent.Request = claim, true, &csi.CreateVolumeRequest{
					Name: "pvc-uid-1", VolumeCapabilities: []*csi.VolumeCapability{{
						AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
						AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
					}},
				}
				if err := r.cfg.Journal.Open(fixtures.Quiet(t), *intent); err != nil {
					t.Fatal(err)
				}
				if _, err := r.reconcileClaim(fixtures.Quiet(t), keyOf(claim)); err == nil {
					t.Error("no error has the queue look again")
				}
				fixtures.Contains(t, "The user learns why it waits.", r.Events.Take(), `namespace "store"`)
				if _, open := r.cfg.Journal.Get(claim.UID); !open || !slices.Equal(r.Calls(), []string{"CreateVolume"}) || r.StoredPV() != nil {
					t.Errorf("calls %q, in progress: %v, PersistentVolume %v: want the request of the record, and nothing else", r.Calls(), open, r.StoredPV())
				}
			}, claim, fixtures.Class())
		})
	}
}

// TestNeeded looks at each thing that keeps a source alone.
func TestNeeded(t *testing.T) {
	ref := volume.SourceRef{Kind: view.KindClaim, Namespace: "team", Name: "source"}
	waiting := func(node string) *corev1.PersistentVolumeClaim {
		claim := fixtures.Claim()
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: view.KindClaim, Name: "source"}
		if node != "" {
			claim.Annotations[view.AnnSelectedNode] = node
		}
		return claim
	}
	abroad := func(node string) *corev1.PersistentVolumeClaim {
		claim := waiting(node)
		claim.Namespace, claim.Spec.DataSource = "elsewhere", nil
		claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: view.KindClaim, Name: "source", Namespace: &ref.Namespace}
		return claim
	}
	cases := map[string]struct {
		reason string
		node   view.Node
		claim  *corev1.PersistentVolumeClaim
		grant  bool
		begin  bool
		open   bool
		want   bool
	}{
		"Nothing":       {reason: "Nobody wants anything."},
		"NotBegun":      {reason: "A claim that came later has not been begun.", claim: waiting("")},
		"Found":         {reason: "One that was there at the start may have been.", claim: waiting(""), begin: true, want: true},
		"Open":          {reason: "A volume is under way for a claim that is gone.", open: true, want: true},
		"Own":           {reason: "The own node has not begun it.", node: newNode(), claim: waiting("n1")},
		"Other":         {reason: "Another node may have.", node: newNode(), claim: waiting("n2"), want: true},
		"OtherAll":      {reason: "There is no other instance.", claim: waiting("n2")},
		"Granted":       {reason: "A claim of another namespace may have been begun.", claim: abroad(""), grant: true, begin: true, want: true},
		"Stranger":      {reason: "One that may not use the source must not keep it.", claim: abroad(""), begin: true},
		"OtherStranger": {reason: "The other node cannot have begun it.", node: newNode(), claim: abroad("n2")},
		"OtherGranted":  {reason: "It may have.", node: newNode(), claim: abroad("n2"), grant: true, want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			settings := rigSettings()
			settings.Node, settings.Features.CrossNamespace = tc.node, true
			var objs []runtime.Object
			if tc.grant {
				objs = append(objs, newGrant(ref.Namespace, "elsewhere"))
			}
			if tc.claim != nil {
				objs = append(objs, tc.claim)
			}
			onRigWith(t, csitest.Options{NodeID: tc.node.Name, Topology: tc.node.Segments}, settings, func(t *testing.T, r *rig) {
				if tc.begin {
					r.begin()
					r.dropSourceOf(fixtures.Quiet(t), claimState{claim: tc.claim})
				}
				if tc.open {
					intent := newIntent(journal.Undoing)
					intent.Spec.Source = &volume.Source{Ref: ref}
					if err := r.cfg.Journal.Open(fixtures.Quiet(t), *intent); err != nil {
						t.Fatal(err)
					}
				}
				if got := r.sources.Needed(fixtures.Quiet(t), ref); got != tc.want {
					t.Errorf("%s\nneeded: %v, want %v", tc.reason, got, tc.want)
				}
				if r.sources.Needed(fixtures.Quiet(t), volume.SourceRef{Kind: view.KindSnapshot, Namespace: "team", Name: "source"}) {
					t.Errorf("%s\na snapshot of the same name is another source", tc.reason)
				}
			}, objs...)
		})
	}
}

// newGrant returns a ReferenceGrant for claims of another namespace to clone those in its own.
func newGrant(namespace, from string) *kubeapi.ReferenceGrant {
	return &kubeapi.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "clones"}, Spec: kubeapi.ReferenceGrantSpec{
		From: []kubeapi.ReferenceGrantFrom{{Kind: "PersistentVolumeClaim", Namespace: from}}, To: []kubeapi.ReferenceGrantTo{{Kind: "PersistentVolumeClaim"}},
	}}
}
