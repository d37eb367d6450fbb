package nodeinfo

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// Run restores what others have removed: a CSINode that was deleted, or that
// belongs to a Node of the same name that is gone, entries, labels and node
// IDs of installed drivers. It removes what Uninstall could not or has left to
// linger. It checks every Config.Resync, and at once after Resync. It returns nil when ctx ends.
func (w *Writer) Run(ctx context.Context) error {
	ticker := time.NewTicker(w.cfg.Resync)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-w.wake:
		}
		w.restore(ctx)
	}
}

// Resync makes Run check now. Call it when the Node has been re-created.
func (w *Writer) Resync() {
	select {
	case w.wake <- struct{}{}:
	default: // Run has not come to the last call yet
	}
}

// restore writes each driver by itself, each within a deadline: one whose labels
// collide, or whose Node cannot be patched, holds up neither the others nor the
// CSINode. Run repeats what fails.
func (w *Writer) restore(ctx context.Context) {
	limited := func(write func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, w.cfg.CallTimeout)
		defer cancel()
		return write(ctx)
	}
	report := func(what, driver string, err error) {
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, what, logging.KeyDriver, driver)
		}
	}
	report("Restoring the CSINode", "", limited(w.EnsureCSINode))
	for _, name := range w.allGone() {
		report("Removing a CSI driver from CSINode and Node", name, limited(func(ctx context.Context) error { return w.remove(ctx, name) }))
	}
	for _, d := range w.Installed() {
		report("Restoring the labels and node ID of a CSI driver", d.Name, limited(func(ctx context.Context) error { return w.restoreNode(ctx, d) }))
	}
}

// allGone returns the drivers that are to be removed now.
func (w *Writer) allGone() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(sortedKeys(w.leaving), func(name string) bool { return !w.gone(name) })
}

// restoreNode writes the Node unless the driver was uninstalled or changed
// meanwhile.
func (w *Writer) restoreNode(ctx context.Context, d Driver) error {
	return w.retry(ctx, "restore CSI driver "+d.Name, retryTransient, func(ctx context.Context) error {
		if !w.current(d) {
			return nil
		}
		return w.writeNode(ctx, d)
	})
}

// current reports whether d is still what is installed.
func (w *Writer) current(d Driver) bool {
	now, ok := w.installed(d.Name)
	return ok && sameIdentity(now.entry(), d.entry())
}
