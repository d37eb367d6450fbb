package kubetest

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// Write is one writing request of a client, successful or not.
type Write struct {
	// Verb is create, update, patch or delete.
	Verb string
	// Resource and Subresource: "persistentvolumes", "status".
	Resource, Subresource string
	// Namespace and Name of the object.
	Namespace, Name string
	// PatchType and Patch are set for patches.
	PatchType types.PatchType
	Patch     []byte
	// Object is a copy of the result; for deletions the last state. nil when it failed.
	Object kube.Object
	// Before is a copy of what the request changed; nil for a creation.
	Before kube.Object
	// Unchanged writes stored nothing, as the object was like that already.
	Unchanged bool
	// Gone writes have removed the object: deletions, and the removal of the last finalizer.
	Gone bool
	// Err is the answer, nil when the write was done.
	Err error
}

// Writes returns the writing requests of the clients since New or ResetWrites, in order.
func (c *Cluster) Writes() []Write {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.writes)
}

// ResetWrites forgets the writes so far.
func (c *Cluster) ResetWrites() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = nil
}

// Observe calls f with each Write from now on, in their order. f must not use the cluster.
func (c *Cluster) Observe(f func(Write)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.observers = append(c.observers, f)
}

// logFailure records a write that never reached the store.
func (c *Cluster) logFailure(r request, err error) {
	if r.verb == "get" || r.verb == "list" || r.verb == "watch" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logLocked(r, Write{Err: err})
}

// logLocked completes and records a write.
func (c *Cluster) logLocked(r request, w Write) {
	w.Verb, w.Resource, w.Subresource, w.Namespace, w.Name = r.verb, r.resource, r.subresource, r.namespace, r.name
	if w.Err != nil {
		w.Object = nil
	}
	if w.Object != nil {
		w.Object = clone(w.Object)
		w.Name = w.Object.GetName()
	}
	if w.Before != nil {
		w.Before = clone(w.Before)
	}
	c.writes = append(c.writes, w)
	for _, observe := range c.observers {
		observe(w)
	}
}
