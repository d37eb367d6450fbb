package controller

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/capability"
)

func TestNextStep(t *testing.T) {
	tests := map[string]struct {
		reason string
		va     *storagev1.VolumeAttachment
		forced bool
		want   step
	}{
		"New":              {reason: "nothing was done yet", va: newVA(), want: stepAttach},
		"Interrupted":      {reason: "the finalizer is there, the call may not have been made", va: newVA(vaFinalized), want: stepAttach},
		"Attached":         {reason: "done", va: newVA(vaFinalized, vaAttached), want: stepNone},
		"AttachedByOthers": {reason: "attached by an attacher that knew no finalizer", va: newVA(vaAttached), want: stepNone},
		"Forced":           {reason: "the driver says it is not attached", va: newVA(vaFinalized, vaAttached), forced: true, want: stepAttach},
		"AttachAgainFailed": {
			reason: "the second attach did not succeed, also if the process has forgotten that it was forced",
			va:     newVA(vaFinalized, vaAttached, vaAttachError("x")), want: stepAttach,
		},
		"Deleting":          {reason: "the usual detach", va: newVA(vaFinalized, vaAttached, vaDeleting), want: stepDetach},
		"DeletingUncertain": {reason: "an attach call may have had an effect that nobody saw", va: newVA(vaFinalized, vaDeleting), want: stepDetach},
		"DeletingUntouched": {reason: "no finalizer, no attach call", va: newVA(vaDeleting), want: stepNone},
		"DeletingForced":    {reason: "nothing is attached to what is being deleted", va: newVA(vaDeleting), forced: true, want: stepNone},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := nextStep(tt.va, testFinalizer, tt.forced); got != tt.want {
				t.Errorf("%s: got %v, want %v", tt.reason, got, tt.want)
			}
		})
	}
}

func singleWriter(fsType string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}},
	}
}

