package controller

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// groupContents are those of group snapshots. They exist once the API server has the kinds and the driver the calls.
type groupContents struct {
	cfg    *Config
	single *contents                   // those of snapshots, members among them
	caches atomic.Pointer[groupCaches] // nil until then
}

// groupCaches are the caches of the kinds of group snapshots.
type groupCaches struct {
	objects *kube.Informer[*groupv1.VolumeGroupSnapshotContent]
	classes *kube.Informer[*groupv1.VolumeGroupSnapshotClass]
}

var _ objects = (*groupContents)(nil)

// newCaches returns caches that do not run yet.
func (g *groupContents) newCaches() *groupCaches {
	index := indexes(g.cfg.GroupNames, groupRecordOf)
	index[indexHandle] = func(content *groupv1.VolumeGroupSnapshotContent) []string {
		return []string{groupRecordOf(content).handle()}
	}
	return &groupCaches{
		objects: kube.NewInformer(g.cfg.Snapshots.VolumeGroupSnapshotContents(), kube.InformerOptions[*groupv1.VolumeGroupSnapshotContent]{
			Name: "VolumeGroupSnapshotContent", LabelSelector: nodeSelector(g.cfg.Node), Resync: g.cfg.Resync, Transform: slimGroupContent(g.cfg.Driver),
			AskAgain: kube.DefaultAskAgain, Index: index,
		}),
		classes: kube.NewInformer(g.cfg.Snapshots.VolumeGroupSnapshotClasses(), kube.InformerOptions[*groupv1.VolumeGroupSnapshotClass]{
			Name: "VolumeGroupSnapshotClass", AskAgain: kube.DefaultAskAgain, Transform: slimGroupClass(g.cfg.Driver),
		}),
	}
}

// groupRecordOf returns the record of a content.
func groupRecordOf(content *groupv1.VolumeGroupSnapshotContent) record {
	r := recordMeta(&content.ObjectMeta, content.Spec.Driver)
	r.ref, r.class = content.Spec.VolumeGroupSnapshotRef, valueOf(content.Spec.VolumeGroupSnapshotClassName)
	r.retain = content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete
	r.volumes = content.Spec.Source.VolumeHandles
	if handles := content.Spec.Source.GroupSnapshotHandles; handles != nil {
		r.given, r.members = handles.VolumeGroupSnapshotHandle, handles.VolumeSnapshotHandles
	}
	s := content.Status
	if s == nil {
		return r
	}
	r.status = status{handle: valueOf(s.VolumeGroupSnapshotHandle), ready: s.ReadyToUse, infos: s.VolumeSnapshotInfoList}
	if s.CreationTime != nil {
		r.status.created = new(s.CreationTime.UnixNano())
	}
	r.status.setError(s.Error)
	if r.given == "" {
		r.members = handlesOf(s.VolumeSnapshotInfoList)
		r.membersMissing = r.status.handle != "" && len(r.members) == 0
	}
	return r
}

// handlesOf returns the handles of the snapshots in a list of members.
func handlesOf(infos []groupv1.VolumeSnapshotInfo) []string {
	handles := make([]string, 0, len(infos))
	for _, info := range infos {
		handles = append(handles, info.SnapshotHandle)
	}
	return handles
}

// complete returns the record of a content, with members that are not in its status.
func (g *groupContents) complete(content *groupv1.VolumeGroupSnapshotContent) record {
	r := groupRecordOf(content)
	if r.membersMissing {
		r.members = handlesOf(g.earlier(r))
	}
	return r
}

// earlier returns the members that an earlier version has left in v1beta1, else those whose contents name the group snapshot.
func (g *groupContents) earlier(r record) []groupv1.VolumeSnapshotInfo {
	if infos := snapshotapi.ParseInfoList(r.annotations[snapshotapi.AnnGroupSnapshotInfoList]); len(infos) > 0 {
		return infos
	}
	var infos []groupv1.VolumeSnapshotInfo
	for _, member := range g.single.membersOf(r.status.handle) {
		if member.driver == g.cfg.Driver && len(member.volumes) > 0 && member.status.handle != "" {
			infos = append(infos, groupv1.VolumeSnapshotInfo{
				VolumeHandle: first(member.volumes), SnapshotHandle: member.status.handle,
				CreationTime: member.status.created, RestoreSize: member.status.size, ReadyToUse: member.status.ready,
			})
		}
	}
	slices.SortFunc(infos, func(a, b groupv1.VolumeSnapshotInfo) int { return cmp.Compare(a.SnapshotHandle, b.SnapshotHandle) })
	return infos
}

func (g *groupContents) find(name string) (record, bool) {
	caches := g.caches.Load()
	if caches == nil {
		return record{}, false
	}
	content, ok := caches.objects.Get("", name)
	if !ok || content.Spec.Driver != g.cfg.Driver {
		return record{}, false
	}
	return g.complete(content), true
}

func (g *groupContents) all() iter.Seq[record] {
	return func(yield func(record) bool) {
		caches := g.caches.Load()
		if caches == nil {
			return
		}
		for content := range caches.objects.All() {
			if content.Spec.Driver == g.cfg.Driver && !yield(g.complete(content)) {
				return
			}
		}
	}
}

func (g *groupContents) named(name string) []record {
	return records(g.caches.Load().objects.ByIndex(indexName, name), groupRecordOf)
}

