package controller

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

func TestDetachNodeIDs(t *testing.T) {
	tests := map[string]struct {
		reason  string
		csiNode *storagev1.CSINode
		va      *storagev1.VolumeAttachment
		detach  []string
	}{
		"Registered": {
			reason: "the driver is registered", csiNode: newCSINode("other", "x", testDriver, "id-1"), va: newVA(),
			detach: []string{"id-1"},
		},
		"NotRegistered": {
			reason: "another driver's ID is of no use", csiNode: newCSINode("other", "x"), va: newVA(),
		},
		"NoCSINode": {
			reason: "the node is gone, the VolumeAttachment remembers", va: newVA(vaAnnotated(AnnotationNodeID, "id-0")),
			detach: []string{"id-0"},
		},
		"Replaced": {
			reason:  "the recorded one first",
			csiNode: newCSINode(testDriver, "id-1"), va: newVA(vaAnnotated(AnnotationNodeID, "id-0")),
			detach: []string{"id-0", "id-1"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := detachNodeIDs(tt.va.Annotations[AnnotationNodeID], csiNodeID(tt.csiNode, testDriver)); !slices.Equal(got, tt.detach) {
				t.Errorf("%s: detachNodeIDs = %q, want %q", tt.reason, got, tt.detach)
			}
		})
	}
}

func TestAnnotatedNodeID(t *testing.T) {
	tests := map[string]struct {
		reason     string
		annotation *string
		want       string
		wantErr    bool
	}{
		"None":     {reason: "no annotation, no ID"},
		"Ours":     {reason: "the driver's entry counts", annotation: new(`{"a":"1","hostpath.csi.example":"id-1"}`), want: "id-1"},
		"Others":   {reason: "others' entries do not", annotation: new(`{"a":"1"}`)},
		"NotJSON":  {reason: "a broken annotation is reported", annotation: new(`id-1`), wantErr: true},
		"NotFlat":  {reason: "an ID is a string", annotation: new(`{"hostpath.csi.example":7}`), wantErr: true},
		"EmptyMap": {reason: "no entry, no ID", annotation: new(`{}`)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{}
			if tt.annotation != nil {
				node.Annotations = map[string]string{AnnotationNodeIDs: *tt.annotation}
			}
			got, err := annotatedNodeID(node, testDriver)
			if got != tt.want || (err != nil) != tt.wantErr {
				t.Errorf("%s: got %q, %v", tt.reason, got, err)
			}
		})
	}
}

func FuzzAnnotatedNodeID(f *testing.F) {
	for _, seed := range []string{`{"hostpath.csi.example":"id-1"}`, `{}`, `null`, `[]`, `{"a":`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		node := &corev1.Node{}
		node.Annotations = map[string]string{AnnotationNodeIDs: annotation}
		id, err := annotatedNodeID(node, testDriver)
		if err != nil && id != "" {
			t.Errorf("annotation %q gives ID %q and error %v", annotation, id, err)
		}
	})
}