func TestPlanAttach(t *testing.T) {
	readonly := func(pv *corev1.PersistentVolume) { pv.Spec.CSI.ReadOnly = true }
	request := func(change func(*csi.ControllerPublishVolumeRequest)) *csi.ControllerPublishVolumeRequest {
		r := &csi.ControllerPublishVolumeRequest{
			VolumeId: "vol-1", NodeId: "id-1", VolumeCapability: singleWriter("ext4"), VolumeContext: map[string]string{"tier": "gold"},
		}
		change(r)
		return r
	}
	same := func(*csi.ControllerPublishVolumeRequest) {}
	tests := map[string]struct {
		reason  string
		va      *storagev1.VolumeAttachment
		pv      *corev1.PersistentVolume
		nodeID  string
		can     Features
		publish *csi.ControllerPublishVolumeRequest
		stale   *csi.ControllerUnpublishVolumeRequest
		secret  *corev1.SecretReference
		pvPatch string
		vaPatch string
		err     error
	}{
		"First": {
			reason: "finalizers on both, and all that detaching needs, before the call",
			va:     newVA(), pv: newPV(pvSecret("ns", "keys")), nodeID: "id-1",
			publish: request(same), secret: &corev1.SecretReference{Namespace: "ns", Name: "keys"},
			pvPatch: `{"metadata":{"finalizers":["external-attacher/hostpath-csi-example"],"uid":"pv-uid"}}`,
			vaPatch: `{"metadata":{"annotations":{"csi.alpha.kubernetes.io/node-id":"id-1",` +
				`"csi.longshore.dev/publish-secret":"ns/keys","csi.longshore.dev/volume-handle":"vol-1"},` +
				`"finalizers":["external-attacher/hostpath-csi-example"],"uid":"va-uid"}}`,
		},
		"Again": {
			reason: "nothing is written twice",
			va:     newVA(vaFinalized, vaAnnotated(AnnotationNodeID, "id-1", AnnotationVolumeHandle, "vol-1")), pv: newPV(pvFinalized), nodeID: "id-1",
			publish: request(same),
		},
		"NodeReplaced": {
			reason: "the attempt on the former machine is undone, then recorded again",
			va:     newVA(vaFinalized, vaAnnotated(AnnotationNodeID, "id-0", AnnotationVolumeHandle, "vol-1")), pv: newPV(pvFinalized), nodeID: "id-1",
			publish: request(same), stale: &csi.ControllerUnpublishVolumeRequest{VolumeId: "vol-1", NodeId: "id-0"},
			vaPatch: `{"metadata":{"annotations":{"csi.alpha.kubernetes.io/node-id":"id-1"},"uid":"va-uid"}}`,
		},
		"StaleButInUse": {
			reason: "the volume is in use under its former ID: nothing may be taken away from the node",
			va:     newVA(vaFinalized, vaAttached, vaAnnotated(AnnotationNodeID, "id-0", AnnotationVolumeHandle, "vol-0")), pv: newPV(pvFinalized), nodeID: "id-1",
			publish: request(same),
			vaPatch: `{"metadata":{"annotations":{"csi.alpha.kubernetes.io/node-id":"id-1","csi.longshore.dev/volume-handle":"vol-1"},"uid":"va-uid"}}`,
		},
		"NodeAnnotatedByHand": {
			reason: "without our finalizer no call was made, so there is nothing to undo",
			va:     newVA(vaAnnotated(AnnotationNodeID, "id-0", AnnotationVolumeHandle, "vol-1")), pv: newPV(pvFinalized), nodeID: "id-1",
			publish: request(same),
			vaPatch: `{"metadata":{"annotations":{"csi.alpha.kubernetes.io/node-id":"id-1"},` +
				`"finalizers":["external-attacher/hostpath-csi-example"],"uid":"va-uid"}}`,
		},
		"ReadonlyUnknown": {
			reason: "a driver without PUBLISH_READONLY is not asked for it",
			va:     newVA(vaFinalized, vaAnnotated(AnnotationNodeID, "id-1", AnnotationVolumeHandle, "vol-1")), pv: newPV(pvFinalized, readonly), nodeID: "id-1",
			publish: request(same),
		},
		"Readonly": {
			reason: "a driver with PUBLISH_READONLY is",
			va:     newVA(vaFinalized, vaAnnotated(AnnotationNodeID, "id-1", AnnotationVolumeHandle, "vol-1")), pv: newPV(pvFinalized, readonly), nodeID: "id-1",
			can: Features{Readonly: true}, publish: request(func(r *csi.ControllerPublishVolumeRequest) { r.Readonly = true }),
		},
		"PVDeleting": {reason: "a volume that goes is not attached", va: newVA(), pv: newPV(pvDeleting, pvFinalized), nodeID: "id-1", err: errSourceDeleting},
		"NoNode":     {reason: "the driver is not on the node", va: newVA(), pv: newPV(), err: errNodeUnknown},
		"NoMode": {
			reason: "access modes without a counterpart",
			va:     newVA(), pv: newPV(func(pv *corev1.PersistentVolume) { pv.Spec.AccessModes = nil }), nodeID: "id-1", err: capability.ErrAccessModes,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			source, err := newSource(tt.va, tt.pv)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := planAttach(attachInput{va: tt.va, source: source, nodeID: tt.nodeID, recorded: tt.va.Annotations[AnnotationNodeID], features: tt.can, finalizer: testFinalizer})
			if !errors.Is(err, tt.err) {
				t.Fatalf("%s: error %v, want %v", tt.reason, err, tt.err)
			}
			if diff := cmp.Diff(tt.publish, plan.publish, protocmp.Transform()); diff != "" {
				t.Errorf("%s: publish (-want +got):\n%s", tt.reason, diff)
			}
			if diff := cmp.Diff(tt.stale, plan.stale, protocmp.Transform()); diff != "" {
				t.Errorf("%s: stale (-want +got):\n%s", tt.reason, diff)
			}
			if diff := cmp.Diff(tt.secret, plan.secret); diff != "" {
				t.Errorf("%s: secret (-want +got):\n%s", tt.reason, diff)
			}
			if diff := cmp.Diff(tt.pvPatch, string(plan.pvPatch)); diff != "" {
				t.Errorf("%s: PV patch (-want +got):\n%s", tt.reason, diff)
			}
			if diff := cmp.Diff(tt.vaPatch, string(plan.vaPatch)); diff != "" {
				t.Errorf("%s: VA patch (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func TestPlanAttachInline(t *testing.T) {
	va := newVA(vaInline(&newPV().Spec))
	source, err := newSource(va, nil)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := planAttach(attachInput{va: va, source: source, nodeID: "id-1", finalizer: testFinalizer})
	if err != nil || plan.pvPatch != nil || plan.vaPatch == nil || plan.publish.GetVolumeId() != "vol-1" {
		t.Errorf("an inline volume has no PersistentVolume to write to: %+v, %v", plan, err)
	}
}

// pvCreatedLater is a PersistentVolume that has got its name when the VolumeAttachment was there.
func pvCreatedLater(pv *corev1.PersistentVolume) { pv.CreationTimestamp = metav1.Now() }

func TestPlanDetach(t *testing.T) {
	tests := map[string]struct {
		reason    string
		va        *storagev1.VolumeAttachment
		pv        *corev1.PersistentVolume
		nodeIDs   []string
		unpublish []*csi.ControllerUnpublishVolumeRequest
		secret    *corev1.SecretReference
		err       error
	}{
		"FromPV": {
			reason: "attached by an attacher that recorded no handle",
			va:     newVA(vaFinalized, vaDeleting), pv: newPV(pvSecret("ns", "keys")), nodeIDs: []string{"id-1"},
			unpublish: []*csi.ControllerUnpublishVolumeRequest{{VolumeId: "vol-1", NodeId: "id-1"}},
			secret:    &corev1.SecretReference{Namespace: "ns", Name: "keys"},
		},
		"FromRecord": {
			reason: "the PersistentVolume is gone",
			va:     newVA(vaFinalized, vaDeleting, vaAnnotated(AnnotationVolumeHandle, "vol-1", AnnotationPublishSecret, "ns/keys")), nodeIDs: []string{"id-1"},
			unpublish: []*csi.ControllerUnpublishVolumeRequest{{VolumeId: "vol-1", NodeId: "id-1"}},
			secret:    &corev1.SecretReference{Namespace: "ns", Name: "keys"},
		},
		"RecordWins": {
			reason: "the PersistentVolume was re-created with another volume: its handle is not the one attached, its secret is the one allowed",
			va:     newVA(vaFinalized, vaDeleting, vaAnnotated(AnnotationVolumeHandle, "vol-0")), pv: newPV(pvSecret("ns", "keys"), pvCreatedLater), nodeIDs: []string{"id-1"},
			unpublish: []*csi.ControllerUnpublishVolumeRequest{{VolumeId: "vol-0", NodeId: "id-1"}},
			secret:    &corev1.SecretReference{Namespace: "ns", Name: "keys"},
		},
		"ForgedHandle": {
			reason: "a user who may patch VolumeAttachments must not choose the volume that is detached",
			va:     newVA(vaFinalized, vaDeleting, vaAnnotated(AnnotationVolumeHandle, "vol-2")), pv: newPV(), nodeIDs: []string{"id-1"},
			unpublish: []*csi.ControllerUnpublishVolumeRequest{{VolumeId: "vol-1", NodeId: "id-1"}},
		},
		"ForgedSecret": {
			reason: "a user who may patch VolumeAttachments must not choose the secret that the driver gets",
			va:     newVA(vaFinalized, vaDeleting, vaAnnotated(AnnotationVolumeHandle, "vol-1", AnnotationPublishSecret, "kube-system/token")),
			pv:     newPV(pvSecret("ns", "keys")), nodeIDs: []string{"id-1"},
			unpublish: []*csi.ControllerUnpublishVolumeRequest{{VolumeId: "vol-1", NodeId: "id-1"}},
			secret:    &corev1.SecretReference{Namespace: "ns", Name: "keys"},
		},
		"ForgedSecretForNone": {
			reason: "the volume has no secret, so there is none to send",
			va:     newVA(vaFinalized, vaDeleting, vaAnnotated(AnnotationVolumeHandle, "vol-1", AnnotationPublishSecret, "kube-system/token")),
			pv:     newPV(), nodeIDs: []string{"id-1"},
			unpublish: []*csi.ControllerUnpublishVolumeRequest{{VolumeId: "vol-1", NodeId: "id-1"}},
		},
		"ForgedSecretInline": {
			reason: "the spec of the VolumeAttachment cannot be changed, its annotations can",
			va: newVA(vaFinalized, vaDeleting, vaInline(&newPV(pvSecret("ns", "keys")).Spec),
				vaAnnotated(AnnotationVolumeHandle, "vol-1", AnnotationPublishSecret, "kube-system/token")),
			nodeIDs:   []string{"id-1"},
			unpublish: []*csi.ControllerUnpublishVolumeRequest{{VolumeId: "vol-1", NodeId: "id-1"}},
			secret:    &corev1.SecretReference{Namespace: "ns", Name: "keys"},
		},
		"NothingKnown": {reason: "no PersistentVolume, no record", va: newVA(vaFinalized, vaDeleting), nodeIDs: []string{"id-1"}, err: errHandleUnknown},
		"NoNode":       {reason: "unpublish from all nodes is not ours to ask for", va: newVA(vaFinalized, vaDeleting), pv: newPV(), err: errNodeUnknown},
		"Foreign": {
			reason: "a volume of another driver cannot be detached by ours",
			va:     newVA(vaFinalized, vaDeleting), pv: newPV(func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "other" }), nodeIDs: []string{"id-1"},
			err: errSourceUnusable,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			source, _ := newSource(tt.va, tt.pv)
			plan, err := planDetach(detachInput{va: tt.va, source: source, nodeIDs: tt.nodeIDs, finalizer: testFinalizer})
			if !errors.Is(err, tt.err) {
				t.Fatalf("%s: error %v, want %v", tt.reason, err, tt.err)
			}
			if diff := cmp.Diff(tt.unpublish, plan.unpublish, protocmp.Transform()); diff != "" {
				t.Errorf("%s: unpublish (-want +got):\n%s", tt.reason, diff)
			}
			if diff := cmp.Diff(tt.secret, plan.secret); diff != "" {
				t.Errorf("%s: secret (-want +got):\n%s", tt.reason, diff)
			}
			if (plan.vaPatch != nil) != (tt.err == nil) || plan.vaPatch != nil && !json.Valid(plan.vaPatch) {
				t.Errorf("%s: VA patch %q", tt.reason, plan.vaPatch)
			}
		})
	}
}

func TestSecretRefRoundTrip(t *testing.T) {
	for _, ref := range []*corev1.SecretReference{nil, {Namespace: "ns", Name: "keys"}, {Name: "keys"}} {
		if diff := cmp.Diff(ref, parseSecretRef(formatSecretRef(ref))); diff != "" {
			t.Errorf("a reference came back as another (-want +got):\n%s", diff)
		}
	}
}

func TestPlanRecord(t *testing.T) {
	none := func(pv *corev1.PersistentVolume) { pv.Spec.CSI = nil }
	tests := map[string]struct {
		reason string
		va     *storagev1.VolumeAttachment
		pv     *corev1.PersistentVolume
		want   string
	}{
		"Attached": {
			reason: "the external-attacher has recorded the node ID only", va: newVA(vaFinalized, vaAttached, vaAnnotated(AnnotationNodeID, "id-1")), pv: newPV(pvDeleting),
			want: `{"metadata":{"annotations":{"csi.longshore.dev/volume-handle":"vol-1"},"uid":"va-uid"}}`,
		},
		"Secret": {
			reason: "detaching needs the secret as well", va: newVA(vaFinalized, vaAttached), pv: newPV(pvDeleting, pvSecret("ns", "keys")),
			want: `{"metadata":{"annotations":{"csi.longshore.dev/publish-secret":"ns/keys","csi.longshore.dev/volume-handle":"vol-1"},"uid":"va-uid"}}`,
		},
		"Uncertain": {
			reason: "the call of the external-attacher may have had an effect", va: newVA(vaFinalized, vaAttachError("timeout")), pv: newPV(pvDeleting),
			want: `{"metadata":{"annotations":{"csi.longshore.dev/volume-handle":"vol-1"},"uid":"va-uid"}}`,
		},
		"Detaching": {
			reason: "detaching may have to be retried without the volume", va: newVA(vaFinalized, vaAttached, vaDeleting), pv: newPV(pvDeleting),
			want: `{"metadata":{"annotations":{"csi.longshore.dev/volume-handle":"vol-1"},"uid":"va-uid"}}`,
		},
		"Recorded":      {reason: "a record is final: it has the volume in use", va: newVA(vaFinalized, vaAttached, vaAnnotated(AnnotationVolumeHandle, "vol-0")), pv: newPV(pvDeleting)},
		"NeverAttached": {reason: "there is nothing to detach", va: newVA(), pv: newPV(pvDeleting)},
		"NotDeleting":   {reason: "the volume itself has everything", va: newVA(vaFinalized, vaAttached), pv: newPV()},
		"NotCSI":        {reason: "no driver can detach it", va: newVA(vaFinalized, vaAttached), pv: newPV(pvDeleting, none)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			patch, err := planRecord(tt.va, tt.pv, testFinalizer)
			if err != nil || string(patch) != tt.want {
				t.Errorf("%s: got %s, %v, want %s", tt.reason, patch, err, tt.want)
			}
		})
	}
}

func TestIsReleasable(t *testing.T) {
	plugin := func(pv *corev1.PersistentVolume) {
		pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}
	}
	otherPlugin := func(pv *corev1.PersistentVolume) {
		pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "vol-1"}}
	}
	migratedTo := func(driver string) func(*corev1.PersistentVolume) {
		return func(pv *corev1.PersistentVolume) { pv.Annotations = map[string]string{AnnotationMigratedTo: driver} }
	}
	finalized := func(pv *corev1.PersistentVolume) { pv.Finalizers = []string{FinalizerName(ebsDriver)} }

	tests := map[string]struct {
		reason string
		driver string
		pv     *corev1.PersistentVolume
		want   bool
	}{
		"Deleting":    {reason: "the volume shall go", driver: testDriver, pv: newPV(pvDeleting, pvFinalized), want: true},
		"NotDeleting": {reason: "the finalizer serves the next attachment as well", driver: testDriver, pv: newPV(pvFinalized)},
		"NotOurs":     {reason: "there is nothing to remove", driver: testDriver, pv: newPV(pvDeleting)},
		"Migrated":    {reason: "the driver serves the volume", driver: ebsDriver, pv: newPV(plugin, finalized, migratedTo(ebsDriver))},
		"RolledBack":  {reason: "the plugin serves the volume again", driver: ebsDriver, pv: newPV(plugin, finalized), want: true},
		"MovedOn":     {reason: "another driver serves the volume", driver: ebsDriver, pv: newPV(plugin, finalized, migratedTo("other")), want: true},
		"OtherPlugin": {reason: "our driver never had to do with such volumes", driver: ebsDriver, pv: newPV(otherPlugin, finalized)},
		"RolledBackUnused": {
			reason: "never attached by the driver", driver: ebsDriver, pv: newPV(plugin),
		},
		"RolledBackDeleting": {
			reason: "both are reasons", driver: ebsDriver, pv: newPV(plugin, finalized, pvDeleting), want: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for form, pv := range map[string]*corev1.PersistentVolume{"read": tt.pv, "cached": slimPV(tt.driver)(tt.pv.DeepCopy())} {
				if got := isReleasable(tt.driver, pv); got != tt.want {
					t.Errorf("%s: %s: got %t", form, tt.reason, got)
				}
			}
		})
	}
}
