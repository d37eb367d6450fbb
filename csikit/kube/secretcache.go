package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// secretTTL is how long a SecretCache keeps a secret: one read for a burst of calls, and a changed secret is used soon.
const secretTTL = 10 * time.Second

// SecretCache reads secrets, each once for calls that come together, and keeps them for 10 seconds. It may be
// limited to namespaces, so that a Role in each of them is enough.
type SecretCache struct {
	client     Client
	namespaces []string

	mu      sync.Mutex
	secrets map[corev1.SecretReference]*cachedSecret
}

// cachedSecret is a secret that is being read until read is closed.
type cachedSecret struct {
	read chan struct{}
	data map[string]string
	err  error
}

// NewSecretCache returns a cache without secrets. It refuses those outside of the namespaces, of which none means all.
func NewSecretCache(client Client, namespaces []string) *SecretCache {
	return &SecretCache{client: client, namespaces: namespaces, secrets: map[corev1.SecretReference]*cachedSecret{}}
}

// Data is SecretData with the cache. Callers share the result and must not change it. Failures are not kept.
func (c *SecretCache) Data(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	switch {
	case ref == nil:
		return nil, nil //nolint:nilnil // no reference means no secret, which is not an error
	case len(c.namespaces) > 0 && !slices.Contains(c.namespaces, ref.Namespace):
		return nil, fmt.Errorf("secret %s/%s is refused: namespace %q is not in --secret-namespaces=%s",
			ref.Namespace, ref.Name, ref.Namespace, strings.Join(c.namespaces, ","))
	}
	for {
		secret, mine := c.find(*ref)
		if mine {
			return c.read(ctx, ref, secret)
		}
		select {
		case <-secret.read:
		case <-ctx.Done():
			return nil, fmt.Errorf("get secret %s/%s: %w", ref.Namespace, ref.Name, context.Cause(ctx))
		}
		if !errors.Is(secret.err, context.Canceled) && !errors.Is(secret.err, context.DeadlineExceeded) {
			return secret.data, secret.err
		} // else the reader gave up, for reasons of its own
	}
}

// find returns the secret that is known or being read, or a new one that the caller must read.
func (c *SecretCache) find(ref corev1.SecretReference) (secret *cachedSecret, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.secrets[ref]; ok {
		return known, false
	}
	secret = &cachedSecret{read: make(chan struct{})}
	c.secrets[ref] = secret
	return secret, true
}

func (c *SecretCache) read(ctx context.Context, ref *corev1.SecretReference, secret *cachedSecret) (map[string]string, error) {
	key := *ref
	drop := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.secrets, key)
	}
	secret.data, secret.err = SecretData(ctx, c.client, ref)
	if secret.err != nil {
		drop()
	} else {
		time.AfterFunc(secretTTL, drop)
	}
	close(secret.read)
	return secret.data, secret.err
}
