package controller

import (
	"context"
	"sync"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
)

const (
	// absentPause is the time until the API server is asked again for kinds that it does not have, and the driver for calls, and until a content is looked at again whose kind
	// may not be watched.
	absentPause = 30 * time.Second
	// servedPause is the time until the API server is asked again which version it has, as an upgrade replaces it, or refuses to say so, as the role may be extended.
	servedPause = kube.DefaultAskAgain
)

// groups is the loop of group snapshots, which begins when the API server has the kinds and the driver has the calls.
type groups struct {
	*loop
	contents *groupContents
	singles  *loop // the contents of members are among them

	watching bool // the caches were started

	mu     sync.Mutex
	served string
}

func newGroups(cfg *Config, single *contents, singles *loop) *groups {
	g := &groups{contents: &groupContents{cfg: cfg, single: single}, singles: singles}
	g.loop = &loop{names: groupNames(), objects: g.contents, cfg: cfg, naming: cfg.GroupNames}
	return g
}

// servedVersion returns the version of the kinds, "" while the API server has none.
func (g *groups) servedVersion() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.served
}

// setServed notes a version, and reports whether it is another one than before.
func (g *groups) setServed(version string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	changed := g.served != version
	g.served = version
	return changed
}

// watch keeps the caches up to date until ctx ends, from when the API server has the kinds and the driver has the calls: until then, a
// role without the right to read them, and a cluster without them, cost a request every half minute at most.
func (g *groups) watch(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error {
		for {
			pause := absentPause
			if g.cfg.Features().Groups {
				version, err := g.discover(ctx)
				if version != "" || kube.IsUnwatchable(err) {
					pause = servedPause
				}
				if version != "" {
					g.start(ctx, running)
				}
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(pause):
			}
		}
	})
	return running.Wait()
}

// discover asks the API server in which version it has the kinds, "" for none. It logs errors.
func (g *groups) discover(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.KubeTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	version, ok, err := g.cfg.Snapshots.Served(ctx)
	switch {
	case kube.IsUnwatchable(err):
		logger.Info("The role does not allow csi-snapshotter to read group snapshots; it asks again from time to time", logging.KeyReason, err.Error())
	case err != nil && ctx.Err() == nil:
		logger.Error(err, "Not known whether the API server has group snapshots, asking again soon")
	case err != nil || !g.setServed(version):
	case ok:
		logger.Info("The API server has group snapshots", "version", version)
	default:
		logger.Info("The API server has no group snapshots; csi-snapshotter asks again from time to time")
	}
	return version, err
}

// wakeMembers queues the contents of the members of a group snapshot, which take from its content what it says of them.
func (g *groups) wakeMembers(content *groupv1.VolumeGroupSnapshotContent) {
	if content == nil || content.Spec.Driver != g.cfg.Driver {
		return
	}
	for _, member := range g.contents.single.membersOf(groupRecordOf(content).handle()) {
		g.singles.memory.retryNow(member.name)
		g.singles.queue.Add(member.name)
	}
}

// start fills the caches, once, and queues the contents then.
func (g *groups) start(ctx context.Context, running *errgroup.Group) {
	if g.watching {
		return
	}
	g.watching = true
	caches := g.contents.newCaches()
	running.Go(func() error { return caches.objects.Run(ctx) })
	running.Go(func() error { return caches.classes.Run(ctx) })
	running.Go(func() error {
		if kube.WaitAllSynced(ctx, caches.objects, caches.classes) == nil {
			g.contents.caches.Store(caches)
			follow(g.loop, caches.objects, caches.classes, groupRecordOf)
			caches.objects.OnChange(func(_, after *groupv1.VolumeGroupSnapshotContent) { g.wakeMembers(after) })
		}
		return nil
	})
}
