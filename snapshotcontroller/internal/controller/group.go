package controller

import (
	"context"
	"errors"
	"slices"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// indexNamespace has the group snapshots without a content by their namespace, which changes of claims wake.
const indexNamespace = "namespace"

// servedRetry is the pause after a failure to find out whether group snapshots are served.
const servedRetry = 5 * time.Second

// groups works on group snapshots while the server has their kinds.
type groups struct {
	*Controller

	groups        *kube.Informer[*groupv1.VolumeGroupSnapshot]
	groupContents *kube.Informer[*groupv1.VolumeGroupSnapshotContent]
	groupClasses  *kube.Informer[*groupv1.VolumeGroupSnapshotClass]
	groupQueue    *reconcile.Controller[string]
	groupVanished vanished[*groupv1.VolumeGroupSnapshotContent]
	version       string // in which they are served
}

// groupsState is what is known of the kinds of group snapshots.
type groupsState struct {
	// version is that which is served, empty for none.
	version string
	// on works on them, its caches being complete. nil without the kinds.
	on *groups
}

// groupsPatience is how long claims wait until the group snapshots that are served can be read.
const groupsPatience = 2 * time.Minute

// served returns who works on group snapshots. It is not known in the first moments, and while the caches are filled; nil is nobody, as there
// are no group snapshots.
func (c *Controller) served() (on *groups, known bool) {
	state := c.groups.Load()
	if state == nil {
		return nil, !c.cfg.Groups
	}
	return state.on, true
}

// awaitsGroups reports whether it is not known yet which claims group snapshots hold.
func (c *Controller) awaitsGroups() bool {
	_, known := c.served()
	return !known && !c.groupsUnread.Load()
}

// groupVersion returns the version in which group snapshots are worked on, empty if they are not.
func (c *Controller) groupVersion() string {
	if state := c.groups.Load(); state != nil {
		return state.version
	}
	return ""
}

// followGroups works on group snapshots whenever the server has their kinds, until ctx ends.
func (c *Controller) followGroups(ctx context.Context) error {
	stop := func() error { return nil }
	known, last := false, "" // the version that is worked on, which is none if they are not served
	for {
		pause := c.cfg.CRDInterval
		version, served, err := c.findGroupVersion(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			klog.FromContext(ctx).Error(err, "Cannot find out whether group snapshots are served, trying again")
			pause = min(pause, servedRetry)
		case err == nil && (!known || version != last):
			known, last = true, version
			klog.FromContext(ctx).Info("Group snapshots", "served", served, logging.KeyVersion, version)
			if err := stop(); err != nil {
				return err
			}
			stop = func() error { return nil }
			if served {
				stop = c.startGroups(ctx, version)
			} else {
				c.groups.Store(&groupsState{})
				c.wakeMembers()
			}
		}
		select {
		case <-ctx.Done():
			return stop()
		case <-time.After(pause):
		}
	}
}

// findGroupVersion asks the API server whether it has group snapshots, and in which version.
func (c *Controller) findGroupVersion(ctx context.Context) (version string, served bool, err error) {
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	return c.cfg.Snapshots.Served(ctx)
}

// startGroups begins to work on group snapshots. The returned function ends that.
func (c *Controller) startGroups(ctx context.Context, version string) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.newGroups(version).run(ctx) }()
	return func() error {
		cancel()
		c.groups.Store(nil)
		c.groupsUnread.Store(false)
		return <-ended
	}
}

func (c *Controller) newGroups(version string) *groups {
	g := &groups{Controller: c, version: version}
	g.groupVanished.of = groupOrphanOf
	g.groups = kube.NewInformer(c.cfg.Snapshots.VolumeGroupSnapshots(""), kube.InformerOptions[*groupv1.VolumeGroupSnapshot]{
		Name: "VolumeGroupSnapshot", Resync: c.cfg.Resync, Index: map[string]func(*groupv1.VolumeGroupSnapshot) []string{
			indexContent: func(group *groupv1.VolumeGroupSnapshot) []string { return []string{groupContentName(group)} },
			indexNamespace: func(group *groupv1.VolumeGroupSnapshot) []string {
				if groupBoundName(group) != "" || group.Spec.Source.Selector == nil {
					return nil
				}
				return []string{group.Namespace, "/"} // "/": those of all namespaces
			},
		},
	})
	g.groupContents = kube.NewInformer(c.cfg.Snapshots.VolumeGroupSnapshotContents(), kube.InformerOptions[*groupv1.VolumeGroupSnapshotContent]{
		Name: "VolumeGroupSnapshotContent", Resync: c.cfg.Resync, Index: map[string]func(*groupv1.VolumeGroupSnapshotContent) []string{
			indexRef:    func(content *groupv1.VolumeGroupSnapshotContent) []string { return []string{groupRefKey(content)} },
			indexHandle: groupHandles,
			indexGroup:  groupHandleOf,
		},
	})
	g.groupClasses = kube.NewInformer(c.cfg.Snapshots.VolumeGroupSnapshotClasses(), kube.InformerOptions[*groupv1.VolumeGroupSnapshotClass]{
		Name: "VolumeGroupSnapshotClass",
	})
	return g
}

