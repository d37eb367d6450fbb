package nodeinfo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const nodeName = "node-1"

func newNode() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}} }

// world is a cluster in memory and a writer for its node.
type world struct {
	t *testing.T
	c *kubetest.Cluster
	w *Writer
}

// story runs a test in virtual time.
func story(t *testing.T, change func(*Config), tell func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := kubetest.New(newNode())
		cfg := Config{Client: c.Client(), NodeName: nodeName}
		if change != nil {
			change(&cfg)
		}
		w, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		tell(t, &world{t: t, c: c, w: w})
	})
}

// node returns the Node as it is.
func (w *world) node() *corev1.Node {
	w.t.Helper()
	n, err := w.c.Client().Nodes().Get(w.t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// csiNode returns the CSINode as it is.
func (w *world) csiNode() *storagev1.CSINode {
	w.t.Helper()
	n, err := w.c.Client().CSINodes().Get(w.t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// ids returns the drivers of the CSINode, as name=nodeID.
func (w *world) ids() []string {
	w.t.Helper()
	ids := []string{}
	for _, e := range w.csiNode().Spec.Drivers {
		ids = append(ids, e.Name+"="+e.NodeID)
	}
	return ids
}

// expectIDs compares the drivers of the CSINode.
func (w *world) expectIDs(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), w.ids()); diff != "" {
		w.t.Errorf("drivers of the CSINode, -want +got:\n%s", diff)
	}
}

// expectWrites compares the writes since the last call.
func (w *world) expectWrites(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.takeWrites()); diff != "" {
		w.t.Errorf("writes, -want +got:\n%s", diff)
	}
}

// takeWrites returns what was written since the last time.
func (w *world) takeWrites() (got []string) {
	for _, write := range w.c.Writes() {
		text := write.Verb + " " + write.Resource
		if write.Subresource != "" {
			text += "/" + write.Subresource
		}
		if write.Err != nil {
			text += " refused"
		}
		got = append(got, text)
	}
	w.c.ResetWrites()
	return got
}

func (w *world) install(d Driver) {
	w.t.Helper()
	if err := w.w.Install(w.t.Context(), d); err != nil {
		w.t.Fatal(err)
	}
}

func driverD() Driver {
	return Driver{Name: "d.example", NodeID: "id-1", Topology: map[string]string{"topology.d.example/zone": "a"}, MaxVolumes: 4}
}

func TestEnsureCSINode(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		if err := w.w.Problem(); err == nil || !strings.Contains(err.Error(), nodeName) {
			t.Errorf("before: problem %v, want one that names the node", err)
		}
		if err := w.w.EnsureCSINode(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.expectWrites("create csinodes")
		got := w.csiNode()
		want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: w.node().UID}}
		if diff := cmp.Diff(want, got.OwnerReferences); diff != "" {
			t.Errorf("owner, -want +got:\n%s", diff)
		}
		w.expectIDs()
		if err := w.w.Problem(); err != nil {
			t.Errorf("after: problem %v", err)
		}
		if err := w.w.EnsureCSINode(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.expectWrites()
	})
}

// The kubelet ends itself after about 140 s of this.
func TestEnsureCSINodeNeverGivesUp(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}, nodeName, errors.New("not yet"))
		w.c.Fail("create", "csinodes", forbidden, 0)
		start := time.Now()
		time.AfterFunc(time.Hour, w.c.Heal)
		if err := w.w.EnsureCSINode(t.Context()); err != nil {
			t.Fatal(err)
		}
		took, writes := time.Since(start), len(w.c.Writes())
		if took < time.Hour || took > time.Hour+time.Minute {
			t.Errorf("took %v, want an hour and at most the longest pause", took)
		}
		if writes > 150 {
			t.Errorf("%d attempts in an hour", writes)
		}
		w.expectIDs()
	})
}

func TestEnsureCSINodeEndsWithItsContext(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		w.c.Fail("get", "nodes", errors.New("connection refused"), 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := w.w.EnsureCSINode(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("got %v, want the deadline and the last reason", err)
		}
		if problem := w.w.Problem(); problem == nil || !strings.Contains(problem.Error(), "connection refused") {
			t.Errorf("problem %v", problem)
		}
	})
}

