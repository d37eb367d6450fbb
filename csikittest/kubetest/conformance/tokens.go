package conformance

import (
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// tokens checks the answers to requests for tokens of service accounts, which are bound to a pod.
func tokens(t *testing.T, s Server) {
	pod := must[*corev1.Pod](t)(s.Client.Pods(s.Namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: nameOf(t)},
		Spec:       corev1.PodSpec{ServiceAccountName: s.ServiceAccounts[0], NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{}))
	cases := map[string]struct {
		reason string
		change func(*authenticationv1.TokenRequestSpec)
		other  bool // service account
		life   int64
		want   string
	}{
		"Default":  {reason: "an hour unless asked for", life: 3600, want: "ok"},
		"Shortest": {reason: "ten minutes", change: func(r *authenticationv1.TokenRequestSpec) { r.ExpirationSeconds = ptr.To(int64(600)) }, life: 600, want: "ok"},
		"Shorter": {
			reason: "no less than ten minutes", change: func(r *authenticationv1.TokenRequestSpec) { r.ExpirationSeconds = ptr.To(int64(599)) },
			want: "422 Invalid spec.expirationSeconds:FieldValueInvalid",
		},
		"Audience": {reason: "for another service", change: func(r *authenticationv1.TokenRequestSpec) { r.Audiences = []string{"vault"} }, life: 3600, want: "ok"},
		"Unbound":  {reason: "bound to nothing", change: func(r *authenticationv1.TokenRequestSpec) { r.BoundObjectRef = nil }, life: 3600, want: "ok"},
		"NoPod":    {reason: "no such pod", change: func(r *authenticationv1.TokenRequestSpec) { r.BoundObjectRef.Name = "gone" }, want: "404 NotFound named"},
		"LaterPod": {reason: "another pod of the name", change: func(r *authenticationv1.TokenRequestSpec) { r.BoundObjectRef.UID = "other" }, want: "409 Conflict named"},
		"OfOther":  {reason: "the pod runs with another service account", other: true, want: "400 BadRequest without details"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
			}}
			if tc.change != nil {
				tc.change(&req.Spec)
			}
			account := s.ServiceAccounts[0]
			if tc.other {
				account = s.ServiceAccounts[1]
			}
			got, err := s.Client.RequestToken(t.Context(), s.Namespace, account, req)
			if text := answer(err); text != tc.want {
				t.Fatalf("%s: got %q, want %q (%v)", tc.reason, text, tc.want, err)
			}
			if err == nil {
				checkToken(t, s, account, tc.life, got)
			}
		})
	}
}

// checkToken checks a token of a service account that was asked for a number of seconds.
func checkToken(t *testing.T, s Server, account string, seconds int64, got *authenticationv1.TokenRequest) {
	t.Helper()
	asked := time.Duration(seconds) * time.Second
	life := got.Status.ExpirationTimestamp.Sub(got.CreationTimestamp.Time)
	if got.Status.Token == "" || *got.Spec.ExpirationSeconds != seconds || life < asked-2*time.Second || life > asked+2*time.Second {
		t.Errorf("lives for %v, says %d seconds, has a token: %t; want %v", life, *got.Spec.ExpirationSeconds, got.Status.Token != "", asked)
	}
	if got.Name != account || got.Namespace != s.Namespace || len(got.Spec.Audiences) == 0 {
		t.Errorf("the answer is for %s/%s and audiences %q", got.Namespace, got.Name, got.Spec.Audiences)
	}
}
