package controller

import (
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// retries are the pauses after failures, by key. The queue's own backoff would not do: writes that succeed before the one that fails come
// back as changes of the object, and would end the pause. What ends it is a change of the objects that were decided about.
type retries struct {
	retry flagset.Retry

	mu   sync.Mutex
	keys map[string]failure
}

// failure is the last failure of a key.
type failure struct {
	inputs   string
	failures int
	due      time.Time
}

// until returns how long the key must wait, as long as its inputs are the same.
func (r *retries) until(key, inputs string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, ok := r.keys[key]
	if !ok {
		return 0
	}
	if f.inputs != inputs {
		delete(r.keys, key)
		return 0
	}
	return max(0, time.Until(f.due))
}

// fail counts a failure, and returns the pause after it.
func (r *retries) fail(key, inputs string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.keys[key]
	pause := reconcile.Pause(r.retry, key, f.failures)
	if r.keys == nil {
		r.keys = map[string]failure{}
	}
	r.keys[key] = failure{inputs: inputs, failures: f.failures + 1, due: time.Now().Add(pause)}
	return pause
}

// forget ends the failures of a key.
func (r *retries) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.keys, key)
}

// inputs identifies what planSnapshot decides about, without what the controller writes itself.
func (v view) inputs() string {
	s := v.snapshot
	parts := []string{
		string(s.UID), fmt.Sprint(s.DeletionTimestamp != nil, s.Finalizers), ptr.Deref(s.Spec.VolumeSnapshotClassName, ""), v.restoring, v.node,
		fmt.Sprint(v.groupKnown, v.groupExists, v.groupDeleting), version(v.content), version(v.class),
	}
	if v.claim != nil {
		parts = append(parts, string(v.claim.UID), v.claim.Spec.VolumeName, string(v.claim.Status.Phase))
	}
	if v.volume != nil {
		parts = append(parts, string(v.volume.UID), fmt.Sprint(v.volume.Spec.ClaimRef))
	}
	for _, class := range v.classes {
		parts = append(parts, version(class))
	}
	return strings.Join(parts, "\n")
}

// version identifies the state of an object; the empty text is none.
func version[T any, P interface {
	*T
	metav1.Object
}](obj P) string {
	if obj == nil {
		return ""
	}
	return string(obj.GetUID()) + "/" + obj.GetResourceVersion()
}
