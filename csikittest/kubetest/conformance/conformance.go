// Package conformance checks that an API server answers as Kubernetes' own does, in what controllers rely on: the three
// kinds of patches, optimistic locks, finalizers, deletion, status subresources, and the code, reason and causes of errors.
//
// It runs against kubetest, which must pass, and against a real kube-apiserver, which is right by definition. A fact that a
// controller's test takes from kubetest belongs here.
package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// Server is the API server to check.
type Server struct {
	// Client may create objects of all kinds.
	Client kube.Client
	// Namespace exists, and is empty but for the ServiceAccounts.
	Namespace string
	// ServiceAccounts are the names of two service accounts in the namespace.
	ServiceAccounts [2]string
}

// Run checks the server. No controller may run beside it: the tests compare whole lists and versions.
func Run(t *testing.T, s Server) {
	t.Helper()
	t.Run("Patches", func(t *testing.T) { patches(t, s) })
	t.Run("ServerFields", func(t *testing.T) { serverFields(t, s) })
	t.Run("Answers", func(t *testing.T) { answers(t, s) })
	t.Run("Deletion", func(t *testing.T) { deletion(t, s) })
	t.Run("LastFinalizer", func(t *testing.T) { lastFinalizer(t, s) })
	t.Run("Status", func(t *testing.T) { status(t, s) })
	t.Run("Creation", func(t *testing.T) { creation(t, s) })
	t.Run("Apply", func(t *testing.T) { serverSideApply(t, s) })
	t.Run("Tokens", func(t *testing.T) { tokens(t, s) })
}

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("unexpected error: %v", err)
		}
		return value
	}
}

// nameOf makes an object name of the name of the test.
func nameOf(t *testing.T) string {
	t.Helper()
	return strings.ToLower(strings.NewReplacer("/", ".", "_", "-").Replace(t.Name()[strings.Index(t.Name(), "/")+1:]))
}

// answer describes an error of the API server: code, reason, the object that it names, and the fields that caused it.
func answer(err error) string {
	if err == nil {
		return "ok"
	}
	var refused apierrors.APIStatus
	if !errors.As(err, &refused) {
		return err.Error()
	}
	status := refused.Status()
	text := fmt.Sprintf("%d %s", status.Code, status.Reason)
	if status.Details == nil {
		return text + " without details"
	}
	if status.Details.Name != "" {
		text += " named"
	}
	for _, cause := range status.Details.Causes { // the real server repeats some
		if fact := fmt.Sprintf(" %s:%s", cause.Field, cause.Type); !strings.Contains(text, fact) {
			text += fact
		}
	}
	return text
}

// leaf returns a field of an object by its JSON path, as JSON.
func leaf(t *testing.T, obj any, path ...string) string {
	t.Helper()
	var value any
	if err := json.Unmarshal(must[[]byte](t)(json.Marshal(obj)), &value); err != nil {
		t.Fatal(err)
	}
	for _, key := range path {
		fields, _ := value.(map[string]any)
		value = fields[key]
	}
	return string(must[[]byte](t)(json.Marshal(value)))
}

// newNode creates a Node with lists and maps of each kind.
func newNode(t *testing.T, s Server) *corev1.Node {
	t.Helper()
	return must[*corev1.Node](t)(s.Client.Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nameOf(t), Labels: map[string]string{"a": "1", "b": "2"}, Finalizers: []string{"e.x/x", "e.x/y", "e.x/z"}},
		Spec: corev1.NodeSpec{
			Taints: []corev1.Taint{{Key: "t1", Effect: corev1.TaintEffectNoSchedule}, {Key: "t2", Effect: corev1.TaintEffectNoExecute}},
		},
		Status: corev1.NodeStatus{
			Conditions:      []corev1.NodeCondition{{Type: "Ready", Status: "False"}, {Type: "DiskPressure", Status: "False"}},
			VolumesAttached: []corev1.AttachedVolume{{Name: "v1", DevicePath: "/dev/a"}},
		},
	}, metav1.CreateOptions{}))
}

// newAttachment creates a VolumeAttachment.
func newAttachment(t *testing.T, s Server, finalizers ...string) *storagev1.VolumeAttachment {
	t.Helper()
	return must[*storagev1.VolumeAttachment](t)(s.Client.VolumeAttachments().Create(t.Context(), attachment(nameOf(t), finalizers...), metav1.CreateOptions{}))
}

func attachment(name string, finalizers ...string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "d.example", NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv")},
		},
	}
}
