package kube

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// minWatch is the shortest time after which a watch without trouble ends and another request begins it again, twice that the longest: the times
// that an API server sets by itself. client-go's are a sixth, which makes ten requests a second of a thousand instances with five watches each.
const minWatch = 30 * time.Minute

// InformerOptions say what an Informer watches and what it keeps.
type InformerOptions[T Object] struct {
	// Name appears in logs, "Node" for instance. Empty: the Go type.
	Name string
	// FieldSelector and LabelSelector are evaluated by the server: what they
	// exclude costs nothing here.
	FieldSelector, LabelSelector string
	// Transform drops what is never read. It owns the object and may change it in place.
	// managedFields are gone already. It must accept an object it has seen before.
	Transform func(T) T
	// Encoding keeps the objects encoded, of a kind that is not one of Kubernetes itself: those are encoded always. nil: kept as they are.
	Encoding *Encoding[T]
	// Index names functions that return the values under which ByIndex finds an object.
	Index map[string]func(T) []string
	// Resync calls the OnChange functions for every object in this interval. 0: never.
	Resync time.Duration
	// AskAgain is for a kind that the component can do without: if the API server refuses to list or to watch it, as the role does not allow that or the server does
	// not have the kind, it is asked again with pauses that grow from 5 seconds to this, such as DefaultAskAgain, and Unwatched says why. 0: a refusal is an error, and soon repeated.
	AskAgain time.Duration
}

// Informer keeps a copy of all objects of a kind up to date. client-go's reflector, queue and store do so; the objects in them are encoded.
//
// What it returns may be shared: callers must not change it.
type Informer[T Object] struct {
	name      string
	transform func(T) T
	index     map[string]*index[T]
	queue     *cache.RealFIFO
	run       cache.Controller
	store     cache.Store // of *item[T]
	recent    *recent[T]
	own       overlay[T]
	refusals  refusals
	started   atomic.Bool
	// change is held while something changes, until all have heard of it.
	change   sync.Mutex
	onChange []func(before, after T)
}

// NewInformer returns an informer for r, which starts with Run.
func NewInformer[T Object, L runtime.Object](r Resource[T, L], o InformerOptions[T]) *Informer[T] {
	i := &Informer[T]{name: o.Name, transform: transform(o.Transform), index: map[string]*index[T]{}, recent: newRecent(o.Encoding)}
	if i.name == "" {
		i.name = reflect.TypeFor[T]().String()
	}
	i.own.transform = i.transform
	i.refusals.name, i.refusals.askAgain = i.name, o.AskAgain
	for name, values := range o.Index {
		i.index[name] = newIndex(values)
	}
	i.store = cache.NewStore(keyOfAny[T])
	i.queue = cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{Name: i.name, KeyFunction: keyOfAny[T], Transformer: i.encode, AtomicEvents: true})
	i.run = cache.New(&cache.Config{
		Queue: i.queue,
		ListerWatcher: i.refusals.wrap(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
				opts.FieldSelector, opts.LabelSelector = o.FieldSelector, o.LabelSelector
				return r.List(ctx, opts)
			},
			WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
				opts.FieldSelector, opts.LabelSelector = o.FieldSelector, o.LabelSelector
				return r.Watch(ctx, opts)
			},
		}),
		ObjectType: newOf[T](), ObjectDescription: i.name, FullResyncPeriod: o.Resync, MinWatchTimeout: minWatch,
		Process: i.process, WatchErrorHandlerWithContext: i.watchError,
	})
	return i
}

// Name returns InformerOptions.Name, or its default.
func (i *Informer[T]) Name() string { return i.name }

// OnChange adds a function that is called after every change, one call at a time:
// with before nil for an object that is new, with after nil for one that is gone, and with both
// the same on a resync. It must return soon, and not call OnChange; typically it adds a key to a queue. An informer that runs
// already calls it at once for all objects, as new ones.
func (i *Informer[T]) OnChange(f func(before, after T)) {
	i.change.Lock()
	defer i.change.Unlock()
	var none T
	for obj := range i.All() {
		f(none, obj)
	}
	i.onChange = append(i.onChange, f)
}

// Run keeps the copy up to date until ctx is done. It may be called once.
func (i *Informer[T]) Run(ctx context.Context) error {
	if i.started.Swap(true) {
		return fmt.Errorf("start informer of %s: it was started before", i.name)
	}
	filled := filling.begin()
	defer filled(0)
	go func() {
		if i.WaitTried(ctx) == nil {
			filled(len(i.store.ListKeys()))
		}
	}()
	i.run.RunWithContext(ctx)
	return nil
}

// WaitSynced returns when the copy is complete and the OnChange functions have seen all of
// it, or with an error when ctx is done first.
func (i *Informer[T]) WaitSynced(ctx context.Context) error {
	select {
	case <-i.queue.Done():
		return nil
	case <-ctx.Done():
	}
	if i.HasSynced() { // of two channels that are ready, select takes any
		return nil
	}
	return fmt.Errorf("wait for the first list of %s: %w", i.name, context.Cause(ctx))
}

// HasSynced reports whether WaitSynced would return at once.
func (i *Informer[T]) HasSynced() bool {
	select {
	case <-i.queue.Done():
		return true
	default:
		return false
	}
}

// Get returns the object of that name; namespace is "" for kinds without namespaces.
func (i *Informer[T]) Get(namespace, name string) (obj T, ok bool) {
	return i.own.get(cache.NewObjectName(namespace, name).String(), i.stored)
}

// All returns all objects, in no order. It decodes one after the other, which takes the memory of one.
func (i *Informer[T]) All() iter.Seq[T] {
	return i.own.list(func(T) bool { return true }, func(others []string) []string { return union(i.store.ListKeys(), others) }, i.stored)
}

