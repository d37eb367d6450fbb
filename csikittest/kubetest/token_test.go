package kubetest_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// Tokens are bound to existing pods of their service account, and live as long as the request says.
func TestRequestToken(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		change func(*authenticationv1.TokenRequestSpec)
		ok     func(error) bool
		life   time.Duration
	}{
		"Default": {reason: "an hour", change: func(*authenticationv1.TokenRequestSpec) {}, life: time.Hour},
		"Asked":   {reason: "what is asked for", change: func(s *authenticationv1.TokenRequestSpec) { s.ExpirationSeconds = ptr.To(int64(600)) }, life: 10 * time.Minute},
		"Short":   {reason: "too short", change: func(s *authenticationv1.TokenRequestSpec) { s.ExpirationSeconds = ptr.To(int64(599)) }, ok: apierrors.IsInvalid},
		"NoPod":   {reason: "no such pod", change: func(s *authenticationv1.TokenRequestSpec) { s.BoundObjectRef.Name = "b" }, ok: apierrors.IsNotFound},
		"Later":   {reason: "a later pod of the name", change: func(s *authenticationv1.TokenRequestSpec) { s.BoundObjectRef.UID = "other" }, ok: apierrors.IsConflict},
		"Unbound": {reason: "bound to nothing", change: func(s *authenticationv1.TokenRequestSpec) { s.BoundObjectRef = nil }, life: time.Hour},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := kubetest.New(&corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "uid-a"}, Spec: corev1.PodSpec{ServiceAccountName: "sa"},
				}).Client()
				req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
					BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "a", UID: "uid-a"},
				}}
				tc.change(&req.Spec)
				got, err := client.RequestToken(t.Context(), "ns", "sa", req)
				if tc.ok != nil {
					if !tc.ok(err) {
						t.Fatalf("%s: got %v", tc.reason, err)
					}
					return
				}
				if err != nil || got.Status.Token == "" || time.Until(got.Status.ExpirationTimestamp.Time) != tc.life || *got.Spec.ExpirationSeconds != int64(tc.life.Seconds()) {
					t.Fatalf("%s: got %+v, %v", tc.reason, got, err)
				}
				again, err := client.RequestToken(t.Context(), "ns", "sa", req)
				if err != nil || again.Status.Token == got.Status.Token {
					t.Errorf("the next token is %+v, %v, want another one", again, err)
				}
			})
		})
	}
}

// Faults hit requests for tokens, and another service account than the pod's is refused.
func TestRequestTokenFaults(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Spec: corev1.PodSpec{ServiceAccountName: "sa"}})
	bound := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", Name: "a"}}}
	if _, err := cluster.Client().RequestToken(t.Context(), "ns", "other", bound); !apierrors.IsBadRequest(err) {
		t.Errorf("got %v, want a bad request", err)
	}
	away := errors.New("away")
	cluster.Fail("create", "serviceaccounts/token", away, 1)
	if _, err := cluster.Client().RequestToken(t.Context(), "ns", "sa", bound); !errors.Is(err, away) {
		t.Errorf("got %v, want the fault", err)
	}
	if _, err := cluster.Client().RequestToken(t.Context(), "ns", "sa", bound); err != nil {
		t.Error(err)
	}
}
