package controller

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Operation is an attach or detach operation in progress.
type Operation struct {
	Attachment string    `json:"attachment"`
	Step       string    `json:"step"`
	Since      time.Time `json:"since"`
}

// busy is the set of VolumeAttachments in progress. Attaching and detaching have queues of their own, so the queues alone
// do not exclude both at the same time.
// The zero value is ready to use.
type busy struct {
	mu  sync.Mutex
	ops map[string]Operation
}

// begin reports whether the caller may work on name; if so, it must call end.
func (b *busy) begin(name string, what step) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.ops[name]; ok {
		return false
	}
	if b.ops == nil {
		b.ops = map[string]Operation{}
	}
	b.ops[name] = Operation{Attachment: name, Step: what.String(), Since: time.Now()}
	return true
}

func (b *busy) end(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ops, name)
}

func (b *busy) has(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.ops[name]
	return ok
}

// list returns the operations in progress, the oldest first.
func (b *busy) list() []Operation {
	b.mu.Lock()
	defer b.mu.Unlock()
	ops := make([]Operation, 0, len(b.ops))
	for _, o := range b.ops {
		ops = append(ops, o)
	}
	slices.SortFunc(ops, func(x, y Operation) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Attachment, y.Attachment))
	})
	return ops
}

// forced holds the VolumeAttachments that must be attached again although they
// say attached. The zero value is ready to use.
type forced struct {
	mu   sync.Mutex
	uids map[types.UID]struct{}
}

func (f *forced) add(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.uids == nil {
		f.uids = map[types.UID]struct{}{}
	}
	f.uids[uid] = struct{}{}
}

func (f *forced) drop(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.uids, uid)
}

func (f *forced) has(uid types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.uids[uid]
	return ok
}

// String names the step for logs and state.
func (s step) String() string {
	switch s {
	case stepAttach:
		return "attach"
	case stepDetach:
		return "detach"
	default:
		return "none"
	}
}