func TestInstallAndUninstall(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		w.install(driverD())
		w.expectWrites("patch nodes/status", "create csinodes")
		want := []storagev1.CSINodeDriver{{
			Name: "d.example", NodeID: "id-1", TopologyKeys: []string{"topology.d.example/zone"},
			Allocatable: &storagev1.VolumeNodeResources{Count: pointer(int32(4))},
		}}
		if diff := cmp.Diff(want, w.csiNode().Spec.Drivers); diff != "" {
			t.Errorf("CSINode, -want +got:\n%s", diff)
		}
		node := w.node()
		if node.Labels["topology.d.example/zone"] != "a" || node.Annotations[NodeIDAnnotation] != `{"d.example":"id-1"}` {
			t.Errorf("labels %v, annotations %v", node.Labels, node.Annotations)
		}
		w.install(driverD())
		w.expectWrites()
		w.install(Driver{Name: "e.example", NodeID: "id-2"})
		w.expectWrites("patch nodes/status", "update csinodes")
		if diff := cmp.Diff([]Driver{driverD(), {Name: "e.example", NodeID: "id-2"}}, w.w.Installed()); diff != "" {
			t.Errorf("installed, -want +got:\n%s", diff)
		}

		if err := w.w.Uninstall(t.Context(), "d.example"); err != nil {
			t.Fatal(err)
		}
		w.expectWrites("update csinodes", "patch nodes/status")
		w.expectIDs("e.example=id-2")
		node = w.node()
		if node.Labels["topology.d.example/zone"] != "a" || node.Annotations[NodeIDAnnotation] != `{"e.example":"id-2"}` {
			t.Errorf("labels %v, annotations %v: a label stays, as volumes may refer to it", node.Labels, node.Annotations)
		}
		if err := w.w.Uninstall(t.Context(), "e.example"); err != nil {
			t.Fatal(err)
		}
		if _, ok := w.node().Annotations[NodeIDAnnotation]; ok {
			t.Error("the annotation without drivers is still there")
		}
		w.c.ResetWrites()
		if err := w.w.Uninstall(t.Context(), "e.example"); err != nil {
			t.Fatal(err)
		}
		w.expectWrites()
	})
}

// The API refuses to change an entry in place, which costs the kubelet a
// failed registration.
func TestChangedNodeIDTakesTwoWrites(t *testing.T) {
	story(t, nil, func(_ *testing.T, w *world) {
		w.install(driverD())
		w.c.ResetWrites()
		d := driverD()
		d.NodeID, d.Topology = "id-2", map[string]string{"topology.d.example/rack": "r"}
		w.install(d)
		w.expectWrites("patch nodes/status", "update csinodes", "update csinodes")
		w.expectIDs("d.example=id-2")
	})
}

func TestInstallReturnsWhatDoesNotPass(t *testing.T) {
	cases := map[string]struct {
		reason  string
		prepare func(w *world)
		d       Driver
		want    string
	}{
		"Collision": {
			reason: "a label of another value", d: driverD(), want: "detected topology value collision",
			prepare: func(w *world) {
				if err := w.c.Merge("nodes", "", nodeName, []byte(`{"metadata":{"labels":{"topology.d.example/zone":"b"}}}`)); err != nil {
					w.t.Fatal(err)
				}
			},
		},
		"Invalid": {reason: "what the API would refuse", d: Driver{Name: "d.example"}, prepare: func(*world) {}, want: "node ID must not be empty"},
		"Forbidden": {
			reason: "the reason is not in the words of the API server, so it is explained",
			d:      Driver{Name: "d.example", NodeID: "n", Topology: map[string]string{"topology.kubernetes.io/rack": "r"}},
			prepare: func(w *world) {
				w.c.Fail("patch", "nodes", apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, nodeName, errors.New("no")), 0)
			},
			want: "must not set labels in these domains on itself: topology.kubernetes.io/rack",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			story(t, nil, func(t *testing.T, w *world) {
				tc.prepare(w)
				if err := w.w.Install(t.Context(), tc.d); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: got %v, want an error that says %q", tc.reason, err, tc.want)
				}
				if got := w.w.Installed(); len(got) != 0 {
					t.Errorf("%s: installed %v", tc.reason, got)
				}
			})
		})
	}
}

