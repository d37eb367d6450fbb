package kube_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// vault is a cluster with the secret ns/keys, which counts how often it is read.
type vault struct {
	*kubetest.Cluster
	mu    sync.Mutex
	reads int
}

func newVault(t *testing.T) *vault {
	t.Helper()
	v := &vault{Cluster: kubetest.New()}
	v.set(t, "1")
	v.Inject(kubetest.Fault{Verb: "get", Resource: "secrets", Delay: time.Second, Do: func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.reads++
	}})
	return v
}

func (v *vault) set(t *testing.T, value string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "keys"}, Data: map[string][]byte{"key": []byte(value)}}
	if err := v.Apply(secret); err != nil {
		t.Fatal(err)
	}
}

// check compares the number of reads so far.
func (v *vault) check(t *testing.T, reason string, want int) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.reads != want {
		t.Errorf("%s: the secret was read %d times, want %d", reason, v.reads, want)
	}
}

var keys = &corev1.SecretReference{Namespace: "ns", Name: "keys"} //nolint:gochecknoglobals // a constant

// getAll reads the secret as many callers at the same time.
func getAll(ctx context.Context, c *kube.SecretCache) (values map[string]int, failed []error) {
	values = map[string]int{}
	var mu sync.Mutex
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			data, err := c.Data(ctx, keys)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, err)
				return
			}
			values[data["key"]]++
		})
	}
	callers.Wait()
	return values, failed
}

func TestSecretCache(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		c := kube.NewSecretCache(v.Client(), nil)
		get := func(reason, want string) {
			t.Helper()
			values, failed := getAll(t.Context(), c)
			if diff := cmp.Diff(map[string]int{want: 20}, values); diff != "" || len(failed) > 0 {
				t.Errorf("%s: errors %v, values (-want +got):\n%s", reason, failed, diff)
			}
		}
		get("callers at the same time", "1")
		v.check(t, "callers at the same time", 1)
		v.set(t, "2")
		time.Sleep(9 * time.Second)
		get("within ten seconds", "1")
		time.Sleep(2 * time.Second)
		get("after ten seconds", "2")
		v.check(t, "after ten seconds", 2)
		if data, err := c.Data(t.Context(), nil); data != nil || err != nil {
			t.Errorf("no reference: %v, %v", data, err)
		}
	})
}

func TestSecretCacheKeepsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		v.Heal()
		c := kube.NewSecretCache(v.Client(), nil)
		v.Inject(kubetest.Fault{Verb: "get", Resource: "secrets", Err: apierrors.NewServiceUnavailable("away"), Delay: time.Second, Times: 1})
		if _, failed := getAll(t.Context(), c); len(failed) != 20 || !apierrors.IsServiceUnavailable(errors.Unwrap(failed[0])) {
			t.Errorf("%d callers of 20 have the error of the one request: %v", len(failed), failed)
		}
		if values, failed := getAll(t.Context(), c); len(failed) > 0 {
			t.Errorf("the next ones read it again: %v, %v", values, failed)
		}
	})
}

// TestSecretCacheReaderGivesUp has a reader whose context ends, beside one that has time.
func TestSecretCacheReaderGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		c := kube.NewSecretCache(v.Client(), nil)
		hurried, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		var callers sync.WaitGroup
		callers.Go(func() {
			if _, err := c.Data(hurried, keys); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the first caller: %v", err)
			}
		})
		synctest.Wait()
		if values, failed := getAll(t.Context(), c); len(failed) > 0 || values["1"] != 20 {
			t.Errorf("the other callers: %v, %v", values, failed)
		}
		callers.Wait()
		late, cancelLate := context.WithCancelCause(t.Context())
		cancelLate(errors.New("too late"))
		time.Sleep(time.Minute)
		reader, cancelReader := context.WithCancel(t.Context())
		callers.Go(func() { _, _ = c.Data(reader, keys) })
		synctest.Wait()
		if _, err := c.Data(late, keys); err == nil || !strings.Contains(err.Error(), "get secret ns/keys: too late") {
			t.Errorf("a caller whose time is over does not wait: %v", err)
		}
		cancelReader()
		callers.Wait()
	})
}

func TestSecretNamespaces(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "keys"}})
	cases := map[string]struct {
		reason     string
		namespaces []string
		err        string
	}{
		"All":     {reason: "without a list, all are allowed"},
		"Listed":  {reason: "the namespace is in the list", namespaces: []string{"other", "ns"}},
		"Refused": {reason: "it is not", namespaces: []string{"a", "b"}, err: `secret ns/keys is refused: namespace "ns" is not in --secret-namespaces=a,b`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := kube.NewSecretCache(cluster.Client(), tc.namespaces).Data(t.Context(), keys)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || err.Error() != tc.err) {
				t.Errorf("%s: got error %v, want %q", tc.reason, err, tc.err)
			}
		})
	}
}
