package agent

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// nodeSeen takes what a watch says of the Node; current is nil if it is gone.
func (a *Agent) nodeSeen(old, current *corev1.Node) {
	if current == nil {
		a.view.Gone(old)
		a.keeper.Poke()
		return
	}
	a.view.Observe(current)
}

// nodeChanged lets what one part sees wake the others.
func (a *Agent) nodeChanged(old, current *corev1.Node) {
	a.inUse.Observe(volumeNames(current.Status.VolumesInUse))
	if old == nil || old.UID != current.UID {
		a.info.Resync()
		a.keeper.Poke()
	}
	a.plugin.Volumes().Attached(newlyAttached(old, current)...)
}

// newlyAttached lists the names in volumesAttached that an older Node, nil for none, does not have.
func newlyAttached(old, current *corev1.Node) []string {
	before := sets.Set[corev1.UniqueVolumeName]{}
	if old != nil {
		for _, v := range old.Status.VolumesAttached {
			before.Insert(v.Name)
		}
	}
	var added []string
	for _, v := range current.Status.VolumesAttached {
		if !before.Has(v.Name) {
			added = append(added, string(v.Name))
		}
	}
	return added
}

// Run works until ctx is done. It looks at the disk first: unless it is known what may be mounted,
// nothing may be touched. A start is always a recovery; there is nothing to do at the end.
func (a *Agent) Run(ctx context.Context) error {
	found, err := a.plugin.Open(ctx)
	if err != nil {
		return err
	}
	a.recovered = found
	a.adoptAttached(ctx)
	a.inUse.Seed(a.plugin.Volumes().InUse()...)
	return errors.Join(a.run(ctx), a.plugin.Close())
}

func (a *Agent) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	parts := []func(context.Context) error{a.keeper.Run, a.renewer.Run, a.events.Run, a.serveDrivers}
	if a.cfg.Watches == nil {
		parts = append(parts, a.watches.Run)
	}
	for _, run := range parts {
		g.Go(func() error { return run(ctx) })
	}
	listed := make(chan struct{})
	g.Go(func() error { return a.afterRegistration(ctx, g, listed) })
	g.Go(func() error {
		select {
		case <-ctx.Done(): // its queue must be closed all the same
		case <-listed:
		}
		return a.pods.Run(ctx)
	})
	return g.Wait()
}

// sweepPods removes, from time to time, what is left of the directories of pods that are gone.
func (a *Agent) sweepPods(ctx context.Context) error {
	ticker := time.NewTicker(a.cfg.SweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		uids, err := a.plugin.Pods()
		if err != nil {
			klog.FromContext(ctx).Error(err, "Looking for directories of pods that are gone")
		}
		a.orphans.swept(a.gone(uids))
		a.pods.Adopt(uids)
	}
}

// gone returns those pods that are not in the API any more.
func (a *Agent) gone(uids []types.UID) sets.Set[types.UID] {
	gone := sets.New(uids...)
	for p := range a.watches.pods.All() {
		gone.Delete(p.UID)
	}
	return gone
}

// afterRegistration starts what needs the Node object to exist.
func (a *Agent) afterRegistration(ctx context.Context, g *errgroup.Group, listed chan<- struct{}) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.keeper.Registered():
	}
	a.reportForeign(ctx)
	a.seedInUse()
	g.Go(func() error { return a.inUse.Run(ctx) })
	g.Go(func() error { return a.info.Run(ctx) })
	g.Go(func() error { return a.limits.Run(ctx) })
	if a.storage != nil {
		g.Go(func() error { return a.storage.Run(ctx) })
	}
	g.Go(func() error { return a.plugin.RunDrivers(ctx) })
	g.Go(func() error { return a.registerDrivers(ctx) })
	g.Go(func() error { return a.followRegistrations(ctx) })
	g.Go(func() error { return a.afterFirstList(ctx, g, listed) })
	if a.info.EnsureCSINode(ctx) == nil { // it fails only if ctx is cancelled
		a.keeper.SetReady(nil)
		klog.FromContext(ctx).Info("Node is ready", logging.KeyNode, a.node())
	}
	return nil
}

// afterFirstList starts what may unmount: only a complete list shows which pods are gone.
func (a *Agent) afterFirstList(ctx context.Context, g *errgroup.Group, listed chan<- struct{}) error {
	if !a.watches.synced(ctx) {
		return nil // ctx is done
	}
	if _, ok := a.watches.nodes.Get("", a.node()); !ok {
		a.keeper.Verify() // deleted before the watch began, perhaps
	}
	a.identifyLost(ctx)
	a.pods.Adopt(a.recovered.Pods)
	g.Go(func() error { return a.plugin.RunVolumes(ctx) })
	if a.self != nil {
		g.Go(func() error { return a.self.Run(ctx) })
	}
	g.Go(func() error { return a.followLost(ctx) })
	g.Go(func() error { return a.sweepPods(ctx) })
	close(listed)
	return nil
}

// State is what the debug page shows.
func (a *Agent) State() any {
	s := a.plugin.State()
	state := map[string]any{
		"node": a.node(), "drivers": s.Drivers, "registrations": s.Registrations, "volumesInUse": a.inUse.Names(), "volumes": s.Volumes,
	}
	if a.self != nil {
		state["attachments"] = a.self.State()
	}
	return state
}

func volumeNames(list []corev1.UniqueVolumeName) []string {
	all := make([]string, 0, len(list))
	for _, n := range list {
		all = append(all, string(n))
	}
	return all
}

// Problem says why the node is not ready, nil if it is.
func (a *Agent) Problem() error { return a.info.Problem() }
