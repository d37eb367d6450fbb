package capacity

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/topology"
)

const driver = "test.csi.longshore.example"

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// world is a Source that a test changes as it likes.
type world struct {
	classes  map[string]*storagev1.StorageClass
	segments []topology.Segment
	unable   bool
}

var _ Source = (*world)(nil)

// WaitSynced implements Source.
func (w *world) WaitSynced(context.Context) error { return nil }

// AllClasses implements Source.
func (w *world) AllClasses() (all []*storagev1.StorageClass) {
	for _, class := range w.classes {
		all = append(all, class)
	}
	return all
}

// Class implements Source.
func (w *world) Class(name string) (*storagev1.StorageClass, bool) {
	class, ok := w.classes[name]
	return class, ok
}

// Segments implements Source.
func (w *world) Segments() []topology.Segment { return w.segments }

// OnClass implements Source.
func (w *world) OnClass(func()) {}

// OnTopology implements Source.
func (w *world) OnTopology(func()) {}

// info describes the driver.
func (w *world) info() *csiclient.Info {
	return &csiclient.Info{
		Name:       driver,
		Plugin:     map[csi.PluginCapability_Service_Type]bool{csi.PluginCapability_Service_CONTROLLER_SERVICE: true},
		Controller: map[csi.ControllerServiceCapability_RPC_Type]bool{csi.ControllerServiceCapability_RPC_GET_CAPACITY: !w.unable},
	}
}

// segment returns a segment of its text.
func segment(t *testing.T, text string) topology.Segment {
	t.Helper()
	s, err := topology.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// lateClass returns a class with late binding.
func lateClass(name string) *storagev1.StorageClass {
	late := storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver, VolumeBindingMode: &late, Parameters: map[string]string{"class": name}}
}

// newWorld returns two classes and three places.
func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{
		classes:  map[string]*storagev1.StorageClass{"fast": lateClass("fast"), "slow": lateClass("slow")},
		segments: []topology.Segment{segment(t, "zone=a"), segment(t, "rack=1,zone=b"), segment(t, "rack=2,zone=b")},
	}
}

