package kube

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
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
	// not have the kind, it is asked again in this interval, such as DefaultAskAgain, and Unwatched says why. 0: a refusal is an error, and soon repeated.
	AskAgain time.Duration
}

// Informer keeps a copy of all objects of a kind up to date.
//
// What it returns may be shared: callers must not change it.
type Informer[T Object] struct {
	name      string
	reflector *cache.Reflector
	store     *store[T]
	index     map[string]func(T) []string
	own       overlay[T]
	refusals  refusals
	started   atomic.Bool
	onChange  []func(before, after T) // guarded by store.change
}

// NewInformer returns an informer for r, which starts with Run.
func NewInformer[T Object, L runtime.Object](r Resource[T, L], o InformerOptions[T]) *Informer[T] {
	i := &Informer[T]{name: o.Name, index: o.Index}
	if i.name == "" {
		i.name = reflect.TypeFor[T]().String()
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.FieldSelector, opts.LabelSelector = o.FieldSelector, o.LabelSelector
			return r.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.FieldSelector, opts.LabelSelector = o.FieldSelector, o.LabelSelector
			return r.Watch(ctx, opts)
		},
	}
	i.store = newStore(o, i.changed, i.listed)
	i.own.transform = i.store.transform
	i.refusals.name, i.refusals.askAgain = i.name, o.AskAgain
	i.reflector = cache.NewReflectorWithOptions(i.refusals.wrap(lw), newOf[T](), i.store, cache.ReflectorOptions{
		Name: i.name, TypeDescription: i.name, ResyncPeriod: o.Resync, MinWatchTimeout: minWatch,
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
	i.store.change.Lock()
	defer i.store.change.Unlock()
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
			filled(i.store.size())
		}
	}()
	// The delays of client-go's own loop, which has an error handler that cannot be replaced.
	delay := wait.Backoff{Duration: 800 * time.Millisecond, Cap: 30 * time.Second, Steps: 6, Factor: 2, Jitter: 1}.
		DelayWithReset(clock.RealClock{}, 2*time.Minute)
	err := delay.Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := i.reflector.ListAndWatchWithContext(ctx); err != nil {
			i.watchError(ctx, err)
		}
		return false, nil
	})
	if ctx.Err() == nil {
		return fmt.Errorf("informer of %s: %w", i.name, err)
	}
	return nil
}

// WaitSynced returns when the copy is complete and the OnChange functions have seen all of
// it, or with an error when ctx is done first.
func (i *Informer[T]) WaitSynced(ctx context.Context) error {
	select {
	case <-i.store.synced:
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
	case <-i.store.synced:
		return true
	default:
		return false
	}
}

// Get returns the object of that name; namespace is "" for kinds without namespaces.
func (i *Informer[T]) Get(namespace, name string) (obj T, ok bool) {
	return i.own.get(cache.NewObjectName(namespace, name).String(), i.store.get)
}

// All returns all objects, in no order. It decodes one after the other, which takes the memory of one.
func (i *Informer[T]) All() iter.Seq[T] {
	return i.own.list(func(T) bool { return true }, i.store.allKeys, i.store.get)
}

// List returns all objects, in no order.
func (i *Informer[T]) List() []T { return slices.Collect(i.All()) }

// ByIndex returns the objects that the index function of that name files under value, in no order.
// An index that was not declared has no objects.
func (i *Informer[T]) ByIndex(index, value string) []T {
	values, ok := i.index[index]
	if !ok {
		return nil
	}
	match := func(obj T) bool { return slices.Contains(values(obj), value) }
	keys := func(others []string) []string { return i.store.keysUnder(index, value, others) }
	return slices.Collect(i.own.list(match, keys, i.store.get))
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
	if i.own.missed(key, i.store.get) {
		go i.forgetMissed()
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
	for _, obj := range i.own.listed(resourceVersion, i.store.get) {
		i.changed(obj, none)
	}
}

// forgetMissed does what listed does for an own write that is remembered after the list that lacks its object.
func (i *Informer[T]) forgetMissed() {
	i.store.change.Lock()
	defer i.store.change.Unlock()
	i.listed("")
}

// watchError logs what a user must know of, and no more: streams end all the time.
func (i *Informer[T]) watchError(ctx context.Context, err error) {
	logger := klog.FromContext(ctx).WithValues("kind", i.name)
	switch {
	case ctx.Err() != nil, errors.Is(err, context.Canceled):
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsTooManyRequests(err), isEnd(err):
		logger.V(4).Info("Watch ended, starting again", "err", err)
	default:
		logger.Error(err, "Watch failed, trying again")
	}
}
