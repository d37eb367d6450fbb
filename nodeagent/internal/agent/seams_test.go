package agent

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeobj"
)

func TestAttachmentMustBeUsable(t *testing.T) {
	now := metav1.Now()
	cases := map[string]struct {
		reason string
		change func(*storagev1.VolumeAttachment)
		text   string
	}{
		"Attached": {reason: "it is attached", change: func(va *storagev1.VolumeAttachment) { va.Status.Attached = true }},
		"Pending":  {reason: "nothing has happened yet", change: func(*storagev1.VolumeAttachment) {}, text: "is not attached"},
		"Failed": {reason: "the driver's error is passed on", change: func(va *storagev1.VolumeAttachment) {
			va.Status.AttachError = &storagev1.VolumeError{Message: "no slots"}
		}, text: "no slots"},
		"Deleting": {reason: "it is about to be detached, whatever its status says", change: func(va *storagev1.VolumeAttachment) {
			va.Status.Attached, va.DeletionTimestamp, va.Finalizers = true, &now, []string{"keep"}
		}, text: "being deleted"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va", UID: "va-uid"}}
			va.Status.AttachmentMetadata = map[string]string{"lun": "7"}
			tc.change(va)
			a := attachments{view: &nodeobj.View{}, client: kubetest.New(va).Client().VolumeAttachments()}
			got, err := a.Attachment(t.Context(), "va")
			if tc.text != "" {
				if err == nil || !strings.Contains(err.Error(), tc.text) {
					t.Errorf("%s: got %v, want an error with %q", tc.reason, err, tc.text)
				}
				return
			}
			if err != nil || got.UID != "va-uid" || got.Metadata["lun"] != "7" {
				t.Errorf("%s: got %+v, %v", tc.reason, got, err)
			}
		})
	}
	a := attachments{view: &nodeobj.View{}, client: kubetest.New().Client().VolumeAttachments()}
	if _, err := a.Attachment(t.Context(), "va"); !apierrors.IsNotFound(err) {
		t.Errorf("an attachment that does not exist: got %v", err)
	}
}

func TestNewlyAttached(t *testing.T) {
	node := func(names ...corev1.UniqueVolumeName) *corev1.Node {
		n := &corev1.Node{}
		for _, name := range names {
			n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: name})
		}
		return n
	}
	cases := map[string]struct {
		reason       string
		old, current *corev1.Node
		want         []string
	}{
		"First":     {reason: "the first Node shows all", current: node("a", "b"), want: []string{"a", "b"}},
		"Added":     {reason: "only what is new wakes a volume", old: node("a"), current: node("a", "b"), want: []string{"b"}},
		"Removed":   {reason: "a detached volume has nothing to look for", old: node("a", "b"), current: node("b")},
		"Unchanged": {reason: "most changes of a Node are others", old: node("a"), current: node("a")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := newlyAttached(tc.old, tc.current); !slices.Equal(got, tc.want) {
				t.Errorf("%s: got %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}