// newController returns a controller that does not run, with what is to be published decided.
func newController(t *testing.T, w *world) *Controller {
	t.Helper()
	c, err := New(Config{
		Info: w.info, Client: csi.NewControllerClient(csitest.New(csitest.Options{}).Conn()), Kube: kubeapitest.New(kubeapitest.NewCluster().Client()), Source: w,
		Settings: Settings{Namespace: "storage", ManagedBy: ManagedBy(""), Poll: time.Minute, Workers: 1, Retry: flagset.NewRetry(), Timeout: time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestManagedBy compares with the labels that the external-provisioner has given its objects.
func TestManagedBy(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	for node, want := range map[string]string{
		"":    "external-provisioner",
		"n1":  "external-provisioner-n1",
		x(42): "external-provisioner-" + x(42),
		x(43): "external-p-53f40b57-" + x(43),
		x(52): "e-53f40b57-" + x(52),
		x(53): "external-provisioner-497e2e42",
		x(63): "external-provisioner-8cf00302",
	} {
		if got := ManagedBy(node); got != want || len(got) > 63 {
			t.Errorf("node of %d characters: %q, want %q", len(node), got, want)
		}
	}
}

func TestItemOf(t *testing.T) {
	cases := map[string]struct {
		reason   string
		topology *metav1.LabelSelector
		want     string
	}{
		"Segment":   {reason: "The form that is written.", topology: &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "a"}}, want: "fast at zone=a"},
		"All":       {reason: "An empty selector has all nodes.", topology: &metav1.LabelSelector{}, want: "fast at "},
		"None":      {reason: "Without one no node has it."},
		"OtherForm": {reason: "Nobody writes that.", topology: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: metav1.LabelSelectorOpExists}}}},
		"Malformed": {reason: "Nobody has such labels.", topology: &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "not a value"}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := itemOf(&storagev1.CSIStorageCapacity{NodeTopology: tc.topology, StorageClassName: "fast"})
			if tc.want == "" {
				tc.want = item{}.String()
			}
			if got.String() != tc.want {
				t.Errorf("%s\nitem %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestGoal(t *testing.T) {
	immediate := storagev1.VolumeBindingImmediate
	allow := func(class *storagev1.StorageClass, terms ...map[string]string) {
		for _, term := range terms {
			var selector corev1.TopologySelectorTerm
			for key, value := range term {
				selector.MatchLabelExpressions = append(selector.MatchLabelExpressions, corev1.TopologySelectorLabelRequirement{Key: key, Values: strings.Split(value, "|")})
			}
			class.AllowedTopologies = append(class.AllowedTopologies, selector)
		}
	}
	const all = "fast at zone=a, fast at rack=1,zone=b, fast at rack=2,zone=b"
	cases := map[string]struct {
		reason    string
		change    func(w *world, class *storagev1.StorageClass)
		immediate bool
		want      string
	}{
		"All":             {reason: "One for each segment.", want: all},
		"Unable":          {reason: "The driver does not report its capacity.", change: func(w *world, _ *storagev1.StorageClass) { w.unable = true }},
		"Nowhere":         {reason: "The driver is on no node.", change: func(w *world, _ *storagev1.StorageClass) { w.segments = nil }},
		"Immediate":       {reason: "No scheduler asks.", change: func(_ *world, c *storagev1.StorageClass) { c.VolumeBindingMode = &immediate }},
		"DefaultMode":     {reason: "The default is immediate.", change: func(_ *world, c *storagev1.StorageClass) { c.VolumeBindingMode = nil }},
		"ImmediateWanted": {reason: "Somebody asks.", change: func(_ *world, c *storagev1.StorageClass) { c.VolumeBindingMode = &immediate }, immediate: true, want: all},
		"Foreign":         {reason: "The class belongs to another driver.", change: func(_ *world, c *storagev1.StorageClass) { c.Provisioner = "other" }},
		"Malformed": {reason: "Nothing can be made of it.", change: func(_ *world, c *storagev1.StorageClass) {
			c.Parameters = map[string]string{"csi.storage.k8s.io/x": ""}
		}},
		"Allowed":     {reason: "Volumes are in some zones only.", change: func(_ *world, c *storagev1.StorageClass) { allow(c, map[string]string{"zone": "a|c"}) }, want: "fast at zone=a"},
		"AllowedBoth": {reason: "All keys of a term must fit.", change: func(_ *world, c *storagev1.StorageClass) { allow(c, map[string]string{"zone": "b", "rack": "2"}) }, want: "fast at rack=2,zone=b"},
		"AllowedTwice": {reason: "One term is enough.", change: func(_ *world, c *storagev1.StorageClass) {
			allow(c, map[string]string{"zone": "x"}, map[string]string{"rack": "1"})
		}, want: "fast at rack=1,zone=b"},
		"AllowedNoTopology": {reason: "Volumes of a driver without topology are everywhere, whatever the class allows.", change: func(w *world, c *storagev1.StorageClass) {
			w.segments = []topology.Segment{{}}
			allow(c, map[string]string{"zone": "a"})
		}, want: "fast at "},
		"AllowedNothing": {reason: "A term without expressions selects nothing, as for CreateVolume.", change: func(_ *world, c *storagev1.StorageClass) {
			allow(c, map[string]string{})
		}},
		"AllowedElsewhere": {reason: "No volume is made for a node that lacks a key of the term, so that no pod may be sent there for one.", change: func(_ *world, c *storagev1.StorageClass) {
			allow(c, map[string]string{"power": "1"})
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			delete(w.classes, "slow")
			if tc.change != nil {
				tc.change(w, w.classes["fast"])
			}
			var items []item
			for i := range goalOf(w.info(), tc.immediate, w) {
				items = append(items, i)
			}
			slices.SortFunc(items, item.compare)
			var texts []string
			for _, i := range items {
				texts = append(texts, i.String())
			}
			if got := strings.Join(texts, ", "); got != tc.want {
				t.Errorf("%s\nitems %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestRenew(t *testing.T) {
	c := newController(t, newWorld(t))
	c.cfg.Settings.Owner = &metav1.OwnerReference{Name: "driver", UID: "new"}
	i := item{segment: segment(t, "zone=a"), class: "fast"}
	want := c.object(i, &csi.GetCapacityResponse{AvailableCapacity: 1 << 30})
	cases := map[string]struct {
		reason string
		change func(o *storagev1.CSIStorageCapacity)
		writes bool
		check  func(o *storagev1.CSIStorageCapacity) bool
	}{
		"Same":    {reason: "Nothing has changed.", change: func(*storagev1.CSIStorageCapacity) {}},
		"Form":    {reason: "A quantity may be written in many ways.", change: func(o *storagev1.CSIStorageCapacity) { q := want.Capacity.DeepCopy(); _ = q.String(); o.Capacity = &q }},
		"Added":   {reason: "What others add is theirs.", change: func(o *storagev1.CSIStorageCapacity) { o.Labels["a"], o.Annotations = "b", map[string]string{"c": "d"} }},
		"NoOwner": {reason: "The owner is missing.", change: func(o *storagev1.CSIStorageCapacity) { o.OwnerReferences = nil }, writes: true},
		"OldOwner": {reason: "The former owner may still be there.", change: func(o *storagev1.CSIStorageCapacity) { o.OwnerReferences[0].UID = "old" }, writes: true, check: func(o *storagev1.CSIStorageCapacity) bool {
			return len(o.OwnerReferences) == 2 && o.OwnerReferences[0].UID == "old"
		}},
		"Less":      {reason: "The capacity has changed.", change: func(o *storagev1.CSIStorageCapacity) { o.Capacity.Sub(*want.Capacity) }, writes: true},
		"Unknown":   {reason: "The capacity was unknown.", change: func(o *storagev1.CSIStorageCapacity) { o.Capacity = nil }, writes: true},
		"Maximum":   {reason: "The driver reports no maximum any more.", change: func(o *storagev1.CSIStorageCapacity) { o.MaximumVolumeSize = o.Capacity }, writes: true, check: func(o *storagev1.CSIStorageCapacity) bool { return o.MaximumVolumeSize == nil }},
		"Unlabeled": {reason: "It would not be known again.", change: func(o *storagev1.CSIStorageCapacity) { o.Labels = nil }, writes: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			is := want.DeepCopy()
			tc.change(is)
			before := is.DeepCopy()
			got := renew(is, want)
			if (got != nil) != tc.writes {
				t.Fatalf("%s\nwritten: %v, want %v: %v", tc.reason, got != nil, tc.writes, got)
			}
			if diff := cmp.Diff(before, is); diff != "" {
				t.Errorf("%s\nthe object of the cache was changed (-before +after):\n%s", tc.reason, diff)
			}
			if got != nil && renew(got, want) != nil {
				t.Errorf("%s\nit would be written again and again", tc.reason)
			}
			if tc.check != nil && !tc.check(got) {
				t.Errorf("%s\nobject %+v", tc.reason, got)
			}
		})
	}
}

// TestNamesDiffer gives each item, driver and instance another object, and the same one each time.
func TestNamesDiffer(t *testing.T) {
	seen := map[string]string{}
	for _, by := range []string{"external-provisioner", "external-provisioner-n1"} {
		for _, name := range []string{driver, "other"} {
			c := newController(t, newWorld(t))
			c.driver, c.cfg.Settings.ManagedBy = name, by
			for i := range goalOf(newWorld(t).info(), false, newWorld(t)) {
				what := fmt.Sprint(by, name, i)
				object := c.object(i, &csi.GetCapacityResponse{}).Name
				if other, taken := seen[object]; taken {
					t.Errorf("%s and %s have the name %s", what, other, object)
				}
				seen[object] = what
				if again := c.object(i, &csi.GetCapacityResponse{}).Name; again != object {
					t.Errorf("%s has the names %s and %s", what, object, again)
				}
			}
		}
	}
}

// TestQueueDoesNotGrow polls over and over without a worker: upstream's queue grew with each poll, for its keys were new ones
// each time.
func TestQueueDoesNotGrow(t *testing.T) {
	c := newController(t, newWorld(t))
	for range 5 {
		c.enqueue(c.update(), c.publishedItems(), c.all())
	}
	if got := c.items.State().Waiting; got != 6 {
		t.Errorf("%d keys wait, want one for each of 2 classes in 3 segments", got)
	}
}

// TestGauges counts before, while and after a controller works.
func TestGauges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		metrics := NewMetrics()
		registry := prometheus.NewRegistry()
		registry.MustRegister(metrics)
		gauges := func() (values []float64) {
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, family := range families {
				values = append(values, family.GetMetric()[0].GetGauge().GetValue())
			}
			return values // current, goal, obsolete
		}
		check := func(when string, want ...float64) {
			if diff := cmp.Diff(want, gauges()); diff != "" {
				t.Errorf("%s: current, goal, obsolete (-want +got):\n%s", when, diff)
			}
		}
		check("before", 0, 0, 0)
		w := newWorld(t)
		c := newController(t, w)
		metrics.Watch(c)
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		time.Sleep(time.Second)
		check("at work", 6, 6, 0)
		w.segments = w.segments[:1]
		c.update()
		check("places are gone", 2, 2, 4)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		metrics.Watch(nil)
		check("after", 0, 0, 0)
	})
}
