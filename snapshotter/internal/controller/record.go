package controller

import (
	"slices"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// record is what contents of snapshots and of group snapshots have in common: what is asked for, and what is known.
type record struct {
	name, version string // version is the resourceVersion
	uid           types.UID
	deleting      bool
	finalizers    []string
	annotations   map[string]string
	// labelled: the label says that the snapshot is being taken, whatever the annotations say.
	labelled bool

	// ref is the VolumeSnapshot or VolumeGroupSnapshot; its UID is empty until it is bound to a content that existed before.
	ref    corev1.ObjectReference
	driver string
	class  string
	// retain: the snapshot is to stay when the content is deleted.
	retain bool
	// volumes are the handles of the volumes to take a snapshot of. None: given is the handle of a snapshot that exists already.
	volumes []string
	given   string
	// member: the snapshot is part of a group snapshot, whose content creates and deletes it.
	member bool
	// members are the handles of the snapshots of a group. membersMissing: the status does not have them, although the group exists.
	members        []string
	membersMissing bool
	// behind: the content of the group snapshot says more of a member than its own.
	behind bool

	status status
}

// status is what a content says of its snapshot. Pointers are nil, and strings are empty, for what it does not say.
type status struct {
	handle string
	ready  *bool
	// created is in nanoseconds since 1970, size in bytes.
	created, size *int64
	// group is the handle of the group snapshot that the snapshot is a member of.
	group string
	// infos are the members of a group snapshot.
	infos []groupv1.VolumeSnapshotInfo
	// failed: there is an error, which is err.
	failed bool
	err    string
}

// handle returns the handle of the snapshot, "" if none is known.
func (r record) handle() string {
	if r.given != "" {
		return r.given
	}
	return r.status.handle
}

func (r record) has(annotation string) bool {
	_, ok := r.annotations[annotation]
	return ok
}

func (r record) protected(finalizer string) bool { return slices.Contains(r.finalizers, finalizer) }

func (r record) isReady() bool { return r.status.ready != nil && *r.status.ready }

// whole leaves out of an answer that is not complete what must not become a VolumeSnapshot: members without a handle, and of volumes of others.
func (r record) whole(s snapshot) snapshot {
	s.ready = false
	s.infos = slices.DeleteFunc(slices.Clone(s.infos), func(info groupv1.VolumeSnapshotInfo) bool {
		return info.SnapshotHandle == "" || len(r.volumes) > 0 && !slices.Contains(r.volumes, info.VolumeHandle)
	})
	return s
}

// snapshot is what the driver answers about a snapshot or a group snapshot.
type snapshot struct {
	handle string
	ready  bool
	// created is zero if the driver does not say it.
	created time.Time
	// size in bytes, 0 if it is unknown.
	size  int64
	group string
	// accessible is from where it is accessible, as snapshotapi.AnnAccessibleTopology has it; "" if the driver does not say.
	accessible string
	infos      []groupv1.VolumeSnapshotInfo
}

// recordMeta returns the record of an object's metadata.
func recordMeta(meta *metav1.ObjectMeta, driver string) record {
	_, labelled := meta.Labels[snapshotapi.LabelBeingCreated]
	return record{
		name: meta.Name, version: meta.ResourceVersion, uid: meta.UID, deleting: meta.DeletionTimestamp != nil,
		finalizers: meta.Finalizers, annotations: meta.Annotations, labelled: labelled, driver: driver,
	}
}

func (s *status) setError(err *snapshotv1.VolumeSnapshotError) {
	if err != nil {
		s.failed, s.err = true, valueOf(err.Message)
	}
}

// valueOf returns what p points to, or the zero value.
func valueOf[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}