func (g *groupContents) unwatched() error {
	if caches := g.caches.Load(); caches != nil {
		return cmp.Or(caches.objects.Unwatched(), caches.classes.Unwatched())
	}
	return nil
}

func (g *groupContents) class(name string) (class, bool) {
	found, ok := g.caches.Load().classes.Get("", name)
	if !ok {
		return class{}, false
	}
	return class{driver: found.Driver, parameters: found.Parameters}, true
}

func (g *groupContents) patch(ctx context.Context, name string, data []byte, subresources ...string) (record, error) {
	patched, err := g.cfg.Snapshots.VolumeGroupSnapshotContents().Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return record{}, err
	}
	g.caches.Load().objects.Remember(patched)
	return groupRecordOf(patched), nil
}

func (g *groupContents) learned(r record, s snapshot, now time.Time) map[string]any {
	return learnedGroup(r, s, now)
}

func (g *groupContents) cleared(r record) map[string]any {
	if r.status.handle == "" {
		return nil
	}
	return map[string]any{"volumeGroupSnapshotHandle": nil, "readyToUse": nil, "creationTime": nil}
}

func (g *groupContents) check() error {
	if g.cfg.Features().Groups {
		return nil
	}
	return errNoGroups(g.cfg.Driver)
}

func (g *groupContents) create(ctx context.Context, request createRequest) (snapshot, error) {
	reply, err := g.cfg.GroupCSI.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{
		Name: request.name, SourceVolumeIds: request.volumes, Secrets: request.secrets, Parameters: request.parameters,
	})
	if err != nil {
		return snapshot{}, fmt.Errorf("create group snapshot %q of volumes %q: %w", request.name, request.volumes, err)
	}
	return groupSnapshotOf(reply.GetGroupSnapshot()), nil
}

// groupSnapshotOf returns what the driver says of a group snapshot.
func groupSnapshotOf(s *csi.VolumeGroupSnapshot) snapshot {
	out := snapshot{handle: s.GetGroupSnapshotId(), ready: s.GetReadyToUse()}
	if t := s.GetCreationTime(); t != nil {
		out.created = t.AsTime()
	}
	for _, member := range s.GetSnapshots() {
		m := snapshotOf(member)
		info := groupv1.VolumeSnapshotInfo{VolumeHandle: member.GetSourceVolumeId(), SnapshotHandle: m.handle, ReadyToUse: new(m.ready)}
		if m.size > 0 {
			info.RestoreSize = new(m.size)
		}
		if m.created.UnixNano() > 0 {
			info.CreationTime = new(m.created.UnixNano())
		}
		out.infos = append(out.infos, info)
	}
	return out
}

// readsByCreate: see contents.readsByCreate.
func (g *groupContents) readsByCreate(r record) bool {
	_, found := g.class(r.class)
	return found && len(r.volumes) > 0
}

// infosOf returns the members of the group snapshot with a handle, as its content has them.
func (g *groupContents) infosOf(handle string) (infos []groupv1.VolumeSnapshotInfo) {
	if caches := g.caches.Load(); caches != nil && handle != "" {
		for _, content := range caches.objects.ByIndex(indexHandle, handle) {
			if content.Spec.Driver == g.cfg.Driver {
				infos = append(infos, snapshotapi.InfoList(content)...)
			}
		}
	}
	return infos
}

// incomplete: CSI v1.13, VolumeGroupSnapshot, requires the snapshots, and "CreateVolumeGroupSnapshot" says that OK is for all of them. A backup that lacks a volume
// must not be taken for a whole one.
func (g *groupContents) incomplete(r record, s snapshot) error {
	members := map[string]int{}
	for _, info := range s.infos {
		if info.SnapshotHandle == "" {
			return fmt.Errorf("the driver has answered without the handle of the snapshot of volume %q, which is a defect of the driver", info.VolumeHandle)
		}
		members[info.VolumeHandle]++
	}
	if len(r.volumes) == 0 {
		return nil // the admin has named it
	}
	for _, volume := range r.volumes {
		if n := members[volume]; n != 1 {
			return fmt.Errorf("the driver has answered with %d snapshots of volume %q, where a group snapshot has one of each volume: it is not complete, which is a defect of the driver", n, volume)
		}
		delete(members, volume)
	}
	for volume := range members {
		return fmt.Errorf("the driver has answered with a snapshot of volume %q, of which none was asked for, which is a defect of the driver", volume)
	}
	return nil
}

func (g *groupContents) read(ctx context.Context, r record, secrets map[string]string) (snapshot, error) {
	reply, err := g.cfg.GroupCSI.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: r.handle(), SnapshotIds: r.members, Secrets: secrets,
	})
	if err != nil {
		return snapshot{}, fmt.Errorf("get group snapshot %q: %w", r.handle(), err)
	}
	return groupSnapshotOf(reply.GetGroupSnapshot()), nil
}

func (g *groupContents) remove(ctx context.Context, r record, secrets map[string]string) error {
	_, err := g.cfg.GroupCSI.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: r.handle(), SnapshotIds: r.members, Secrets: secrets,
	})
	if err != nil {
		return fmt.Errorf("delete group snapshot %q with %d members: %w", r.handle(), len(r.members), err)
	}
	return nil
}
