package kubeapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
)

// newClient returns a client of a server that answers by path, 404 where there is no answer, and what it was asked.
func newClient(t *testing.T, answers map[string]string) (Client, *[]string) {
	t.Helper()
	asked := &[]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.Method+" "+r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		answer, ok := answers[r.URL.Path]
		switch {
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"there is none","code":404}`)
		case answer == "forbidden":
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"you may not","code":403}`)
		case r.Method == http.MethodPost: // the request with a status
			var object map[string]any
			if err := json.NewDecoder(r.Body).Decode(&object); err != nil {
				t.Errorf("decode the request: %v", err)
			}
			var status map[string]any
			if err := json.Unmarshal([]byte(answer), &status); err != nil {
				t.Errorf("decode the answer: %v", err)
			}
			object["status"] = status
			if err := json.NewEncoder(w).Encode(object); err != nil {
				t.Errorf("answer: %v", err)
			}
		default:
			fmt.Fprint(w, answer)
		}
	}))
	t.Cleanup(server.Close)
	client, err := New(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return client, asked
}

func TestAudience(t *testing.T) {
	const beta, alpha = "/apis/cbt.storage.k8s.io/v1beta1/snapshotmetadataservices/d", "/apis/cbt.storage.k8s.io/v1alpha1/snapshotmetadataservices/d"
	const object = `{"kind":"SnapshotMetadataService","metadata":{"name":"d"},"spec":{"address":"a:1","audience":"backup","caCert":"eA=="}}`
	for reason, tc := range map[string]struct {
		answers map[string]string
		want    string
		words   string
		asked   int
	}{
		"the version of today":      {answers: map[string]string{beta: object}, want: "backup", asked: 1},
		"a cluster of before":       {answers: map[string]string{alpha: object}, want: "backup", asked: 2},
		"there is no object":        {words: `get SnapshotMetadataService "d": there is none`, asked: 2},
		"there is no right":         {answers: map[string]string{beta: "forbidden", alpha: object}, words: "you may not", asked: 1},
		"an object without content": {answers: map[string]string{beta: `{}`}, words: "spec.audience is empty", asked: 1},
		"no object at all":          {answers: map[string]string{beta: `[`}, words: `decode SnapshotMetadataService "d"`, asked: 1},
	} {
		client, asked := newClient(t, tc.answers)
		got, err := client.Audience(t.Context(), "d")
		if got != tc.want || (err == nil) != (tc.words == "") || err != nil && !strings.Contains(err.Error(), tc.words) || len(*asked) != tc.asked {
			t.Errorf("%s: got %q, %v, asked %q", reason, got, err, *asked)
		}
	}
}

func TestReviews(t *testing.T) {
	const tokens, access = "/apis/authentication.k8s.io/v1/tokenreviews", "/apis/authorization.k8s.io/v1/subjectaccessreviews"
	client, asked := newClient(t, map[string]string{
		tokens: `{"authenticated":true,"user":{"username":"u","groups":["g"]},"audiences":["backup"]}`, access: `{"allowed":true}`,
	})
	token, err := client.ReviewToken(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "t", Audiences: []string{"backup"}}})
	if err != nil || token.Spec.Token != "t" || !token.Status.Authenticated || token.Status.User.Username != "u" || token.Status.Audiences[0] != "backup" {
		t.Errorf("got %+v, %v", token, err)
	}
	review, err := client.ReviewAccess(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "u"}})
	if err != nil || review.Spec.User != "u" || !review.Status.Allowed {
		t.Errorf("got %+v, %v", review, err)
	}
	if got := strings.Join(*asked, ", "); got != "POST "+tokens+", POST "+access {
		t.Errorf("asked %s", got)
	}
	denied, _ := newClient(t, map[string]string{tokens: "forbidden", access: "forbidden"})
	if _, err := denied.ReviewToken(t.Context(), &authenticationv1.TokenReview{}); err == nil || !strings.Contains(err.Error(), "create TokenReview: you may not") {
		t.Errorf("got %v", err)
	}
	if _, err := denied.ReviewAccess(t.Context(), &authorizationv1.SubjectAccessReview{}); err == nil || !strings.Contains(err.Error(), "create SubjectAccessReview: you may not") {
		t.Errorf("got %v", err)
	}
}
