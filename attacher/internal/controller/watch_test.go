package controller

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/csiclient"
)

func TestInputs(t *testing.T) {
	tests := map[string]struct {
		reason string
		after  *storagev1.VolumeAttachment
		want   bool
	}{
		"Deleted":     {reason: "it is to be detached", after: newVA(vaVersion("2"), vaDeleting), want: true},
		"Recreated":   {reason: "another object under the same name", after: newVA(vaVersion("2"), vaUID("new")), want: true},
		"OwnError":    {reason: "our own error must not end the backoff", after: newVA(vaVersion("2"), vaAttachError("x"))},
		"OwnPrepare":  {reason: "our own finalizer and annotations change nothing", after: newVA(vaVersion("2"), vaFinalized, vaAnnotated(AnnotationNodeID, "id"))},
		"OwnAttached": {reason: "our own success changes nothing", after: newVA(vaVersion("2"), vaAttached)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := inputsOf(newVA()) != inputsOf(tt.after); got != tt.want {
				t.Errorf("%s: ends the backoff: %t", tt.reason, got)
			}
		})
	}
}

func TestSlim(t *testing.T) {
	own := newVA(vaFinalized, vaAttached, vaAnnotated(AnnotationNodeID, "id"))
	labeled := own.DeepCopy()
	labeled.Finalizers = append(labeled.Finalizers, "example.com/others")
	labeled.Labels, labeled.Annotations["kubectl.kubernetes.io/last-applied-configuration"] = map[string]string{"team": "storage"}, "{}"
	slim := slimVA(testDriver)(labeled)
	if !hasFinalizer(slim, testFinalizer) || hasFinalizer(slimVA(testDriver)(newVA()), testFinalizer) {
		t.Error("the cache does not tell objects with the finalizer from those without")
	}
	slim.Finalizers = own.Finalizers
	if diff := cmp.Diff(own, slim); diff != "" {
		t.Errorf("of our own objects only metadata is dropped that is not read (-want +got):\n%s", diff)
	}
	foreign := slimVA("other")(newVA(vaFinalized, vaAttached, vaAttachError("x")))
	want := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va-1", UID: "va-uid", ResourceVersion: "1"},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: testDriver},
	}
	if diff := cmp.Diff(want, foreign); diff != "" {
		t.Errorf("only the name of others' is needed (-want +got):\n%s", diff)
	}
	node := slimCSINode(testDriver)(newCSINode("other", "x", testDriver, "id-1"))
	if len(node.Spec.Drivers) != 1 || csiNodeID(node, testDriver) != "id-1" {
		t.Errorf("drivers of others are not needed: %v", node.Spec.Drivers)
	}
}

func TestIndexVA(t *testing.T) {
	index := indexVA(testDriver)
	inline := newVA(vaInline(&newPV().Spec))
	foreign := newVA(func(va *storagev1.VolumeAttachment) { va.Spec.Attacher = "other" })
	for name, tt := range map[string]struct {
		va       *storagev1.VolumeAttachment
		pv, node []string
	}{
		"Ours":    {va: newVA(), pv: []string{"pv-1"}, node: []string{"node-1"}},
		"Inline":  {va: inline, node: []string{"node-1"}},
		"Foreign": {va: foreign},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.pv, index[indexPV](tt.va)); diff != "" {
				t.Errorf("by volume (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.node, index[indexNode](tt.va)); diff != "" {
				t.Errorf("by node (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFeaturesOf(t *testing.T) {
	controller := map[csi.PluginCapability_Service_Type]bool{csi.PluginCapability_Service_CONTROLLER_SERVICE: true}
	type caps = map[csi.ControllerServiceCapability_RPC_Type]bool
	const (
		publish   = csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
		readonly  = csi.ControllerServiceCapability_RPC_PUBLISH_READONLY
		writers   = csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
		list      = csi.ControllerServiceCapability_RPC_LIST_VOLUMES
		listNodes = csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES
	)
	tests := map[string]struct {
		reason string
		info   *csiclient.Info
		want   Features
	}{
		"Unknown":      {reason: "the driver has not answered yet"},
		"NodeOnly":     {reason: "no controller service", info: &csiclient.Info{Controller: caps{publish: true}}},
		"Provisioning": {reason: "a controller that does not attach", info: &csiclient.Info{Plugin: controller, Controller: caps{list: true, listNodes: true, readonly: true}}},
		"Attaching":    {reason: "the least", info: &csiclient.Info{Plugin: controller, Controller: caps{publish: true, list: true}}, want: Features{Publish: true}},
		"Everything": {
			reason: "the most", info: &csiclient.Info{Plugin: controller, Controller: caps{publish: true, list: true, listNodes: true, readonly: true, writers: true}},
			want: Features{Publish: true, Readonly: true, SingleNodeMultiWriter: true, ListPublished: true},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, FeaturesOf(tt.info)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}
