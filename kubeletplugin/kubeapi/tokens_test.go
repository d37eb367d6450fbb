package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

var pod = volume.Pod{Namespace: "ns", Name: "a", UID: "uid-a", ServiceAccount: "sa"}

func ptr[T any](v T) *T { return &v }

// issuer is an API server that numbers its tokens.
type issuer struct {
	requests []*authenticationv1.TokenRequest
	err      error
	// silent leaves out the lifetime in the answer.
	silent bool
}

func (i *issuer) request(_ context.Context, namespace, serviceAccount string, req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	if i.err != nil {
		return nil, i.err
	}
	reply := req.DeepCopy()
	if reply.Spec.ExpirationSeconds == nil {
		reply.Spec.ExpirationSeconds = ptr(int64(3600))
	}
	life := time.Duration(*reply.Spec.ExpirationSeconds) * time.Second
	i.requests = append(i.requests, req)
	reply.Status = authenticationv1.TokenRequestStatus{
		Token: fmt.Sprintf("%s/%s-%d", namespace, serviceAccount, len(i.requests)), ExpirationTimestamp: metav1.NewTime(time.Now().Add(life)),
	}
	if i.silent {
		reply.Spec.ExpirationSeconds = nil
	}
	return reply, nil
}

// bench runs f in a bubble with an empty cache.
func bench(t *testing.T, jitter float64, f func(t *testing.T, i *issuer, c *Tokens)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		f(t, i, &Tokens{request: i.request, spread: func() float64 { return jitter }, tokens: map[key]token{}})
	})
}

// expect compares the token for an audience.
func expect(t *testing.T, c *Tokens, p volume.Pod, r storagev1.TokenRequest, want string) {
	t.Helper()
	text, err := c.Encoded(t.Context(), p, []storagev1.TokenRequest{r})
	var got map[string]struct{ Token string }
	if err == nil {
		err = json.Unmarshal([]byte(text), &got)
	}
	if err != nil || got[r.Audience].Token != want {
		t.Errorf("after %v: got %q, %v, want the token %q", time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), text, err, want)
	}
}

// TestEncoded is the request and the text that a driver gets.
func TestEncoded(t *testing.T) {
	bench(t, 0, func(t *testing.T, i *issuer, c *Tokens) {
		got, err := c.Encoded(t.Context(), pod, []storagev1.TokenRequest{{Audience: "vault", ExpirationSeconds: ptr(int64(600))}, {}})
		want := `{"":{"token":"ns/sa-2","expirationTimestamp":"2000-01-01T01:00:00Z"},"vault":{"token":"ns/sa-1","expirationTimestamp":"2000-01-01T00:10:00Z"}}`
		if err != nil || got != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
		bound := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "a", UID: "uid-a"}
		requests := []*authenticationv1.TokenRequest{
			{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}, ExpirationSeconds: ptr(int64(600)), BoundObjectRef: bound}},
			{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}},
		}
		if diff := cmp.Diff(requests, i.requests); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
		if text, err := c.Encoded(t.Context(), pod, nil); text != "" || err != nil {
			t.Errorf("no requests: got %q, %v", text, err)
		}
	})
}

// TestRefresh is when a token is replaced: after four fifths of its lifetime or a day, up to 10 seconds early.
func TestRefresh(t *testing.T) {
	cases := map[string]struct {
		reason  string
		seconds *int64
		jitter  float64
		silent  bool
		want    time.Duration
	}{
		"Short":   {reason: "80 % of ten minutes", seconds: ptr(int64(600)), want: 8 * time.Minute},
		"Default": {reason: "80 % of an hour", want: 48 * time.Minute},
		"Long":    {reason: "a day at most", seconds: ptr(int64(7 * 24 * 3600)), want: 24 * time.Hour},
		"Jitter":  {reason: "up to 10 seconds early", seconds: ptr(int64(600)), jitter: 0.5, want: 8*time.Minute - 5*time.Second},
		"Silent":  {reason: "a server that does not say how long", seconds: ptr(int64(600)), silent: true, want: 8 * time.Minute},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bench(t, tc.jitter, func(t *testing.T, i *issuer, c *Tokens) {
				i.silent = tc.silent
				r := storagev1.TokenRequest{Audience: "vault", ExpirationSeconds: tc.seconds}
				expect(t, c, pod, r, "ns/sa-1")
				time.Sleep(tc.want - time.Second)
				expect(t, c, pod, r, "ns/sa-1")
				time.Sleep(time.Second)
				expect(t, c, pod, r, "ns/sa-2")
			})
		})
	}
}

// TestOldTokenServes: as long as it is valid, a token that cannot be refreshed is used.
func TestOldTokenServes(t *testing.T) {
	bench(t, 0, func(t *testing.T, i *issuer, c *Tokens) {
		r := storagev1.TokenRequest{Audience: "vault", ExpirationSeconds: ptr(int64(600))}
		expect(t, c, pod, r, "ns/sa-1")
		i.err = errors.New("away")
		time.Sleep(9 * time.Minute)
		expect(t, c, pod, r, "ns/sa-1")
		time.Sleep(2 * time.Minute)
		_, err := c.Encoded(t.Context(), pod, []storagev1.TokenRequest{r})
		if !errors.Is(err, i.err) || strings.Contains(err.Error(), "sa-1") || !strings.Contains(err.Error(), "vault") {
			t.Errorf("got %v, want that the API server is away, without the token", err)
		}
		i.err = nil
		expect(t, c, pod, r, "ns/sa-2")
	})
}

// TestTokensAreSeparate: a token is for one pod, one audience and one lifetime.
func TestTokensAreSeparate(t *testing.T) {
	bench(t, 0, func(t *testing.T, _ *issuer, c *Tokens) {
		later := pod
		later.UID = "uid-later"
		short := storagev1.TokenRequest{Audience: "vault", ExpirationSeconds: ptr(int64(600))}
		expect(t, c, pod, short, "ns/sa-1")
		expect(t, c, later, short, "ns/sa-2")
		expect(t, c, pod, storagev1.TokenRequest{Audience: "vault"}, "ns/sa-3")
		expect(t, c, pod, storagev1.TokenRequest{}, "ns/sa-4")
		expect(t, c, pod, short, "ns/sa-1")
		c.Forget(pod.UID)
		expect(t, c, pod, short, "ns/sa-5")
		expect(t, c, later, short, "ns/sa-2")
	})
}

// TestNothingStays: the cache is empty when its pods are gone, or their tokens expired.
func TestNothingStays(t *testing.T) {
	bench(t, 0, func(t *testing.T, _ *issuer, c *Tokens) {
		r := storagev1.TokenRequest{Audience: "vault", ExpirationSeconds: ptr(int64(600))}
		for n := range 10 {
			p := pod
			p.Name = fmt.Sprint(n)
			expect(t, c, p, r, fmt.Sprintf("ns/sa-%d", n+1))
		}
		time.Sleep(time.Hour)
		expect(t, c, pod, r, "ns/sa-11")
		if len(c.tokens) != 1 {
			t.Errorf("%d tokens are kept, want the valid one", len(c.tokens))
		}
		c.Forget(pod.UID)
		if len(c.tokens) != 0 {
			t.Errorf("%d tokens are kept, want none", len(c.tokens))
		}
	})
}
