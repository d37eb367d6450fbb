package controller

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// servedRetry is the pause after a failure to find out whether group snapshots are served.
const servedRetry = 5 * time.Second

// groupsPatience is how long claims wait until it is known which group snapshots there are.
const groupsPatience = 2 * time.Minute

// groups works on group snapshots while the server has their kinds.
type groups struct {
	*pairs

	owners   *kube.Informer[*groupv1.VolumeGroupSnapshot]
	contents *kube.Informer[*groupv1.VolumeGroupSnapshotContent]
	classes  *kube.Informer[*groupv1.VolumeGroupSnapshotClass]
	version  string // in which they are served
}

// groupsState is what is known of the kinds of group snapshots.
type groupsState struct {
	// version is that which is served, empty for none.
	version string
	// on works on them, its caches being complete. nil without the kinds.
	on *groups
}

// served returns what works on group snapshots. It is not known in the first moments, and while the caches are filled; nil is nothing, as there
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
	unread := time.AfterFunc(groupsPatience, func() { c.goOnWithoutGroups(ctx) })
	defer unread.Stop()
	for {
		pause := c.cfg.CRDInterval
		version, served, err := c.findGroupVersion(ctx)
		switch {
		case kube.IsUnwatchable(err):
			klog.FromContext(ctx).Info("The role does not allow to find out whether group snapshots are served, asking again from time to time", logging.KeyReason, err.Error())
			pause = kube.DefaultAskAgain
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
				unread.Reset(groupsPatience)
				stop = c.startGroups(ctx, version, unread)
			} else {
				unread.Stop()
				c.knowGroups(&groupsState{})
			}
		}
		select {
		case <-ctx.Done():
			return stop()
		case <-time.After(pause):
		}
	}
}

// knowGroups notes what is known of group snapshots, and queues what depends on it.
func (c *Controller) knowGroups(state *groupsState) {
	c.groups.Store(state)
	c.groupsUnread.Store(false)
	c.wakeMembers()
}

// findGroupVersion asks the API server whether it has group snapshots, and in which version.
func (c *Controller) findGroupVersion(ctx context.Context) (version string, served bool, err error) {
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	return c.cfg.Snapshots.Served(ctx)
}

// startGroups begins to work on group snapshots. The returned function ends that. unread is stopped when they are known.
func (c *Controller) startGroups(ctx context.Context, version string, unread *time.Timer) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.newGroups(version).run(ctx, unread) }()
	return func() error {
		cancel()
		c.groups.Store(nil)
		c.groupsUnread.Store(false)
		return <-ended
	}
}

func (c *Controller) newGroups(version string) *groups {
	g := &groups{version: version}
	g.owners = kube.NewInformer(c.cfg.Snapshots.VolumeGroupSnapshots(""), kube.InformerOptions[*groupv1.VolumeGroupSnapshot]{
		Name: "VolumeGroupSnapshot", AskAgain: kube.DefaultAskAgain, Resync: c.cfg.Resync, Index: indexGroups(),
	})
	g.contents = kube.NewInformer(c.cfg.Snapshots.VolumeGroupSnapshotContents(), kube.InformerOptions[*groupv1.VolumeGroupSnapshotContent]{
		Name: "VolumeGroupSnapshotContent", AskAgain: kube.DefaultAskAgain, Resync: c.cfg.Resync, Index: indexGroupContents(),
	})
	g.classes = kube.NewInformer(c.cfg.Snapshots.VolumeGroupSnapshotClasses(), kube.InformerOptions[*groupv1.VolumeGroupSnapshotClass]{
		Name: "VolumeGroupSnapshotClass", AskAgain: kube.DefaultAskAgain,
	})
	k := groupKind()
	g.pairs = &pairs{Controller: c, kind: k, complete: g.completeGroup, sourcesOf: g.selected, objects: &store[*groupv1.VolumeGroupSnapshot, *groupv1.VolumeGroupSnapshotContent, *groupv1.VolumeGroupSnapshotClass]{
		kind: k, owners: g.owners, contents: g.contents, classes: g.classes, timeout: c.cfg.KubeTimeout,
		ownersIn: func(namespace string) client[*groupv1.VolumeGroupSnapshot] {
			return c.cfg.Snapshots.VolumeGroupSnapshots(namespace)
		},
		contentsIn: c.cfg.Snapshots.VolumeGroupSnapshotContents(),
		classesNow: func(ctx context.Context) (runtime.Object, error) {
			return c.cfg.Snapshots.VolumeGroupSnapshotClasses().List(ctx, metav1.ListOptions{})
		},
		ownerOf: ownerOfGroup, contentOf: contentOfGroup, classOf: classOfGroups, encode: encodeGroupContent,
	}}
	return g
}

// run works until ctx ends.
func (g *groups) run(ctx context.Context, unread *time.Timer) (err error) {
	if g.queue, err = g.newQueue(QueueGroups, g.reconcileWatched, g.inputs); err != nil {
		return err
	}
	onChange(g.owners, ownerOfGroup, g.groupChanged)
	onChange(g.contents, contentOfGroup, g.groupContentChanged)
	g.classes.OnChange(func(_, _ *groupv1.VolumeGroupSnapshotClass) { g.wakeWaitingGroups("/") })
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	informers, watching := errgroup.WithContext(watching)
	informers.Go(func() error { return g.owners.Run(watching) })
	informers.Go(func() error { return g.contents.Run(watching) })
	informers.Go(func() error { return g.classes.Run(watching) })

	err = kube.WaitAllSynced(ctx, append(g.informers(), g.owners, g.contents, g.classes)...)
	if ctx.Err() != nil {
		err = nil // stopped before there was anything to do
	} else if err == nil {
		unread.Stop()
		g.knowGroups(&groupsState{version: g.version, on: g})
	}
	err = errors.Join(err, g.queue.Run(ctx))
	stop()
	return errors.Join(err, informers.Wait())
}

