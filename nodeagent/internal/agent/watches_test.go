package agent

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

const otherNode = "node-2"

// newPair makes two nodes, with watches that they share and the driver in their process.
func newPair(t *testing.T) (first, second *cluster) {
	t.Helper()
	first, second = newCluster(t, csitest.Options{}), newCluster(t, csitest.Options{})
	first.cfg.Watches = NewWatches(first.api.Client(), 0)
	second.api, second.driver = first.api, first.driver.OnNode(otherNode, nil)
	second.cfg.Client, second.cfg.Watches, second.cfg.Template.Name = first.cfg.Client, first.cfg.Watches, otherNode
	for _, c := range []*cluster{first, second} {
		c.cfg.Drivers = []Driver{{Name: driverName, Conn: c.driver.Conn()}}
	}
	return first, second
}

// startPair runs two nodes and their watches until the test ends.
func startPair(t *testing.T, first, second *cluster) {
	t.Helper()
	first.start()
	second.start()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- first.cfg.Watches.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("watches ended with %v", err)
		}
	})
}

func podOn(node, name string) *corev1.Pod {
	pod := podWith(name, inlineSource())
	pod.Spec.NodeName = node
	return pod
}

// TestSharedWatches: each of two nodes gets its own pods by the watches of the process, and no others.
func TestSharedWatches(t *testing.T) {
	first, second := newPair(t)
	first.apply(csiDriver(false), podOn("", "unscheduled"), podOn("foreign", "foreign"))
	startPair(t, first, second)
	first.apply(podOn(nodeName, "a"), podOn(otherNode, "b"))
	for _, name := range []string{"a", "b"} {
		first.eventually("pod "+name+" to run", first.running(name))
	}
	for _, name := range []string{"unscheduled", "foreign"} {
		if p := first.pod(name); p.Status.Phase != corev1.PodPending {
			t.Errorf("pod %q is %s", name, p.Status.Phase)
		}
	}
	for c, want := range map[*cluster]string{first: "uid-a", second: "uid-b"} {
		pods, err := c.agent.plugin.Pods()
		if err != nil || len(pods) != 1 || string(pods[0]) != want {
			t.Errorf("node %s has pods %v (%v), want %s", c.agent.node(), pods, err, want)
		}
	}
	for _, name := range []string{"a", "b"} {
		first.deletePod(name, 30)
		first.eventually("pod "+name+" to be gone", first.gone(name))
	}
	first.expectClean()
	second.expectClean()
}

// TestPodReplacedWhileTheWatchIsBroken: the list after a broken watch has another pod of the name of one that is gone. The volume of the one that is gone is
// taken down, wherever the other is.
func TestPodReplacedWhileTheWatchIsBroken(t *testing.T) {
	for name, node := range map[string]string{"OnTheNode": nodeName, "OnAnotherNode": otherNode} {
		t.Run(name, func(t *testing.T) {
			first, second := newPair(t)
			first.apply(csiDriver(false))
			startPair(t, first, second)
			first.apply(podOn(nodeName, "a"))
			first.eventually("the pod to run", first.running("a"))
			lists, watches := first.refuse("list", "pods"), first.refuse("watch", "pods")
			first.api.BreakWatches()
			first.eventually("the watch to be broken", func() bool { return lists.Load()+watches.Load() > 0 })
			if err := first.api.Remove("pods", "ns", "a"); err != nil {
				t.Fatal(err)
			}
			next := podOn(node, "a")
			next.UID = "uid-next"
			first.apply(next)
			first.api.Compact()
			first.api.Heal()
			first.eventually("the next pod to run", first.running("a"))
			first.eventually("the volume of the pod that is gone to be unpublished", func() bool {
				pods, err := first.agent.plugin.Pods()
				return err == nil && !strings.Contains(strings.Join(uids(pods), " "), "uid-a")
			})
			first.deletePod("a", 30)
			first.eventually("the pod to be gone", first.gone("a"))
			first.expectClean()
			second.expectClean()
		})
	}
}

func uids(list []types.UID) []string {
	all := make([]string, 0, len(list))
	for _, uid := range list {
		all = append(all, string(uid))
	}
	return all
}
