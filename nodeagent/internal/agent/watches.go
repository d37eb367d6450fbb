package agent

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// Watches follow the API objects that concern nodes: those of one node, by field selectors, or of all nodes of a process.
type Watches struct {
	nodes      *kube.Informer[*corev1.Node]
	pods       *kube.Informer[*corev1.Pod]
	csiDrivers *kube.Informer[*storagev1.CSIDriver]
	// agents are those that hear of changes, by the names of their nodes; it does not change any more once Run is called.
	agents map[string]*Agent
}

// NewWatches makes the watches that several agents share, as Config.Watches. The client must have the right to watch all Nodes, Pods and CSIDrivers, which
// no node has. Resync is how often each pod is checked although nothing has changed. Run is called when all agents are made.
func NewWatches(c kube.Client, resync time.Duration) *Watches {
	w := &Watches{}
	return w.start(c,
		kube.InformerOptions[*corev1.Node]{Transform: w.slimNode},
		kube.InformerOptions[*corev1.Pod]{FieldSelector: "spec.nodeName!=", Transform: w.slimPod, Resync: resync},
	)
}

// newWatches makes the watches of one node, with its rights.
func newWatches(c kube.Client, node string, resync time.Duration) *Watches {
	w := &Watches{}
	return w.start(c,
		kube.InformerOptions[*corev1.Node]{FieldSelector: "metadata.name=" + node, Transform: w.slimNode},
		kube.InformerOptions[*corev1.Pod]{FieldSelector: "spec.nodeName=" + node, Resync: resync},
	)
}

func (w *Watches) start(c kube.Client, nodes kube.InformerOptions[*corev1.Node], pods kube.InformerOptions[*corev1.Pod]) *Watches {
	w.agents, nodes.Name, pods.Name = map[string]*Agent{}, "Node", "Pod"
	w.nodes, w.pods = kube.NewInformer(c.Nodes(), nodes), kube.NewInformer(c.Pods(""), pods)
	w.csiDrivers = kube.NewInformer(c.CSIDrivers(), kube.InformerOptions[*storagev1.CSIDriver]{Name: "CSIDriver"})
	w.nodes.OnChange(w.nodeChanged)
	w.pods.OnChange(w.podChanged)
	w.csiDrivers.OnChange(w.csiDriverChanged)
	return w
}

// slimNode drops the list of images, which is long on nodes that a kubelet had before, and all of a node that has no agent here.
func (w *Watches) slimNode(n *corev1.Node) *corev1.Node {
	if w.agents[n.Name] == nil {
		return &corev1.Node{ObjectMeta: identity(n)}
	}
	n.Status.Images = nil
	return n
}

// slimPod drops all of a pod whose node has no agent here.
func (w *Watches) slimPod(p *corev1.Pod) *corev1.Pod {
	if w.agents[p.Spec.NodeName] == nil {
		return &corev1.Pod{ObjectMeta: identity(p)}
	}
	return p
}

// identity is what an informer needs of an object.
func identity(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()}
}

func (w *Watches) nodeChanged(old, current *corev1.Node) {
	node := current
	if node == nil {
		node = old
	}
	if a := w.agents[node.Name]; a != nil {
		a.nodeSeen(old, current)
	}
}

// podChanged gives a change to the node of the pod. A list that follows a broken watch may have another pod of the name of one that is gone.
func (w *Watches) podChanged(old, current *corev1.Pod) {
	if old != nil && (current == nil || current.UID != old.UID) {
		if a := w.agents[old.Spec.NodeName]; a != nil {
			a.pods.Changed(old, nil)
		}
	}
	if current == nil {
		return
	}
	if a := w.agents[current.Spec.NodeName]; a != nil {
		a.pods.Changed(old, current)
	}
}

func (w *Watches) csiDriverChanged(old, current *storagev1.CSIDriver) {
	if old != nil && current != nil && equality.Semantic.DeepEqual(old.Spec, current.Spec) {
		return
	}
	for _, a := range w.agents {
		a.pods.Refresh()
		a.limits.PeriodsChanged()
	}
}

// Run works until ctx is done.
func (w *Watches) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{w.nodes.Run, w.pods.Run, w.csiDrivers.Run} {
		g.Go(func() error { return run(ctx) })
	}
	return g.Wait()
}

// synced waits until everything is listed once; false means that ctx is done.
func (w *Watches) synced(ctx context.Context) bool {
	for _, wait := range []func(context.Context) error{w.csiDrivers.WaitSynced, w.pods.WaitSynced, w.nodes.WaitSynced} {
		if wait(ctx) != nil {
			return false
		}
	}
	return true
}
