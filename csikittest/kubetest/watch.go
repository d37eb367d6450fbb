package kubetest

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// BreakWatches ends all watches, as a restart of the API server does. Informers start them again.
func (c *Cluster) BreakWatches() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.watchers {
		w.finish()
	}
	clear(c.watchers)
}

// Compact forgets all changes so far: a watch that wants to resume before this moment
// gets "expired" (410) and must list again.
func (c *Cluster) Compact() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.stores {
		s.history, s.compacted = nil, c.version
	}
}

// selector decides which objects a list or watch is about.
type selector func(kube.Object) bool

func (k *kind) selector(namespace string, opts metav1.ListOptions) (selector, error) {
	byLabel, err := labels.Parse(opts.LabelSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	byField, err := fields.ParseSelector(opts.FieldSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	known := k.fieldsOf(k.newObject())
	for _, requirement := range byField.Requirements() {
		if !known.Has(requirement.Field) {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", requirement.Field))
		}
	}
	return func(obj kube.Object) bool {
		return (namespace == "" || obj.GetNamespace() == namespace) &&
			byLabel.Matches(labels.Set(obj.GetLabels())) && byField.Matches(k.fieldsOf(obj))
	}, nil
}

func (k *kind) fieldsOf(obj kube.Object) fields.Set {
	set := fields.Set{"metadata.name": obj.GetName()}
	if k.namespaced {
		set["metadata.namespace"] = obj.GetNamespace()
	}
	if k.fields != nil {
		for name, value := range k.fields(obj) {
			set[name] = value
		}
	}
	return set
}

// watchLocked starts a watch: from a version, from a synthetic "added" for each object, or
// with those and a bookmark behind them (a streaming list).
func (c *Cluster) watchLocked(ctx context.Context, k *kind, namespace string, opts metav1.ListOptions) (watch.Interface, error) {
	match, err := k.selector(namespace, opts)
	if err != nil {
		return nil, err
	}
	s := c.stores[k.resource]
	var first []watch.Event
	streaming := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	if streaming || opts.ResourceVersion == "" || opts.ResourceVersion == "0" {
		for _, obj := range s.list(match) {
			first = append(first, watch.Event{Type: watch.Added, Object: obj})
		}
	} else if first, err = s.since(opts.ResourceVersion, match); err != nil {
		return nil, err
	}
	if streaming {
		first = append(first, watch.Event{Type: watch.Bookmark, Object: c.bookmarkLocked(k)})
	}
	w := newWatcher(k.resource, match, first)
	c.watchers[w] = struct{}{}
	w.onStop = func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watchers, w)
	}
	w.forget = context.AfterFunc(ctx, w.end)
	return w, nil
}

// bookmarkLocked marks the end of the initial events.
func (c *Cluster) bookmarkLocked(k *kind) kube.Object {
	obj := k.newObject()
	obj.SetResourceVersion(strconv.FormatUint(c.version, 10))
	obj.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return obj
}

// since returns the changes after a version.
func (s *store) since(version string, match selector) ([]watch.Event, error) {
	from, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q", version))
	}
	if from < s.compacted {
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", from, s.compacted))
	}
	var events []watch.Event
	for _, ch := range s.history {
		if event, ok := ch.event(match); ok && ch.version > from {
			events = append(events, event)
		}
	}
	return events, nil
}

// event describes a change to a watcher that sees only the objects which match accepts.
func (ch change) event(match selector) (watch.Event, bool) {
	was := ch.before != nil && match(ch.before)
	is := ch.now != nil && match(ch.now)
	switch {
	case is && was:
		return watch.Event{Type: watch.Modified, Object: clone(ch.now)}, true
	case is:
		return watch.Event{Type: watch.Added, Object: clone(ch.now)}, true
	case was && ch.now != nil: // no longer selected: the old object, with the version of the change
		gone := clone(ch.before)
		gone.SetResourceVersion(ch.now.GetResourceVersion())
		return watch.Event{Type: watch.Deleted, Object: gone}, true
	case was:
		return watch.Event{Type: watch.Deleted, Object: clone(ch.last)}, true
	}
	return watch.Event{}, false
}

func (c *Cluster) publishLocked(s *store, ch change) {
	s.history = append(s.history, ch)
	for w := range c.watchers {
		if w.resource != s.kind.resource {
			continue
		}
		if event, ok := ch.event(w.match); ok {
			w.push(event)
		}
	}
}

// watcher is one watch: an unbounded queue, so that a slow reader delays no other.
type watcher struct {
	resource string
	match    selector
	out      chan watch.Event
	wake     chan struct{}
	stop     chan struct{}
	onStop   func()
	forget   func() bool // ends the connection to the context
	stopOnce sync.Once

	mu       sync.Mutex
	queue    []watch.Event
	finished bool
}

func newWatcher(resource string, match selector, first []watch.Event) *watcher {
	w := &watcher{
		resource: resource, match: match, queue: first,
		out: make(chan watch.Event), wake: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	go w.run()
	return w
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

// Stop implements watch.Interface.
func (w *watcher) Stop() {
	w.forget()
	w.end()
}

func (w *watcher) end() {
	w.stopOnce.Do(func() {
		close(w.stop)
		w.onStop()
	})
}

func (w *watcher) push(event watch.Event) {
	w.mu.Lock()
	w.queue = append(w.queue, event)
	w.mu.Unlock()
	w.signal()
}

// finish ends the watch after what is queued.
func (w *watcher) finish() {
	w.mu.Lock()
	w.finished = true
	w.mu.Unlock()
	w.signal()
}

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run hands out the queue until the watch is stopped or finished.
func (w *watcher) run() {
	defer close(w.out)
	for {
		event, ok, finished := w.pop()
		switch {
		case ok:
			select {
			case w.out <- event:
			case <-w.stop:
				return
			}
		case finished:
			return
		default:
			select {
			case <-w.wake:
			case <-w.stop:
				return
			}
		}
	}
}

func (w *watcher) pop() (event watch.Event, ok, finished bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return watch.Event{}, false, w.finished
	}
	event, w.queue = w.queue[0], w.queue[1:]
	return event, true, false
}