// List returns all objects, in no order.
func (i *Informer[T]) List() []T { return slices.Collect(i.All()) }

// ByIndex returns the objects that the index function of that name files under value, in no order.
// An index that was not declared has no objects.
func (i *Informer[T]) ByIndex(index, value string) []T {
	x, ok := i.index[index]
	if !ok {
		return nil
	}
	match := func(obj T) bool { return slices.Contains(x.values(obj), value) }
	keys := func(others []string) []string { return union(x.keys(value), others) }
	return slices.Collect(i.own.list(match, keys, i.stored))
}

// union returns the keys, and others, each once.
func union(keys, others []string) []string {
	missing := sets.New(others...)
	for _, key := range keys {
		missing.Delete(key)
	}
	return slices.AppendSeq(keys, maps.Keys(missing))
}

// stored returns the object of a key in the store.
func (i *Informer[T]) stored(key string) (obj T, ok bool) {
	found, _, _ := i.store.GetByKey(key) // it has no errors
	it, ok := found.(*item[T])
	if !ok {
		return obj, false
	}
	return i.recent.object(it), true
}

// Remember makes an own write visible before the watch brings it: obj is what Create, Update or
// Patch has returned; the object is gone if that write removed its last finalizer. The newer
// resourceVersion wins; a deletion that the watch has brought for the same UID wins always. obj loses its managedFields.
// Nothing is remembered while Unwatched says why the kind is not watched.
func (i *Informer[T]) Remember(obj T) {
	if i.Unwatched() != nil {
		return
	}
	copied, ok := StripManagedFields(obj).DeepCopyObject().(T)
	if !ok {
		return
	}
	key := keyOf(copied)
	i.own.put(key, copied)
	if i.own.missed(key, i.stored) {
		go i.forgetMissed()
	}
}

// encode returns an object of the API server as it is kept, which it may be already: the queue, and the list that a watch begins with, both ask for it.
func (i *Informer[T]) encode(obj any) (any, error) {
	typed, ok := obj.(T)
	if !ok {
		return obj, nil
	}
	typed = i.transform(typed)
	it := newItem(typed, i.recent.encoding)
	i.recent.put(it, typed)
	return it, nil
}

// process takes over what the API server has sent. It is called for one thing after the other.
func (i *Informer[T]) process(sent any, _ bool) error {
	i.change.Lock()
	defer i.change.Unlock()
	deltas, _ := sent.(cache.Deltas)
	for _, delta := range deltas {
		switch obj := delta.Object.(type) {
		case cache.ReplacedAllInfo:
			i.replace(obj)
		case cache.SyncAllInfo:
			for _, key := range i.store.ListKeys() {
				if obj, ok := i.stored(key); ok {
					i.changed(obj, obj)
				}
			}
		case *item[T]:
			if delta.Type == cache.Deleted {
				i.remove(obj.key, i.recent.object(obj))
			} else {
				i.put(obj, false)
			}
		}
	}
	return nil
}

// replace takes over a list, which has all objects that there are in its version.
func (i *Informer[T]) replace(list cache.ReplacedAllInfo) {
	missing := sets.New(i.store.ListKeys()...)
	for n, obj := range list.Objects {
		list.Objects[n] = nil // free to go
		if it, ok := obj.(*item[T]); ok {
			missing.Delete(it.key)
			i.put(it, true)
		}
	}
	for key := range missing {
		last, _ := i.stored(key)
		i.remove(key, last)
	}
	i.listed(list.ResourceVersion)
}

// put keeps an object. What is listed in the version that is known is no change.
func (i *Informer[T]) put(it *item[T], listed bool) {
	before, known := i.stored(it.key)
	after := i.recent.object(it)
	if known && listed && before.GetResourceVersion() == after.GetResourceVersion() {
		return
	}
	_ = i.store.Update(it) // it has a key
	for _, x := range i.index {
		var values []string
		if known {
			values = x.values(before)
		}
		x.move(it.key, values, x.values(after))
	}
	i.changed(before, after)
}

// remove drops an object, of which last is the last state.
func (i *Informer[T]) remove(key string, last T) {
	var none T
	if before, known := i.stored(key); known {
		_ = i.store.Delete(&item[T]{key: key})
		for _, x := range i.index {
			x.move(key, x.values(before), nil)
		}
		i.changed(last, none)
	}
}

// changed forgets own writes that the watch has caught up with, then calls the OnChange functions.
func (i *Informer[T]) changed(before, after T) {
	i.own.observe(before, after)
	for _, f := range i.onChange {
		f(before, after)
	}
}

// listed has the OnChange functions hear of the own writes whose objects are not in a new list: they were created and deleted between two watches,
// and no watch brings their deletion.
func (i *Informer[T]) listed(resourceVersion string) {
	var none T
	for _, obj := range i.own.listed(resourceVersion, i.stored) {
		i.changed(obj, none)
	}
}

// forgetMissed does what listed does for an own write that is remembered after the list that lacks its object.
func (i *Informer[T]) forgetMissed() {
	i.change.Lock()
	defer i.change.Unlock()
	i.listed("")
}

// watchError logs what a user must know of, and no more: streams end all the time.
func (i *Informer[T]) watchError(ctx context.Context, _ *cache.Reflector, err error) {
	logger := klog.FromContext(ctx).WithValues("kind", i.name)
	switch {
	case ctx.Err() != nil, errors.Is(err, context.Canceled):
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsTooManyRequests(err), isEnd(err):
		logger.V(4).Info("Watch ended, starting again", "err", err)
	default:
		logger.Error(err, "Watch failed, trying again")
	}
}
