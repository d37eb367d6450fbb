package nodeobj

import (
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// View holds the newest state of this node's Node object that anybody has seen: answers to our own
// writes, which come first, and the watch. The handshake with the attach/detach controller relies
// on it never going back.
type View struct {
	mu   sync.Mutex
	node *corev1.Node
	// gone is the UID of the last Node that was deleted; UIDs are not used again.
	gone     types.UID
	attached sets.Set[string]
	onChange []func(old, current *corev1.Node)
}

// OnChange adds a function that is called with every newer Node. It must not block. Call it
// before the first Observe.
func (v *View) OnChange(f func(old, current *corev1.Node)) { v.onChange = append(v.onChange, f) }

// Observe shows the view a Node. One that is older than what is known, the same, or known to be
// deleted is ignored.
func (v *View) Observe(n *corev1.Node) { v.observe(n, nil) }

// Answered shows the view the answer to a write that was sent when before was known. One that is older than that comes from an API server whose etcd was restored: the
// view begins with it once more.
func (v *View) Answered(n, before *corev1.Node) { v.observe(n, before) }

func (v *View) observe(n, before *corev1.Node) {
	v.mu.Lock()
	old := v.node
	restored := before != nil && version(n) < version(before)
	if n.UID == v.gone || old != nil && version(n) <= version(old) && !restored {
		v.mu.Unlock()
		return
	}
	v.node = n
	v.attached = sets.Set[string]{}
	for _, a := range n.Status.VolumesAttached {
		v.attached.Insert(string(a.Name))
	}
	v.mu.Unlock()
	for _, f := range v.onChange {
		f(old, n)
	}
}

// Node returns the newest Node, which must not be changed; nil if there was none.
func (v *View) Node() *corev1.Node {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.node
}

// Attached reports whether a volume is in volumesAttached.
func (v *View) Attached(name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.attached.Has(name)
}

// version is the resource version as a number. All Kubernetes API servers that are supported
// number the versions of an object in ascending order.
func version(n *corev1.Node) uint64 {
	rv, err := strconv.ParseUint(n.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return rv
}

// Gone records that a Node was deleted, so that the Keeper re-creates it. Answers to writes
// that come later but are older do not bring it back.
func (v *View) Gone(n *corev1.Node) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.gone = n.UID
	if v.node != nil && v.node.UID == n.UID {
		v.node, v.attached = nil, nil
	}
}