// run works until ctx ends.
func (g *groups) run(ctx context.Context) (err error) {
	if g.groupQueue, err = g.newQueue(QueueGroups, g.reconcileGroup, g.inputs); err != nil {
		return err
	}
	g.groups.OnChange(g.groupChanged)
	g.groupContents.OnChange(g.groupContentChanged)
	g.groupClasses.OnChange(func(_, _ *groupv1.VolumeGroupSnapshotClass) { g.wakeWaitingGroups("/") })
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	informers, watching := errgroup.WithContext(watching)
	informers.Go(func() error { return g.groups.Run(watching) })
	informers.Go(func() error { return g.groupContents.Run(watching) })
	informers.Go(func() error { return g.groupClasses.Run(watching) })

	unread := time.AfterFunc(groupsPatience, func() { g.goOnWithoutGroups(ctx) })
	err = kube.WaitAllSynced(ctx, append(g.informers(), g.groups, g.groupContents, g.groupClasses)...)
	unread.Stop()
	g.groupsUnread.Store(false)
	if ctx.Err() != nil {
		err = nil // stopped before there was anything to do
	} else if err == nil {
		g.groupVanished.find(g.groupContents.All(), func(ref corev1.ObjectReference) bool {
			group, ok := g.groups.Get(ref.Namespace, ref.Name)
			return ok && group.UID == ref.UID
		})
		g.Controller.groups.Store(&groupsState{version: g.version, on: g})
		g.wakeMembers()
	}
	err = errors.Join(err, g.groupQueue.Run(ctx))
	stop()
	return errors.Join(err, informers.Wait())
}

// goOnWithoutGroups lets claims go that no snapshot holds, as far as is known: a role that does not allow to read group snapshots, or a webhook that
// cannot convert them, must not keep every claim of the cluster.
func (c *Controller) goOnWithoutGroups(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	klog.FromContext(ctx).Error(nil, "Group snapshots are served and cannot be read: claims are no longer protected while group snapshots are taken of them. "+
		"Allow list and watch of volumegroupsnapshots, volumegroupsnapshotcontents and volumegroupsnapshotclasses, or stop serving them")
	c.groupsUnread.Store(true)
	for claim := range c.claims.All() {
		if isProtected(claim) {
			c.claimQueue.Add(keyOf(claim))
		}
	}
}

func (g *groups) groupChanged(before, after *groupv1.VolumeGroupSnapshot) {
	for _, group := range []*groupv1.VolumeGroupSnapshot{before, after} {
		if group == nil {
			continue
		}
		g.groupQueue.Add(keyOf(group))
		if after == nil || after.UID != group.UID {
			g.contentKnown(group.UID)
			g.gone.Delete(groupContentName(group))
			if group == before {
				g.groupVanished.note(group)
			}
		}
		if before == nil || after == nil || before.UID != after.UID || (before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) {
			snapshots := g.snapshots.ByIndex(indexGroup, string(group.UID))
			members := make([]string, 0, len(snapshots))
			for _, s := range snapshots {
				members = append(members, keyOf(s))
			}
			addSorted(g.queue, members)
		}
	}
}

func (g *groups) groupContentChanged(before, after *groupv1.VolumeGroupSnapshotContent) {
	for _, content := range []*groupv1.VolumeGroupSnapshotContent{before, after} {
		if content == nil {
			continue
		}
		named := g.groups.ByIndex(indexContent, content.Name)
		if after == nil && len(named) > 0 {
			g.gone.Store(content.Name, nil)
		}
		for _, group := range named {
			g.groupQueue.Add(keyOf(group))
		}
		g.wakeByGroupContent(content)
	}
	if after != nil {
		g.gone.Delete(after.Name)
	}
	if before != nil && (after == nil || after.UID != before.UID) {
		g.deleted.Delete(before.UID)
	}
}

// wakeByGroupContent queues what a group content is about: the group snapshot, members, claims.
func (g *groups) wakeByGroupContent(content *groupv1.VolumeGroupSnapshotContent) {
	g.groupQueue.Add(groupRefKey(content))
	for _, handle := range groupHandleOf(content) {
		for _, member := range g.contents.ByIndex(indexGroup, handle) {
			g.queue.Add(refKey(member))
		}
	}
	for _, handle := range groupHandles(content) {
		g.wakeClaimsOf(handle)
	}
}

