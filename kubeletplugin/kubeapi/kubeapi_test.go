package kubeapi

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// TestClaimsFindNothing: what is gone, or was made again, is not expanded, and is no error.
func TestClaimsFindNothing(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "uid-1"}}
	claim.Spec.VolumeName = "pv-1"
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	pv.Spec.ClaimRef = &corev1.ObjectReference{UID: "another"}
	cluster := kubetest.New(claim, pv)
	c := Claims{API: cluster.Client()}
	for _, uid := range []types.UID{"uid-1", "uid-2"} {
		if got, err := c.Claim(t.Context(), "ns", "data", uid, true); err != nil || (got != nil) != (uid == "uid-1") {
			t.Errorf("claim with UID %s: got %v, %v", uid, got, err)
		}
	}
	if got, err := c.Claim(t.Context(), "ns", "other", "uid-1", false); got != nil || err != nil {
		t.Errorf("a claim that does not exist: got %v, %v", got, err)
	}
	if got, err := c.Volume(t.Context(), claim); got != nil || err != nil {
		t.Errorf("a volume of another claim: got %v, %v", got, err)
	}
	if got, err := c.Write(t.Context(), claim, nil); got != claim || err != nil {
		t.Errorf("no patch: got %v, %v", got, err)
	}
	cluster.Fail("get", "", errors.New("away"), 0)
	if _, err := c.Claim(t.Context(), "ns", "data", "uid-1", false); err == nil {
		t.Error("a claim that cannot be read is not one that is gone")
	}
	if _, err := c.Volume(t.Context(), claim); err == nil {
		t.Error("a volume that cannot be read is not one that is gone")
	}
}

func TestSecretLag(t *testing.T) {
	c := kubetest.New(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"key": []byte("value")},
	})
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "s", errors.New("no relationship found"))
	c.Fail("get", "secrets", refused, 1)
	s, ref := Secrets{API: c.Client()}, &corev1.SecretReference{Namespace: "ns", Name: "s"}
	if _, err := s.Secret(t.Context(), ref); !errors.Is(err, volume.ErrTransient) {
		t.Errorf("a refusal right after scheduling: got %v, want one that passes", err)
	}
	if got, err := s.Secret(t.Context(), ref); err != nil || got["key"] != "value" {
		t.Errorf("got %v, %v", got, err)
	}
	if err := c.Merge("secrets", "ns", "s", []byte(`{"data":{"key":"bmV3"}}`)); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Secret(t.Context(), ref); err != nil || got["key"] != "new" {
		t.Errorf("after a change of the secret: got %v, %v", got, err)
	}
	if got, err := s.Secret(t.Context(), nil); err != nil || got != nil {
		t.Errorf("no reference: got %v, %v, want nothing", got, err)
	}
	if _, err := s.Secret(t.Context(), &corev1.SecretReference{Namespace: "ns", Name: "other"}); err == nil || errors.Is(err, volume.ErrTransient) {
		t.Errorf("a secret that does not exist: got %v, want an error that does not pass", err)
	}
}

type recorder struct{ warned []string }

func (r *recorder) Normal(runtime.Object, string, string) {}

func (r *recorder) Warning(obj runtime.Object, reason, _ string) {
	if p, ok := obj.(*corev1.Pod); ok {
		r.warned = append(r.warned, p.Namespace+"/"+p.Name+" "+string(p.UID)+" "+reason)
	}
}

func TestEvents(t *testing.T) {
	r := &recorder{}
	e := Events{r}
	e.Failed(volume.Pod{UID: "found-on-disk"}, "FailedMount", "text")
	e.Failed(volume.Pod{Namespace: "ns", Name: "a", UID: "uid-a"}, "FailedMount", "text")
	if len(r.warned) != 1 || r.warned[0] != "ns/a uid-a FailedMount" {
		t.Errorf("events are %v, want one on the pod that has a name", r.warned)
	}
}

// TestConditionEvents warns of a volume that has a problem, and not of one that is well again.
func TestConditionEvents(t *testing.T) {
	r := &recorder{}
	e := Events{r}
	e.Condition(volume.Pod{Namespace: "ns", Name: "a", UID: "uid-a"}, volume.ReasonAbnormal, "text")
	e.Condition(volume.Pod{Namespace: "ns", Name: "a", UID: "uid-a"}, volume.ReasonNormal, "text")
	if !slices.Equal(r.warned, []string{"ns/a uid-a " + volume.ReasonAbnormal}) {
		t.Errorf("warnings are %v", r.warned)
	}
}
