package controller

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// Indexes of contents.
const (
	// indexClass files contents under the class that they may need.
	indexClass = "class"
	// indexName files contents under the name of the snapshot to take.
	indexName = "name"
	// indexMember files contents under the handle of the group snapshot that they are members of.
	indexMember = "member"
	// indexHandle files contents of group snapshots under their handle.
	indexHandle = "handle"
)

// contents are those of snapshots.
type contents struct {
	cfg     *Config
	objects *kube.Informer[*snapshotv1.VolumeSnapshotContent]
	classes *kube.Informer[*snapshotv1.VolumeSnapshotClass]
	groups  *groupContents // nil: off
}

var _ objects = (*contents)(nil)

func newContents(cfg *Config) *contents {
	c := &contents{cfg: cfg}
	c.objects = kube.NewInformer(cfg.Snapshots.VolumeSnapshotContents(), kube.InformerOptions[*snapshotv1.VolumeSnapshotContent]{
		Name: "VolumeSnapshotContent", LabelSelector: nodeSelector(cfg.Node), Resync: cfg.Resync, Transform: slimContent(cfg.Driver),
		Encoding: snapshotapi.Encoding[*snapshotv1.VolumeSnapshotContent](),
		Index:    indexes(cfg.SnapshotNames, recordOf),
	})
	c.classes = kube.NewInformer(cfg.Snapshots.VolumeSnapshotClasses(), kube.InformerOptions[*snapshotv1.VolumeSnapshotClass]{
		Name: "VolumeSnapshotClass", Transform: slimClass(cfg.Driver),
	})
	return c
}

// nodeSelector selects the contents of a node, "" those of all.
func nodeSelector(node string) string {
	if node == "" {
		return ""
	}
	return snapshotapi.LabelManagedBy + "=" + snapshotapi.NodeLabel(node)
}

// indexes returns the indexes of contents. Those of other drivers have neither class nor volumes.
func indexes[T kube.Object](naming Naming, recordOf func(T) record) map[string]func(T) []string {
	return map[string]func(T) []string{
		indexClass: func(obj T) []string {
			r := recordOf(obj)
			if r.class == "" || r.isReady() {
				return nil
			}
			return []string{r.class}
		},
		indexName: func(obj T) []string {
			r := recordOf(obj)
			if len(r.volumes) == 0 || r.member {
				return nil
			}
			return []string{naming.name(r.ref.UID)}
		},
		indexMember: func(obj T) []string {
			if r := recordOf(obj); r.status.group != "" {
				return []string{r.status.group}
			}
			return nil
		},
	}
}

// recordOf returns the record of a content.
func recordOf(content *snapshotv1.VolumeSnapshotContent) record {
	r := recordMeta(&content.ObjectMeta, content.Spec.Driver)
	r.ref, r.class = content.Spec.VolumeSnapshotRef, valueOf(content.Spec.VolumeSnapshotClassName)
	r.retain = content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete
	if volume := valueOf(content.Spec.Source.VolumeHandle); volume != "" {
		r.volumes = []string{volume}
	}
	r.given = valueOf(content.Spec.Source.SnapshotHandle)
	r.member = r.has(snapshotapi.AnnVolumeGroupSnapshotHandle)
	if s := content.Status; s != nil {
		r.status = status{handle: valueOf(s.SnapshotHandle), ready: s.ReadyToUse, created: s.CreationTime, size: s.RestoreSize, group: valueOf(s.VolumeGroupSnapshotHandle)}
		r.status.setError(s.Error)
	}
	return r
}

func (c *contents) find(name string) (record, bool) {
	content, ok := c.objects.Get("", name)
	if !ok || content.Spec.Driver != c.cfg.Driver {
		return record{}, false
	}
	r := recordOf(content)
	if r.member && r.isReady() && valueOf(r.status.size) == 0 {
		told, ok := c.ofGroup(r)
		r.behind = ok && told.size > 0
	}
	return r, true
}

func (c *contents) all() iter.Seq[record] {
	return func(yield func(record) bool) {
		for content := range c.objects.All() {
			if content.Spec.Driver == c.cfg.Driver && !yield(recordOf(content)) {
				return
			}
		}
	}
}

func (c *contents) named(name string) []record {
	return records(c.objects.ByIndex(indexName, name), recordOf)
}

func records[T any](list []T, recordOf func(T) record) []record {
	out := make([]record, 0, len(list))
	for _, obj := range list {
		out = append(out, recordOf(obj))
	}
	return out
}

// unwatched: without them there is nothing to do, so that a refusal is an error of the informer.
func (c *contents) unwatched() error { return nil }

func (c *contents) class(name string) (class, bool) {
	found, ok := c.classes.Get("", name)
	if !ok {
		return class{}, false
	}
	return class{driver: found.Driver, parameters: found.Parameters, annotations: found.Annotations}, true
}

func (c *contents) patch(ctx context.Context, name string, data []byte, subresources ...string) (record, error) {
	patched, err := c.cfg.Snapshots.VolumeSnapshotContents().Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{}, subresources...)
	if err != nil {
		return record{}, err
	}
	c.objects.Remember(patched)
	return recordOf(patched), nil
}

