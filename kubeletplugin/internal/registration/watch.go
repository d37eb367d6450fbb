package registration

import (
	"context"
	"fmt"
	"os"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// dirMode is the mode of plugins_registry on a node.
const dirMode = 0o755

// watcher scans directories and reports when to scan them again.
type watcher struct {
	roots []string
	// notify is nil if the system has no watch left; the directories are then
	// scanned at intervals only.
	notify  notifier
	watched map[string]bool
}

// newWatcher creates the directories that are missing. Without a shared inotify instance it makes its own.
func newWatcher(ctx context.Context, roots []string, shared *Inotify) (*watcher, error) {
	for _, root := range roots {
		if err := os.MkdirAll(root, dirMode); err != nil {
			return nil, fmt.Errorf("create registration directory %q: %w", root, err)
		}
	}
	w := &watcher{roots: roots, watched: map[string]bool{}}
	if shared != nil {
		w.notify = shared.join()
		return w, nil
	}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Watching registration directories is not possible, they are read at intervals only")
		return w, nil
	}
	w.notify = single{notify}
	return w, nil
}

func (w *watcher) close() {
	if w.notify != nil {
		w.notify.close()
	}
}

// look returns the sockets that exist now. Directories that appeared are
// watched from now on, and read once more so that nothing falls between.
func (w *watcher) look(ctx context.Context) (socketsFound, error) {
	for {
		sockets := socketsFound{}
		var dirs []string
		for _, root := range w.roots {
			found, err := scan(root, sockets)
			if err != nil {
				return nil, err
			}
			dirs = append(dirs, found...)
		}
		if !w.watch(ctx, dirs) {
			return sockets, nil
		}
	}
}

// watch adds and forgets directories. It reports whether one was added.
func (w *watcher) watch(ctx context.Context, dirs []string) bool {
	if w.notify == nil {
		return false
	}
	present := map[string]bool{}
	added := false
	for _, dir := range dirs {
		present[dir] = true
		if w.watched[dir] {
			continue
		}
		if err := w.notify.add(dir); err != nil {
			klog.FromContext(ctx).Error(err, "Watching a registration directory is not possible, it is read at intervals only", logging.KeyPath, dir)
			continue
		}
		w.watched[dir], added = true, true
	}
	for dir := range w.watched {
		if !present[dir] {
			delete(w.watched, dir)
		}
	}
	return added
}

// events returns the channel of events, nil when there is none.
func (w *watcher) events() <-chan fsnotify.Event {
	if w.notify == nil {
		return nil
	}
	return w.notify.events()
}

// errors returns the channel of lost events, nil when there is none.
func (w *watcher) errors() <-chan error {
	if w.notify == nil {
		return nil
	}
	return w.notify.errors()
}

// note records the paths that an event took away, and those of the events that
// wait behind it.
func (w *watcher) note(first fsnotify.Event, removedPaths map[string]bool) {
	for event, ok := first, true; ok; {
		if event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename) {
			removedPaths[event.Name] = true
			delete(w.watched, event.Name)
		}
		select {
		case event, ok = <-w.notify.events():
		default:
			return
		}
	}
}