func TestInstallTriesAgain(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	cases := map[string]struct {
		reason string
		err    error
	}{
		"Conflict":    {reason: "somebody else wrote", err: apierrors.NewConflict(nodes, nodeName, errors.New("x"))},
		"Timeout":     {reason: "the server is busy", err: apierrors.NewServerTimeout(nodes, "patch", 1)},
		"TooMany":     {reason: "the server defends itself", err: apierrors.NewTooManyRequests("x", 1)},
		"Internal":    {reason: "the server has a problem", err: apierrors.NewInternalError(errors.New("x"))},
		"Unavailable": {reason: "the server is starting", err: apierrors.NewServiceUnavailable("x")},
		"NotFound":    {reason: "the Node is about to be created again", err: apierrors.NewNotFound(nodes, nodeName)},
		"NoAnswer":    {reason: "the network is down", err: errors.New("connection refused")},
	}
	for name, tc := range cases {
		for _, at := range []string{"get nodes", "patch nodes", "get csinodes", "create csinodes"} {
			if name == "NotFound" && at == "get csinodes" {
				continue // that is no error
			}
			t.Run(fmt.Sprintf("%s/%s", name, strings.ReplaceAll(at, " ", "")), func(t *testing.T) {
				story(t, nil, func(_ *testing.T, w *world) {
					verb, resource, _ := strings.Cut(at, " ")
					w.c.Fail(verb, resource, tc.err, 3)
					w.install(driverD())
					w.expectIDs("d.example=id-1")
				})
			})
		}
	}
}

// Each call has a deadline: an API server that accepts and never answers must
// not hold a driver forever.
func TestCallsHaveADeadline(t *testing.T) {
	story(t, func(cfg *Config) { cfg.CallTimeout = 5 * time.Second }, func(t *testing.T, w *world) {
		w.c.Inject(kubetest.Fault{Verb: "get", Resource: "nodes", Hang: true, Times: 1})
		start := time.Now()
		w.install(driverD())
		if took := time.Since(start); took < 5*time.Second || took > 6*time.Second {
			t.Errorf("took %v, want one deadline of 5s and a short pause", took)
		}
	})
}

func TestBrokenAnnotationIsRepaired(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		w.install(Driver{Name: "e.example", NodeID: "id-2"})
		if err := w.c.Merge("nodes", "", nodeName, []byte(`{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":"{broken"}}}`)); err != nil {
			t.Fatal(err)
		}
		w.install(driverD())
		if got := w.node().Annotations[NodeIDAnnotation]; got != `{"d.example":"id-1","e.example":"id-2"}` {
			t.Errorf("annotation %s", got)
		}
	})
}

func TestNoAnnotation(t *testing.T) {
	story(t, func(cfg *Config) { cfg.NoAnnotation = true }, func(t *testing.T, w *world) {
		w.install(Driver{Name: "e.example", NodeID: "id-2"})
		w.expectWrites("create csinodes")
		if got := w.node().Annotations; len(got) != 0 {
			t.Errorf("annotations %v", got)
		}
	})
}

func TestOverwrite(t *testing.T) {
	story(t, func(cfg *Config) { cfg.Collision = CollisionOverwrite }, func(t *testing.T, w *world) {
		w.install(driverD())
		d := driverD()
		d.Topology = map[string]string{"topology.d.example/zone": "b"}
		w.install(d)
		node := w.node()
		if node.Labels["topology.d.example/zone"] != "b" || node.Annotations[LabelsAnnotation] != `{"topology.d.example/zone":"b"}` {
			t.Errorf("labels %v, annotations %v", node.Labels, node.Annotations)
		}
		if err := w.c.Merge("nodes", "", nodeName, []byte(`{"metadata":{"labels":{"topology.d.example/zone":"c"}}}`)); err != nil {
			t.Fatal(err)
		}
		if err := w.w.Install(t.Context(), driverD()); !errors.Is(err, ErrCollision) {
			t.Errorf("a label that an administrator has set: %v, want ErrCollision", err)
		}
	})
}

// Drivers register at the same time; none may lose the entry of another.
func TestManyDriversAtOnce(t *testing.T) {
	story(t, nil, func(t *testing.T, w *world) {
		const n = 20
		errs := make(chan error, n)
		for i := range n {
			go func() {
				errs <- w.w.Install(t.Context(), Driver{Name: fmt.Sprintf("d%d.example", i), NodeID: "n"})
			}()
		}
		for range n {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if got := len(w.ids()); got != n {
			t.Errorf("%d drivers in the CSINode, want %d", got, n)
		}
		if got := len(parseMap(w.node().Annotations[NodeIDAnnotation])); got != n {
			t.Errorf("%d drivers in the annotation, want %d", got, n)
		}
	})
}

func TestNewReportsAllAtOnce(t *testing.T) {
	_, err := New(Config{Collision: "ask", CallTimeout: -1})
	for _, want := range []string{"client: must not be nil", `node name "": must not be empty`, `collision policy "ask"`, "must not be negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to say %q", err, want)
		}
	}
}
