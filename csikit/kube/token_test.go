package kube_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestRequestToken: a token is requested from the subresource of the service account, as JSON.
func TestRequestToken(t *testing.T) {
	t.Parallel()
	seconds := int64(600)
	answer := &authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
		Spec:     authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
		Status:   authenticationv1.TokenRequestStatus{Token: "secret", ExpirationTimestamp: metav1.NewTime(time.Unix(1e9, 0))},
	}
	s, client := newServer(t, http.StatusCreated, answer)
	req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}}}
	got, err := client.RequestToken(t.Context(), "ns", "sa", req)
	if err != nil || got.Status.Token != "secret" || *got.Spec.ExpirationSeconds != 600 || !got.Status.ExpirationTimestamp.Equal(&answer.Status.ExpirationTimestamp) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if req.Kind != "" {
		t.Error("the request of the caller was changed")
	}
	if diff := cmp.Diff([]string{"POST /api/v1/namespaces/ns/serviceaccounts/sa/token"}, s.requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if s.accepts[0] != "application/json" || !strings.HasPrefix(s.bodies[0], `application/json {"kind":"TokenRequest"`) {
		t.Errorf("asks for %q with %q, want JSON", s.accepts[0], s.bodies[0])
	}
}

// TestRequestTokenFails: an error is that of the API server, and no answer is quoted that may have a token.
func TestRequestTokenFails(t *testing.T) {
	t.Parallel()
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccounts"}, "sa")
	_, client := newServer(t, http.StatusNotFound, gone.Status())
	if _, err := client.RequestToken(t.Context(), "ns", "sa", &authenticationv1.TokenRequest{}); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "sa") {
		t.Errorf("got %v, want the error of the server", err)
	}
	_, client = newServer(t, http.StatusOK, map[string]any{"status": []string{"secret"}})
	if _, err := client.RequestToken(t.Context(), "ns", "sa", &authenticationv1.TokenRequest{}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v, want an error that does not quote the answer", err)
	}
}