// reconcileWatched skips a group snapshot while the API server refuses to watch the kinds: what is known of it may be old.
func (g *groups) reconcileWatched(ctx context.Context, key string) (reconcile.Result, error) {
	if cmp.Or(g.owners.Unwatched(), g.contents.Unwatched(), g.classes.Unwatched()) != nil {
		return reconcile.Result{After: g.cfg.CRDInterval}, nil //nolint:nilerr // the log has it
	}
	return g.reconcile(ctx, key)
}

// goOnWithoutGroups lets claims go that no snapshot holds, as far as is known: a role that does not allow to read group snapshots, or a webhook that
// cannot convert them, must not keep every claim of the cluster.
func (c *Controller) goOnWithoutGroups(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	klog.FromContext(ctx).Info("It is not known which group snapshots there are: claims are no longer protected while group snapshots are taken of them. " +
		"Allow list and watch of volumegroupsnapshots, volumegroupsnapshotcontents and volumegroupsnapshotclasses, or stop serving them")
	c.groupsUnread.Store(true)
	c.wakeMembers()
}

// wakeMembers queues what depends on whether there are group snapshots: their members, and claims with the finalizer.
func (c *Controller) wakeMembers() {
	var members, claims []string
	for s := range c.snapshots.All() {
		if ownerGroup(s) != nil {
			members = append(members, keyOf(s))
		}
	}
	for of := range c.contents.All() {
		if groupHandle(of) != "" {
			members = append(members, contentOfSnapshot(of).refKey())
		}
	}
	for claim := range c.claims.All() {
		if isProtected(claim) {
			claims = append(claims, keyOf(claim))
		}
	}
	addSorted(c.singles.queue, members)
	addSorted(c.claimQueue, claims)
}

// completeGroup adds the members of a group, those to make or those to delete, and what they are being restored to.
func (g *groups) completeGroup(v *view) {
	group := v.owner.group
	if v.owner.GetDeletionTimestamp() == nil {
		if v.content != nil {
			v.members = g.membersOf(v.owner, v.content)
		}
		return
	}
	v.snapshots = slices.DeleteFunc(g.snapshots.ByIndex(indexGroup, string(group.UID)), func(s *snapshotv1.VolumeSnapshot) bool {
		_, deleted := g.deleted.Load(s.UID)
		return deleted
	})
	slices.SortFunc(v.snapshots, func(a, b *snapshotv1.VolumeSnapshot) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range v.snapshots {
		v.inUse = cmp.Or(v.inUse, g.useOf(v.kind, s))
	}
}

// selected returns the claims that the selector of a group matches, by name.
func (g *groups) selected(o *owner) ([]source, error) {
	selector, err := metav1.LabelSelectorAsSelector(o.group.Spec.Source.Selector)
	if err != nil {
		return nil, err
	}
	var sources []source
	for _, claim := range g.claims.ByIndex(indexNamespace, o.GetNamespace()) {
		if selector.Matches(labels.Set(claim.Labels)) {
			_, pv := g.claimOf(claim.Namespace, claim.Name)
			sources = append(sources, source{claim.Name, claim, pv})
		}
	}
	slices.SortFunc(sources, func(a, b source) int { return cmp.Compare(a.name, b.name) })
	return sources, nil
}

// groupOf adds the group snapshot that a snapshot is a member of: its owner, or that whose handle its content has.
func (c *Controller) groupOf(v *view) {
	on, known := c.served()
	v.group = ownerGroup(v.owner)
	if v.group == nil && on != nil && v.content != nil {
		v.group = on.byHandle(statusGroup(v.content.single), v.content.driver, v.owner.GetNamespace())
	}
	switch {
	case v.group == nil:
	case on == nil:
		v.groupUnknown, v.groupUnread = !known, !known && c.groupsUnread.Load()
	default:
		group := on.findOwner(v.owner.GetNamespace(), v.group.name)
		v.groupExists = group != nil && group.GetUID() == v.group.uid
		v.groupDeleting = v.groupExists && group.GetDeletionTimestamp() != nil
	}
}

// byHandle returns the group snapshot of a namespace that has a handle of a driver, nil for none.
func (g *groups) byHandle(handle, driver, namespace string) *groupRef {
	if handle == "" {
		return nil
	}
	for _, of := range g.contentsWith(indexGroup, handle) {
		if of.ref.UID != "" && of.ref.Namespace == namespace && of.driver == driver {
			return &groupRef{of.ref.Name, of.ref.UID}
		}
	}
	return nil
}

// hasGroup reports whether a group content has a handle of a driver.
func (g *groups) hasGroup(driver, handle string) bool {
	return slices.ContainsFunc(g.contentsWith(indexGroup, handle), func(of *content) bool { return of.driver == driver })
}

// holds reports whether the driver may be taking a group snapshot of a volume. refused is as in isOpen.
func (g *groups) holds(handle string, refused bool) bool {
	return slices.ContainsFunc(g.contentsWith(indexHandle, handle), func(c *content) bool { return c.isOpen(g.kind, refused) })
}

// statusGroup returns the handle of the group snapshot that the status of a content names, empty for none.
func statusGroup(c *snapshotv1.VolumeSnapshotContent) string {
	if c.Status == nil {
		return ""
	}
	return ptr.Deref(c.Status.VolumeGroupSnapshotHandle, "")
}

// groupHandle returns the handle of the group snapshot that a content belongs to, empty for none.
func groupHandle(c *snapshotv1.VolumeSnapshotContent) string {
	return cmp.Or(statusGroup(c), c.Annotations[snapshotapi.AnnVolumeGroupSnapshotHandle])
}
