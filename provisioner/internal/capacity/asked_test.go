package capacity

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/topology"
)

// waiting runs act, and returns the items for which GetCapacity is called within some time after it.
func waiting(t *testing.T, within time.Duration, act func(c *Controller, w *world)) []string {
	t.Helper()
	var asked []string
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cluster, server := kubeapitest.NewCluster(), csitest.New(csitest.Options{})
		c, err := New(Config{
			Info: w.info, Client: csi.NewControllerClient(server.Conn()), Kube: kubeapitest.New(cluster.Client()), Source: w,
			Settings: Settings{Namespace: "storage", ManagedBy: ManagedBy(""), Poll: time.Hour, Workers: 1, Retry: flagset.NewRetry(), Timeout: time.Second},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		time.Sleep(time.Minute)
		server.ResetCalls()
		act(c, w)
		time.Sleep(within)
		synctest.Wait()
		for _, call := range server.Calls() {
			request, _ := call.Request.(*csi.GetCapacityRequest)
			place, err := topology.FromTopology(request.GetAccessibleTopology())
			if err != nil {
				t.Fatal(err)
			}
			asked = append(asked, request.GetParameters()["class"]+"@"+place.String())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return asked
}

// TestAskedAgain checks that after a change GetCapacity is called once for each capacity that may have changed.
func TestAskedAgain(t *testing.T) {
	at := func(t *testing.T, texts ...string) *corev1.VolumeNodeAffinity {
		t.Helper()
		var accessible []*csi.Topology
		for _, text := range texts {
			accessible = append(accessible, segment(t, text).Topology())
		}
		affinity, err := topology.NodeAffinity(accessible)
		if err != nil {
			t.Fatal(err)
		}
		return affinity
	}
	preferred := func(t *testing.T, text string) *csi.TopologyRequirement {
		t.Helper()
		return &csi.TopologyRequirement{Preferred: []*csi.Topology{segment(t, text).Topology()}}
	}
	cases := map[string]struct {
		reason string
		act    func(t *testing.T, c *Controller, w *world)
		want   []string
	}{
		"Nothing": {reason: "Nothing has changed.", act: func(*testing.T, *Controller, *world) {}},
		"Volume":  {reason: "All classes may share the capacity of a segment.", act: func(t *testing.T, c *Controller, _ *world) { t.Helper(); c.VolumeChanged("fast", at(t, "zone=a")) }, want: []string{"fast@zone=a", "slow@zone=a"}},
		"Swarm": {reason: "Many volumes are one change.", act: func(t *testing.T, c *Controller, _ *world) {
			t.Helper()
			for range 50 {
				c.VolumeChanged("fast", at(t, "zone=a"))
			}
		}, want: []string{"fast@zone=a", "slow@zone=a"}},
		"Wider":     {reason: "A volume of a whole zone uses capacity of its racks.", act: func(t *testing.T, c *Controller, _ *world) { t.Helper(); c.VolumeChanged("fast", at(t, "zone=b")) }, want: []string{"fast@rack=1,zone=b", "fast@rack=2,zone=b", "slow@rack=1,zone=b", "slow@rack=2,zone=b"}},
		"Elsewhere": {reason: "There is no node.", act: func(t *testing.T, c *Controller, _ *world) { t.Helper(); c.VolumeChanged("fast", at(t, "zone=z")) }},
		"Anywhere":  {reason: "Its segment is unknown.", act: func(_ *testing.T, c *Controller, _ *world) { c.VolumeChanged("fast", nil) }, want: []string{"fast@rack=1,zone=b", "fast@rack=2,zone=b", "fast@zone=a"}},
		"NoTopology": {reason: "There is one segment, which all classes share.", act: func(_ *testing.T, c *Controller, w *world) {
			w.segments = []topology.Segment{{}}
			c.sourceChanged()
			time.Sleep(time.Minute)
			c.VolumeChanged("fast", nil)
		}, want: []string{"fast@", "fast@", "slow@", "slow@"}},
		"Exhausted":           {reason: "The preferred segment has no capacity.", act: func(t *testing.T, c *Controller, _ *world) { t.Helper(); c.Exhausted("fast", preferred(t, "zone=a")) }, want: []string{"fast@zone=a"}},
		"NoTopologyExhausted": {reason: "No segment has capacity.", act: func(_ *testing.T, c *Controller, _ *world) { c.Exhausted("slow", nil) }, want: []string{"slow@rack=1,zone=b", "slow@rack=2,zone=b", "slow@zone=a"}},
		"Class": {reason: "A class means another pool now.", act: func(_ *testing.T, c *Controller, w *world) {
			w.classes["slow"].ResourceVersion = "2"
			c.sourceChanged()
		}, want: []string{"slow@rack=1,zone=b", "slow@rack=2,zone=b", "slow@zone=a"}},
		"NewSegment": {reason: "GetCapacity is called only for the new segment.", act: func(t *testing.T, c *Controller, w *world) {
			t.Helper()
			w.segments = append(w.segments, segment(t, "zone=c"))
			c.sourceChanged()
			c.sourceChanged()
		}, want: []string{"fast@zone=c", "slow@zone=c"}},
		"SegmentGone": {reason: "GetCapacity is not called for a segment without nodes.", act: func(_ *testing.T, c *Controller, w *world) { w.segments = w.segments[:1]; c.sourceChanged() }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := waiting(t, time.Minute, func(c *Controller, w *world) {
				tc.act(t, c, w)
			})
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\nasked (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestFirstChangeDoesNotWait: pods may already wait for the objects of a new class or place. Changes of many nodes and volumes are batched.
func TestFirstChangeDoesNotWait(t *testing.T) {
	class := func(c *Controller, w *world) {
		w.classes["new"] = lateClass("new")
		c.sourceChanged()
	}
	place := func(c *Controller, w *world) {
		w.segments = append(w.segments, segment(t, "zone=c"))
		c.sourceChanged()
		synctest.Wait()
	}
	volume := func(c *Controller, _ *world) { c.VolumeChanged("fast", nil) }
	cases := map[string]struct {
		reason string
		within time.Duration
		act    []func(c *Controller, w *world)
		want   int
	}{
		"Class":         {reason: "GetCapacity is called for a new class in each segment.", act: []func(*Controller, *world){class}, want: 3},
		"Place":         {reason: "It is called for a new segment of each class.", act: []func(*Controller, *world){place}, want: 2},
		"Volume":        {reason: "Others may follow.", act: []func(*Controller, *world){volume}},
		"VolumeSettled": {reason: "None has followed.", within: batchDelay, act: []func(*Controller, *world){volume}, want: 3},
		"Soon":          {reason: "After one change there may be many.", act: []func(*Controller, *world){place, class}, want: 2},
		"SoonSettled":   {reason: "GetCapacity is called once per item.", within: batchDelay, act: []func(*Controller, *world){place, class}, want: 6},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := waiting(t, tc.within, func(c *Controller, w *world) {
				for _, act := range tc.act {
					act(c, w)
				}
			})
			if len(got) != tc.want {
				t.Errorf("%s\nasked for %d: %q, want %d", tc.reason, len(got), got, tc.want)
			}
		})
	}
}

// TestNewClassesAreFirst: new items have high priority, as pods may be waiting for them, and not for a refresh.
func TestNewClassesAreFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, server := newWorld(t), csitest.New(csitest.Options{})
		c, err := New(Config{
			Info: w.info, Client: csi.NewControllerClient(server.Conn()), Kube: kubeapitest.New(kubeapitest.NewCluster().Client()), Source: w,
			Settings: Settings{Namespace: "storage", ManagedBy: ManagedBy(""), Poll: time.Hour, Workers: 1, Retry: flagset.NewRetry(), Timeout: time.Second},
		})
		if err != nil {
			t.Fatal(err)
		}
		c.update()
		for _, i := range c.all() {
			c.trackPublished(c.object(i, &csi.GetCapacityResponse{}), true)
		}
		c.enqueue(c.all())
		w.classes["new"] = lateClass("new")
		c.enqueue(c.update())
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		ended := make(chan error, 1)
		go func() { ended <- c.items.Run(ctx) }()
		time.Sleep(time.Second)
		var order []string
		for _, call := range server.Calls() {
			request, _ := call.Request.(*csi.GetCapacityRequest)
			order = append(order, request.GetParameters()["class"])
		}
		if diff := cmp.Diff([]string{"new", "new", "new", "fast", "fast", "fast", "slow", "slow", "slow"}, order); diff != "" {
			t.Errorf("classes that were asked about (-want +got):\n%s", diff)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