// wakeWaitingGroups queues the group snapshots of a namespace that have no content.
func (g *groups) wakeWaitingGroups(namespace string) {
	for _, group := range g.groups.ByIndex(indexNamespace, namespace) {
		g.groupQueue.Add(keyOf(group))
	}
}

// wakeMembers queues what depends on whether there are group snapshots: their members, and claims with the finalizer.
func (c *Controller) wakeMembers() {
	var members, claims []string
	for s := range c.snapshots.All() {
		if ownerGroup(s) != nil {
			members = append(members, keyOf(s))
		}
	}
	for claim := range c.claims.All() {
		if isProtected(claim) {
			claims = append(claims, keyOf(claim))
		}
	}
	addSorted(c.queue, members)
	addSorted(c.claimQueue, claims)
}

// addSorted adds keys in their order.
func addSorted(queue *reconcile.Controller[string], keys []string) {
	slices.Sort(keys)
	for _, key := range keys {
		queue.Add(key)
	}
}

// groupOf returns the group snapshot that a snapshot is a member of, nil for none: its owner, or that whose handle its content has. known is
// false while nobody can say whether it exists.
func (c *Controller) groupOf(s *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) (ref *groupRef, group *groupv1.VolumeGroupSnapshot, known bool) {
	on, known := c.served()
	ref = ownerGroup(s)
	if ref == nil && on != nil && content != nil && content.Status != nil {
		ref = on.byHandle(ptr.Deref(content.Status.VolumeGroupSnapshotHandle, ""), content.Spec.Driver, s.Namespace)
	}
	if ref == nil || on == nil {
		return ref, nil, known || ref == nil
	}
	if group, ok := on.groups.Get(s.Namespace, ref.name); ok && group.UID == ref.uid {
		return ref, group, true
	}
	return ref, nil, true
}

// byHandle returns the group snapshot of a namespace that has a handle of a driver, nil for none.
func (g *groups) byHandle(handle, driver, namespace string) *groupRef {
	if handle == "" {
		return nil
	}
	for _, of := range g.groupContents.ByIndex(indexGroup, handle) {
		if ref := of.Spec.VolumeGroupSnapshotRef; ref.UID != "" && ref.Namespace == namespace && of.Spec.Driver == driver {
			return &groupRef{ref.Name, ref.UID}
		}
	}
	return nil
}

// groupContentName returns the name of the content of a group snapshot, whether it exists or not.
func groupContentName(group *groupv1.VolumeGroupSnapshot) string {
	if name := group.Spec.Source.VolumeGroupSnapshotContentName; name != nil {
		return *name
	}
	if name := groupBoundName(group); name != "" {
		return name
	}
	return snapshotapi.GroupContentName(group.UID)
}

func groupBoundName(group *groupv1.VolumeGroupSnapshot) string {
	if group.Status == nil {
		return ""
	}
	return ptr.Deref(group.Status.BoundVolumeGroupSnapshotContentName, "")
}

func groupRefKey(content *groupv1.VolumeGroupSnapshotContent) string {
	return content.Spec.VolumeGroupSnapshotRef.Namespace + "/" + content.Spec.VolumeGroupSnapshotRef.Name
}

// groupHandles returns the index values of the volumes of a group content.
func groupHandles(content *groupv1.VolumeGroupSnapshotContent) []string {
	keys := make([]string, 0, len(content.Spec.Source.VolumeHandles))
	for _, handle := range content.Spec.Source.VolumeHandles {
		keys = append(keys, handleKey(content.Spec.Driver, handle))
	}
	return keys
}

// groupHandleOf returns the handle that the driver has given a group snapshot, if there is one.
func groupHandleOf(content *groupv1.VolumeGroupSnapshotContent) []string {
	if content.Status != nil && ptr.Deref(content.Status.VolumeGroupSnapshotHandle, "") != "" {
		return []string{*content.Status.VolumeGroupSnapshotHandle}
	}
	if source := content.Spec.Source.GroupSnapshotHandles; source != nil {
		return []string{source.VolumeGroupSnapshotHandle}
	}
	return nil
}

// isOpenGroup is isOpen for group contents.
func isOpenGroup(content *groupv1.VolumeGroupSnapshotContent, refused bool) bool {
	status := content.Status
	switch {
	case status != nil && ptr.Deref(status.VolumeGroupSnapshotHandle, "") != "":
		return false
	case metav1.HasAnnotation(content.ObjectMeta, snapshotapi.AnnGroupBeingCreated):
		return true
	}
	return !refused || status == nil || status.Error == nil
}
