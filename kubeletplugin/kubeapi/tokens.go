package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

const (
	// maxAge is the age at which a token is refreshed, however long it would be valid.
	maxAge = 24 * time.Hour
	// maxJitter is how much earlier, at random, a token is refreshed, so that not all of a node's are refreshed at once.
	maxJitter = 10 * time.Second
)

// Tokens are the service account tokens that drivers want for the pods of a node (CSIDriver.spec.tokenRequests). They are bound to the pod, kept in memory only until
// they need to be refreshed, as a kubelet does, and in no error and no log. Tokens may be used by many goroutines.
type Tokens struct {
	request func(ctx context.Context, namespace, serviceAccount string, req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	// spread returns random numbers in [0, 1).
	spread func() float64

	mu     sync.Mutex
	tokens map[key]token
}

// key identifies a token: another lifetime asks for another token.
type key struct {
	pod      volume.Pod
	audience string
	seconds  int64
}

type token struct {
	status    authenticationv1.TokenRequestStatus
	refreshAt time.Time
}

func (t token) expired(now time.Time) bool { return now.After(t.status.ExpirationTimestamp.Time) }

var _ volume.Tokens = (*Tokens)(nil)

// NewTokens requests tokens from an API server.
func NewTokens(api kube.Client) *Tokens {
	return &Tokens{request: api.RequestToken, spread: rand.Float64, tokens: map[key]token{}}
}

// Encoded returns the tokens that a driver requests for a pod, as JSON: an object with the token and its expirationTimestamp for each
// audience. The text is empty if the driver requests none.
func (c *Tokens) Encoded(ctx context.Context, pod volume.Pod, requests []storagev1.TokenRequest) (string, error) {
	if len(requests) == 0 {
		return "", nil
	}
	all := make(map[string]authenticationv1.TokenRequestStatus, len(requests))
	for _, r := range requests {
		status, err := c.token(ctx, pod, r)
		if err != nil {
			return "", passing(fmt.Errorf("request token of service account %q for audience %q: %w", pod.Namespace+"/"+pod.ServiceAccount, r.Audience, err))
		}
		all[r.Audience] = status
	}
	text, err := json.Marshal(all)
	if err != nil {
		return "", fmt.Errorf("encode tokens of service account %q: %w", pod.Namespace+"/"+pod.ServiceAccount, err)
	}
	return string(text), nil
}

// Forget drops the tokens of a pod, which is deleted.
func (c *Tokens) Forget(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.tokens, func(k key, _ token) bool { return k.pod.UID == pod })
}

// token returns a token that need not be refreshed yet. If it cannot be refreshed, it serves until it expires.
func (c *Tokens) token(ctx context.Context, pod volume.Pod, r storagev1.TokenRequest) (authenticationv1.TokenRequestStatus, error) {
	k := key{pod: pod, audience: r.Audience}
	if r.ExpirationSeconds != nil {
		k.seconds = *r.ExpirationSeconds
	}
	old, ok := c.get(k)
	if ok && time.Now().Before(old.refreshAt) {
		return old.status, nil
	}
	reply, err := c.request(ctx, pod.Namespace, pod.ServiceAccount, tokenRequest(pod, r))
	if err == nil {
		return c.put(k, reply), nil
	}
	if !ok || old.expired(time.Now()) {
		return authenticationv1.TokenRequestStatus{}, err
	}
	klog.FromContext(ctx).V(2).Info("Service account token cannot be refreshed; the old one is still valid", logging.KeyReason, err.Error())
	return old.status, nil
}

func (c *Tokens) get(k key) (token, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.tokens[k]
	return t, ok
}

// put keeps a token, and drops those that have expired.
func (c *Tokens) put(k key, reply *authenticationv1.TokenRequest) authenticationv1.TokenRequestStatus {
	now := time.Now()
	t := token{status: reply.Status, refreshAt: c.refreshAt(reply, now)}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.tokens, func(_ key, t token) bool { return t.expired(now) })
	c.tokens[k] = t
	return t.status
}

// refreshAt is when four fifths of the lifetime of a token are over, or maxAge.
func (c *Tokens) refreshAt(t *authenticationv1.TokenRequest, now time.Time) time.Time {
	expires := t.Status.ExpirationTimestamp.Time
	life := expires.Sub(now)
	if t.Spec.ExpirationSeconds != nil {
		life = time.Duration(*t.Spec.ExpirationSeconds) * time.Second
	}
	at := expires.Add(-life / 5)
	if oldest := expires.Add(maxAge - life); oldest.Before(at) {
		at = oldest
	}
	return at.Add(-time.Duration(c.spread() * float64(maxJitter)))
}

// tokenRequest asks for a token that is bound to the pod; the audience "" is that of the API server.
func tokenRequest(pod volume.Pod, r storagev1.TokenRequest) *authenticationv1.TokenRequest {
	req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: r.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if r.Audience != "" {
		req.Spec.Audiences = []string{r.Audience}
	}
	return req
}
