package e2e

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// TestBrokenClusters breaks what administrators find broken, and reads what they read first: the first warning about an object, or if it has none its first
// event. It must name the cause, and what to do. A claim that is deleted while a pod uses it, and a volume whose policy is Retain, are no faults: kubectl describe says
// which pod that is, and the policy.
func TestBrokenClusters(t *testing.T) {
	dev(t)
	for _, f := range faults() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			b := newBroken(t)
			kind, name := f.make(b)
			b.checkFirst(kind, name, f.want)
			b.mend()
		})
	}
}

// fault is something that is broken.
type fault struct {
	name string
	// make breaks it, and returns the kind and the name of the object that has the event.
	make func(*broken) (kind, name string)
	// want are parts of the event: cause and remedy.
	want []string
}

// broken is a scene with a driver of its own.
type broken struct {
	*story
	driver *csitest.Driver
	// name is that of the driver, address its socket, and class that of claims for it.
	name, address, class string
	// stop ends the driver.
	stop func()
	// snapshots are to be deleted in the end.
	snapshots []*unstructured.Unstructured
}

func newBroken(t *testing.T) *broken {
	t.Helper()
	s := newStory(t)
	_, number, _ := strings.Cut(s.Namespace, "-")
	number, _, _ = strings.Cut(number, "-") // the namespace is too long for the path of a socket
	b := &broken{story: s, name: "broken-" + number + ".example.com", address: filepath.Join(t.TempDir(), "csi.sock"), class: s.Namespace + "-broken"}
	b.driver = csitest.New(csitest.Options{Name: b.name, Controller: append(csitest.AllController(), csitest.AllSnapshots()...), NodeID: b.Dev.Nodes[0], Node: []csi.NodeServiceCapability_RPC_Type{}, TargetPaths: true})
	return b
}

// serve starts the driver and sidecars of it.
func (b *broken) serve(components ...string) {
	b.T.Helper()
	b.stop = b.driver.ServeAt(b.T, b.address)
	for _, component := range components {
		b.runAs(component, b.Dev.KubeconfigOf(component))
	}
}

// mend has the driver do what it is asked for, and waits until everything is gone.
func (b *broken) mend() {
	b.T.Helper()
	b.driver.Heal()
	if b.stop != nil {
		b.stop()
		b.driver.ServeAt(b.T, b.address)
	}
	for _, s := range b.snapshots {
		b.Delete(s)
	}
	for _, name := range []string{"copy", "more", "data"} {
		b.DeleteClaim(name)
	}
	b.WaitNoSnapshots()
	b.WaitNothingLeft()
}

// runAs starts a sidecar with the rights of a user.
func (b *broken) runAs(component, kubeconfig string, args ...string) {
	b.T.Helper()
	b.Run(component, append([]string{"--csi-address=" + b.address, "--kubeconfig=" + kubeconfig, "--timeout=2s"}, args...)...)
}

// claim makes a claim for the driver.
func (b *broken) claim(name string) {
	b.T.Helper()
	b.AddClass(testbed.Class(b.class, b.name, storagev1.VolumeBindingImmediate))
	b.CreateClaim(name, b.class)
}

// bind makes a volume of the driver.
func (b *broken) bind() {
	b.T.Helper()
	b.claim("data")
	b.WaitBound("data")
}

// registry returns the directory of registration sockets of the first node.
func (b *broken) registry() string {
	return filepath.Join(b.Dev.NodeDirs[b.Dev.Nodes[0]], "plugins_registry")
}

// registrar registers the driver at another socket's address on the first node, and waits until that is known.
func (b *broken) registrar(address string) (end func()) {
	b.T.Helper()
	end = b.Run("csi-node-driver-registrar", "--csi-address="+address, "--kubelet-registration-path="+address, "--plugin-registration-path="+b.registry())
	b.Wait("the driver to be registered", func(ctx context.Context) (bool, error) {
		node, err := b.Client.StorageV1().CSINodes().Get(ctx, b.Dev.Nodes[0], metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == b.name }), err
	})
	return end
}

// checkFirst waits until an event of an object has all parts, and checks that it is the first one.
func (b *broken) checkFirst(kind, name string, want []string) {
	b.T.Helper()
	right := func(text string) bool {
		return !slices.ContainsFunc(want, func(part string) bool { return !strings.Contains(text, part) })
	}
	var texts []string
	b.Wait(fmt.Sprintf("an event of %s %s with %q", kind, name, want), func(ctx context.Context) (bool, error) {
		var err error
		texts, err = b.eventsOf(ctx, kind, name)
		if !slices.ContainsFunc(texts, right) && err == nil {
			err = fmt.Errorf("events %q", texts)
		}
		return err == nil, err
	})
	if !right(texts[0]) {
		b.T.Errorf("the first event of %s %s is %q, want all of %q", kind, name, texts[0], want)
	}
	b.T.Logf("%s %s: %s", kind, name, texts[0])
}

// eventsOf returns what the events of an object say, warnings first, and each from the oldest to the newest. Those of other namespaces, such as of a Node, count if
// they name the driver or the scene.
func (b *broken) eventsOf(ctx context.Context, kind, name string) (texts []string, err error) {
	selector := fields.Set{"involvedObject.kind": kind, "involvedObject.name": name}.String()
	list, err := b.Client.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(list.Items, func(x, y corev1.Event) int {
		return cmp.Or(strings.Compare(y.Type, x.Type), x.CreationTimestamp.Compare(y.CreationTimestamp.Time))
	})
	for i := range list.Items {
		e := &list.Items[i]
		if text := e.InvolvedObject.Name + ": " + e.Message; e.Namespace == b.Namespace || strings.Contains(text, b.name) || strings.Contains(text, b.Namespace) {
			texts = append(texts, e.Reason+": "+e.Message)
		}
	}
	return texts, nil
}