func (c *contents) learned(r record, s snapshot, now time.Time) map[string]any {
	return learned(r, s, now)
}

func (c *contents) earlier(record) []groupv1.VolumeSnapshotInfo { return nil }

// membersOf returns the contents of the members of a group snapshot.
func (c *contents) membersOf(group string) []record {
	return records(c.objects.ByIndex(indexMember, group), recordOf)
}

func (c *contents) cleared(r record) map[string]any {
	if r.status.handle == "" {
		return nil
	}
	return map[string]any{"snapshotHandle": nil, "readyToUse": nil, "creationTime": nil, "restoreSize": nil}
}

func (c *contents) check() error { return c.cfg.Features().Check(c.cfg.Driver) }

func (c *contents) create(ctx context.Context, request createRequest) (snapshot, error) {
	reply, err := c.cfg.CSI.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{
		SourceVolumeId: first(request.volumes), Name: request.name, Secrets: request.secrets, Parameters: request.parameters,
		AccessibilityRequirements: request.place,
	})
	if err != nil {
		return snapshot{}, fmt.Errorf("create snapshot %q of volume %q: %w", request.name, first(request.volumes), err)
	}
	return snapshotOf(reply.GetSnapshot()), nil
}

// snapshotOf returns what the driver says of a snapshot.
func snapshotOf(s *csi.Snapshot) snapshot {
	out := snapshot{handle: s.GetSnapshotId(), ready: s.GetReadyToUse(), size: s.GetSizeBytes(), group: s.GetGroupSnapshotId()}
	accessible := make([]map[string]string, 0, len(s.GetAccessibleTopology()))
	for _, t := range s.GetAccessibleTopology() {
		accessible = append(accessible, t.GetSegments())
	}
	out.accessible = snapshotapi.FormatAccessibleTopology(accessible)
	if t := s.GetCreationTime(); t != nil {
		out.created = t.AsTime()
	}
	return out
}

// readsByCreate: CSI v1.13, "CreateSnapshot", has CreateSnapshot called again until the snapshot is ready, as neither GetSnapshot nor ListSnapshots can report
// that it has failed. It needs the class.
func (c *contents) readsByCreate(r record) bool {
	if len(r.volumes) == 0 || r.member {
		return false
	}
	_, found := c.class(r.class)
	return found || !c.cfg.Features().Get && !c.cfg.Features().List
}

func (c *contents) incomplete(record, snapshot) error { return nil }

// ofGroup returns what the content of its group snapshot says of a member. false: there is none that names it.
func (c *contents) ofGroup(r record) (snapshot, bool) {
	if c.groups == nil {
		return snapshot{}, false
	}
	for _, info := range c.groups.infosOf(cmp.Or(r.status.group, r.annotations[snapshotapi.AnnVolumeGroupSnapshotHandle])) {
		if info.SnapshotHandle == r.handle() {
			s := snapshot{handle: r.handle(), ready: valueOf(info.ReadyToUse), size: valueOf(info.RestoreSize)}
			if ns := valueOf(info.CreationTime); ns > 0 {
				s.created = time.Unix(0, ns)
			}
			return s, true
		}
	}
	return snapshot{}, false
}

func (c *contents) read(ctx context.Context, r record, secrets map[string]string) (snapshot, error) {
	id := r.handle()
	if r.member {
		if told, ok := c.ofGroup(r); ok {
			return told, nil
		}
	}
	switch features := c.cfg.Features(); {
	case features.Get:
		reply, err := c.cfg.CSI.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: id, Secrets: secrets})
		if err != nil {
			return snapshot{}, fmt.Errorf("get snapshot %q: %w", id, err)
		}
		return snapshotOf(reply.GetSnapshot()), nil
	case features.List:
		return c.list(ctx, id, secrets)
	case r.member:
		return snapshot{}, fmt.Errorf("no content of a group snapshot names snapshot %q, and the driver cannot be asked whether it is ready: it has neither GetSnapshot nor ListSnapshots", id)
	}
	return snapshot{handle: id, ready: true}, nil // the driver cannot be asked
}

// list finds a snapshot by ListSnapshots.
func (c *contents) list(ctx context.Context, id string, secrets map[string]string) (snapshot, error) {
	reply, err := c.cfg.CSI.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: id, Secrets: secrets})
	if err != nil {
		return snapshot{}, fmt.Errorf("list snapshot %q: %w", id, err)
	}
	at := slices.IndexFunc(reply.GetEntries(), func(e *csi.ListSnapshotsResponse_Entry) bool { return e.GetSnapshot().GetSnapshotId() == id })
	if at < 0 {
		return snapshot{}, fmt.Errorf("the driver lists no snapshot %q; correct the handle, or delete the content", id)
	}
	return snapshotOf(reply.GetEntries()[at].GetSnapshot()), nil
}

func (c *contents) remove(ctx context.Context, r record, secrets map[string]string) error {
	_, err := c.cfg.CSI.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: r.handle(), Secrets: secrets})
	if err != nil {
		return fmt.Errorf("delete snapshot %q: %w", r.handle(), err)
	}
	return nil
}
