package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

func expected(name string, attached bool) expectation {
	return expectation{name: name, uid: types.UID(name), handle: "vol-" + name, nodeID: "id-1", attached: attached}
}

// recorded is expected, attached under another node ID than the registered one.
func recorded(name, nodeID string) expectation {
	e := expected(name, true)
	e.recordedNodeID = nodeID
	return e
}

func names(list []expectation) []string {
	var names []string
	for _, e := range list {
		names = append(names, e.name)
	}
	return names
}

func TestMismatches(t *testing.T) {
	published := publications{{"vol-a", "id-1"}: true, {"vol-b", "id-1"}: false, {"vol-b", "id-2"}: true, {"vol-c", "id-1"}: false}
	tests := map[string]struct {
		reason   string
		expected []expectation
		changed  string
		want     []string
	}{
		"Right":       {reason: "attached and listed, or neither", expected: []expectation{expected("a", true), expected("c", false)}},
		"Lost":        {reason: "attached, but on another node, nowhere, or not listed at all", expected: []expectation{expected("d", true), expected("c", true), expected("b", true)}, want: []string{"b", "c", "d"}},
		"Unsaved":     {reason: "listed, but not attached", expected: []expectation{expected("a", false)}, want: []string{"a"}},
		"FormerID":    {reason: "the node has a new ID, the volume is in use under the recorded one", expected: []expectation{recorded("b", "id-2")}},
		"NewID":       {reason: "the driver lists the new ID of the same node", expected: []expectation{recorded("a", "id-0")}},
		"Nowhere":     {reason: "neither the recorded nor the new ID is listed", expected: []expectation{recorded("c", "id-0")}, want: []string{"c"}},
		"WasInFlight": {reason: "the object changed while the list was read", expected: []expectation{expected("b", true), expected("c", true)}, changed: "b", want: []string{"c"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := mismatches(tt.expected, published, func(e expectation) bool { return e.name != tt.changed })
			if diff := cmp.Diff(tt.want, names(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func TestConfirmed(t *testing.T) {
	tests := map[string]struct {
		reason   string
		wrong    []expectation
		suspects map[types.UID]bool
		sure     []string
		next     map[types.UID]bool
	}{
		"First":    {reason: "once is not enough", wrong: []expectation{expected("a", true)}, next: map[types.UID]bool{"a": true}},
		"Second":   {reason: "twice is", wrong: []expectation{expected("a", true)}, suspects: map[types.UID]bool{"a": true}, sure: []string{"a"}, next: map[types.UID]bool{}},
		"Recovers": {reason: "a round without the mismatch starts over", suspects: map[types.UID]bool{"a": true}, next: map[types.UID]bool{}},
		"Turned":   {reason: "the other way round is another mismatch", wrong: []expectation{expected("a", false)}, suspects: map[types.UID]bool{"a": true}, next: map[types.UID]bool{"a": false}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			sure, next := confirmed(tt.wrong, tt.suspects)
			if diff := cmp.Diff(tt.sure, names(sure)); diff != "" {
				t.Errorf("%s: sure (-want +got):\n%s", tt.reason, diff)
			}
			if diff := cmp.Diff(tt.next, next); diff != "" {
				t.Errorf("%s: next (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

func TestExpectedHandle(t *testing.T) {
	tests := map[string]struct {
		reason string
		va     *storagev1.VolumeAttachment
		pv     *corev1.PersistentVolume
		want   string
	}{
		"Known": {reason: "the volume is known", va: newVA(vaAttached), pv: newPV(), want: "vol-1"},
		"NoPV":  {reason: "it is not", va: newVA(vaAttached)},
		"Replaced": {
			reason: "the PersistentVolume was re-created and names another volume than the one attached",
			va:     newVA(vaAttached, vaAnnotated(AnnotationVolumeHandle, "vol-0")), pv: newPV(),
		},
		"NotCSI": {reason: "the driver lists its own volumes only", va: newVA(), pv: newPV(func(pv *corev1.PersistentVolume) { pv.Spec.CSI = nil })},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := expectedHandle(tt.va, tt.pv, "id-1"); got != tt.want {
				t.Errorf("%s: got %q, want %q", tt.reason, got, tt.want)
			}
		})
	}
}

// lister answers ListVolumes from pages, by token.
type lister struct {
	csi.ControllerClient
	pages map[string]*csi.ListVolumesResponse
}

func (l lister) ListVolumes(_ context.Context, r *csi.ListVolumesRequest, _ ...grpc.CallOption) (*csi.ListVolumesResponse, error) {
	page, ok := l.pages[r.GetStartingToken()]
	if !ok {
		return nil, errors.New("no such page")
	}
	return page, nil
}

func page(next, volume string, nodes ...string) *csi.ListVolumesResponse {
	return &csi.ListVolumesResponse{NextToken: next, Entries: []*csi.ListVolumesResponse_Entry{{
		Volume: &csi.Volume{VolumeId: volume},
		Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: nodes},
	}}}
}

func TestListPublished(t *testing.T) {
	tests := map[string]struct {
		reason  string
		pages   map[string]*csi.ListVolumesResponse
		want    publications
		wantErr bool
	}{
		"Pages": {
			reason: "all pages count, volumes nobody asked for do not",
			pages:  map[string]*csi.ListVolumesResponse{"": page("1", "vol-a", "id-1", "id-2"), "1": page("2", "vol-x", "id-1"), "2": page("", "vol-b", "id-3")},
			want:   publications{{"vol-a", "id-1"}: true, {"vol-a", ""}: false, {"vol-b", "id-1"}: false, {"vol-b", "id-3"}: true},
		},
		"Endless": {
			reason:  "a driver that repeats the token would be asked forever",
			pages:   map[string]*csi.ListVolumesResponse{"": page("1", "vol-a"), "1": page("1", "vol-b")},
			wantErr: true,
		},
		"Circle": {
			reason:  "so would one whose tokens go round in a circle",
			pages:   map[string]*csi.ListVolumesResponse{"": page("1", "vol-a"), "1": page("2", "vol-b"), "2": page("1", "vol-a")},
			wantErr: true,
		},
		"Aborted": {
			reason:  "half a list proves nothing",
			pages:   map[string]*csi.ListVolumesResponse{"": page("1", "vol-a", "id-1")},
			wantErr: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := &Controller{cfg: Config{CSI: lister{pages: tt.pages}, CSITimeout: time.Minute}}
			got, err := c.listPublished(t.Context(), []expectation{expected("a", true), recorded("b", "id-3")})
			if (err != nil) != tt.wantErr {
				t.Fatalf("%s: error %v", tt.reason, err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}
