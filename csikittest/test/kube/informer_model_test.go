package kube_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
)

// The copy agrees with the API after any changes, breaks of watches and own writes, and its notifications, put together,
// make the same picture.
func TestInformerAgreesWithTheAPI(t *testing.T) {
	t.Parallel()
	seeds.Each(t, func(t *testing.T, seed uint64) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			m := newMirror(t, rand.New(rand.NewPCG(seed, 1)))
			defer m.end(t)
			for step := range 60 {
				did := m.step(t)
				if step%6 == 5 {
					time.Sleep(2 * time.Minute) // virtual: watches that broke are back, what nobody confirmed is forgotten
					m.compare(t, did)
				}
			}
		})
	})
}

// mirror is an informer and what its notifications add up to.
type mirror struct {
	random   *rand.Rand
	cluster  *kubetest.Cluster
	client   kube.Pods
	informer *kube.Informer[*corev1.Pod]
	notified map[string]string // name -> node
	end      func(*testing.T)
}

func newMirror(t *testing.T, random *rand.Rand) *mirror {
	t.Helper()
	m := &mirror{random: random, cluster: kubetest.New(), notified: map[string]string{}}
	m.client = m.cluster.Client().Pods("ns")
	m.informer = kube.NewInformer(m.cluster.Client().Pods(""), kube.InformerOptions[*corev1.Pod]{
		Index:     map[string]func(*corev1.Pod) []string{"node": func(p *corev1.Pod) []string { return []string{p.Spec.NodeName} }},
		Transform: slimPod,
	})
	m.informer.OnChange(func(before, after *corev1.Pod) {
		if after == nil {
			delete(m.notified, before.Name)
			return
		}
		m.notified[after.Name] = after.Spec.NodeName
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.informer.Run(ctx) }()
	m.end = func(t *testing.T) {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("end of Run: %v", err)
		}
	}
	if err := m.informer.WaitSynced(ctx); err != nil {
		t.Fatal(err)
	}
	return m
}

// step does something to the cluster, and says what.
func (m *mirror) step(t *testing.T) string {
	t.Helper()
	name := fmt.Sprint("p-", m.random.IntN(5))
	node := fmt.Sprint("n-", m.random.IntN(3))
	switch what := m.random.IntN(10); what {
	case 0:
		m.cluster.BreakWatches()
		return "break watches"
	case 1:
		m.cluster.Compact()
		m.cluster.BreakWatches()
		return "compact"
	case 2, 3:
		m.ignoreMissing(t, m.client.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		return "delete " + name
	case 4:
		m.ignoreMissing(t, m.cluster.Remove("pods", "ns", name))
		return "remove " + name
	case 5:
		synctest.Wait() // the watch has brought everything
		return "wait"
	default:
		m.write(t, pod(name, node), what%2 == 0)
		return "write " + name + " on " + node
	}
}

// write stores a pod, and remembers it as an own write, perhaps.
func (m *mirror) write(t *testing.T, p *corev1.Pod, remember bool) {
	t.Helper()
	stored, err := m.client.Create(t.Context(), p, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		stored, err = m.client.Update(t.Context(), p, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if !remember {
		return
	}
	m.informer.Remember(stored)
	if got, ok := m.informer.Get("ns", p.Name); !ok || got.Spec.NodeName != p.Spec.NodeName {
		t.Errorf("an own write is seen at once, got %+v, %t", got, ok)
	}
	on := m.informer.ByIndex("node", p.Spec.NodeName)
	if !slices.ContainsFunc(on, func(other *corev1.Pod) bool { return other.Name == p.Name }) {
		t.Errorf("an own write is found by its index at once, got %v", podNames(on))
	}
}

func (m *mirror) ignoreMissing(t *testing.T, err error) {
	t.Helper()
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// compare looks at the cluster in all ways that an informer offers.
func (m *mirror) compare(t *testing.T, did string) {
	t.Helper()
	synctest.Wait()
	want := map[string]string{}
	for _, obj := range m.cluster.Objects("pods") {
		if p, ok := obj.(*corev1.Pod); ok {
			want[p.Name] = p.Spec.NodeName
		}
	}
	views := map[string]map[string]string{"notifications": m.notified, "List": {}, "Get": {}, "ByIndex": {}}
	for _, p := range m.informer.List() {
		views["List"][p.Name] = p.Spec.NodeName
		if p.Spec.Hostname != "" || p.ManagedFields != nil {
			t.Errorf("%s was not transformed: %+v", p.Name, p)
		}
	}
	for i := range 5 {
		if p, ok := m.informer.Get("ns", fmt.Sprint("p-", i)); ok {
			views["Get"][p.Name] = p.Spec.NodeName
		}
	}
	for i := range 3 {
		for _, p := range m.informer.ByIndex("node", fmt.Sprint("n-", i)) {
			views["ByIndex"][p.Name] += p.Spec.NodeName
		}
	}
	for name, got := range views {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%s after %q (-API +copy):\n%s", name, did, diff)
		}
	}
}

// Two informers of one kind with different selections do not disturb each other.
func TestInformersOfOneKind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New(pod("a", "n-0"), pod("b", "n-1"), pod("c", "n-1"))
		ctx, cancel := context.WithCancel(t.Context())
		want := map[string]string{"spec.nodeName=n-0": "a", "spec.nodeName=n-1": "b c", "": "a b c"}
		done := make(chan error, len(want))
		informers := map[string]*kube.Informer[*corev1.Pod]{}
		for selector := range want {
			i := kube.NewInformer(cluster.Client().Pods("ns"), kube.InformerOptions[*corev1.Pod]{FieldSelector: selector})
			informers[selector] = i
			go func() { done <- i.Run(ctx) }()
			if err := i.WaitSynced(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for selector, names := range want {
			if got := strings.Join(podNames(informers[selector].List()), " "); got != names {
				t.Errorf("%q: got %q, want %q", selector, got, names)
			}
		}
		cancel()
		for range want {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}
