package kube_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

func TestSecretData(t *testing.T) {
	t.Parallel()
	secret := func(name string, data map[string][]byte) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: data}
	}
	client := kubetest.New(
		secret("text", map[string][]byte{"user": []byte("me"), "key": []byte("schlüssel")}),
		secret("binary", map[string][]byte{"b": {0xff}, "a": {0xfe, 'h', 'u', 's', 'h'}, "fine": []byte("x")}),
		secret("empty", nil),
	).Client()
	cases := map[string]struct {
		reason string
		ref    *corev1.SecretReference
		want   map[string]string
		err    string
		is     func(error) bool
	}{
		"Nothing":     {reason: "No reference, no secret."},
		"Text":        {reason: "Values become strings.", ref: &corev1.SecretReference{Namespace: "ns", Name: "text"}, want: map[string]string{"user": "me", "key": "schlüssel"}},
		"Empty":       {reason: "A secret may be empty.", ref: &corev1.SecretReference{Namespace: "ns", Name: "empty"}, want: map[string]string{}},
		"Binary":      {reason: "The keys of what is no text are named, not the values.", ref: &corev1.SecretReference{Namespace: "ns", Name: "binary"}, err: `["a" "b"] must be UTF-8`},
		"Missing":     {reason: "The error names the secret.", ref: &corev1.SecretReference{Namespace: "ns", Name: "none"}, err: "get secret ns/none", is: apierrors.IsNotFound},
		"NoName":      {reason: "A reference must be complete.", ref: &corev1.SecretReference{Namespace: "ns"}, err: `"ns/" must have a namespace and a name`},
		"NoNamespace": {reason: "A reference must be complete.", ref: &corev1.SecretReference{Name: "text"}, err: `"/text" must have a namespace and a name`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := kube.SecretData(t.Context(), client, tc.ref)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("%s: want error %q, got %v", tc.reason, tc.err, err)
			}
			if err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("a value has leaked: %v", err)
			}
			if tc.is != nil && !tc.is(err) {
				t.Errorf("%s: the API's error can be recognised, got %v", tc.reason, err)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
		})
	}
}
