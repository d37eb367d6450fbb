package access

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/longshore-csi/longshore/snapshotmetadata/internal/kubeapi"
)

// server answers reviews, and notes what it was asked.
type server struct {
	kubeapi.Client

	audience string
	token    authenticationv1.TokenReviewStatus
	access   authorizationv1.SubjectAccessReviewStatus
	err      error

	tokens   authenticationv1.TokenReviewSpec
	accesses authorizationv1.SubjectAccessReviewSpec
}

// Audience implements kubeapi.Client.
func (s *server) Audience(context.Context, string) (string, error) { return s.audience, s.err }

// ReviewToken implements kubeapi.Client.
func (s *server) ReviewToken(_ context.Context, review *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	s.tokens = review.Spec
	return &authenticationv1.TokenReview{Status: s.token}, s.err
}

// ReviewAccess implements kubeapi.Client.
func (s *server) ReviewAccess(_ context.Context, review *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
	s.accesses = review.Spec
	return &authorizationv1.SubjectAccessReview{Status: s.access}, s.err
}

func TestUser(t *testing.T) {
	down := errors.New("down")
	user := authenticationv1.UserInfo{Username: "u"}
	tests := map[string]struct {
		reason   string
		server   server
		audience string // of the flag
		asked    string
		err      error
		words    string
	}{
		"Good":         {reason: "the API server knows the token", server: server{audience: "a", token: authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{"a"}, User: user}}, asked: "a"},
		"Flag":         {reason: "--audience has precedence, and needs no object", audience: "b", server: server{audience: "a", token: authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{"b"}, User: user}}, asked: "b"},
		"Unknown":      {reason: "the API server's words help", server: server{audience: "a", token: authenticationv1.TokenReviewStatus{Error: "expired"}}, asked: "a", err: ErrUnauthenticated, words: `for audience "a": expired`},
		"NoWords":      {reason: "it may say nothing", server: server{audience: "a"}, asked: "a", err: ErrUnauthenticated, words: `for audience "a"`},
		"NoAudiences":  {reason: "an authenticator without audiences takes a token for the API server", server: server{audience: "a", token: authenticationv1.TokenReviewStatus{Authenticated: true, User: user}}, asked: "a", err: ErrUnauthenticated, words: `for audiences [], not for "a"`},
		"OtherService": {reason: "a token for another service", server: server{audience: "a", token: authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{"c"}, User: user}}, asked: "a", err: ErrUnauthenticated, words: `["c"]`},
		"Down":         {reason: "nothing is decided", server: server{err: down}, err: down, words: "find the audience of tokens"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			checker := Checker{API: &tt.server, Driver: "d", Audience: tt.audience}
			got, err := checker.User(t.Context(), "secret-token")
			if !errors.Is(err, tt.err) || err != nil && (!strings.Contains(err.Error(), tt.words) || strings.Contains(err.Error(), "secret-token")) {
				t.Errorf("%s: got %v, want %v with %q", tt.reason, err, tt.err, tt.words)
			}
			if err == nil && got.Username != "u" {
				t.Errorf("%s: user %v", tt.reason, got)
			}
			if tt.asked != "" {
				if diff := cmp.Diff(authenticationv1.TokenReviewSpec{Token: "secret-token", Audiences: []string{tt.asked}}, tt.server.tokens); diff != "" {
					t.Errorf("%s: -want +asked\n%s", tt.reason, diff)
				}
			}
		})
	}
}

func TestCheck(t *testing.T) {
	down := errors.New("down")
	user := &authenticationv1.UserInfo{Username: "u", UID: "1", Groups: []string{"g"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
	for reason, tc := range map[string]struct {
		server server
		err    error
		words  string
	}{
		"allowed":             {server: server{access: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}},
		"no opinion":          {err: ErrForbidden, words: `user "u" cannot get volumesnapshots.snapshot.storage.k8s.io in namespace "shop"`},
		"a reason":            {server: server{access: authorizationv1.SubjectAccessReviewStatus{EvaluationError: "role r is missing"}}, err: ErrForbidden, words: "role r is missing"},
		"a contradiction":     {server: server{access: authorizationv1.SubjectAccessReviewStatus{Allowed: true, Denied: true}}, err: ErrForbidden, words: `user "u"`},
		"nothing was decided": {server: server{err: down}, err: down, words: "down"},
	} {
		checker := Checker{API: &tc.server, Driver: "d"}
		if err := checker.Check(t.Context(), user, "shop", "monday"); !errors.Is(err, tc.err) || err != nil && !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: got %v, want %v with %q", reason, err, tc.err, tc.words)
		}
		want := authorizationv1.SubjectAccessReviewSpec{
			User: "u", UID: "1", Groups: []string{"g"}, Extra: map[string]authorizationv1.ExtraValue{"k": {"v"}},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "get", Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots", Namespace: "shop", Name: "monday",
			},
		}
		if diff := cmp.Diff(want, tc.server.accesses); diff != "" {
			t.Errorf("%s: -want +asked\n%s", reason, diff)
		}
	}
}
