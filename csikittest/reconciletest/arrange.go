package reconciletest

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// arrange sorts entries by time; at the same time by group of related objects, as workers run concurrently; within
// a group by the order in which they were recorded, events last, as they are written in the background.
func arrange(entries []*entry, cluster *kubetest.Cluster, kinds Kinds) {
	groups := newGroups(entries, cluster, kinds)
	instant := cmp.Or(kinds.Instant, time.Microsecond) // less are latencies of the API server
	position := make(map[*entry]int, len(entries))
	for i, e := range entries {
		position[e] = i
	}
	slices.SortStableFunc(entries, func(a, b *entry) int {
		return cmp.Or(
			a.at.Truncate(instant).Compare(b.at.Truncate(instant)),
			cmp.Compare(rank(a), rank(b)),
			strings.Compare(groups.of(a), groups.of(b)),
			cmp.Compare(eventRank(a), eventRank(b)),
			eventOrder(a, b),
			cmp.Compare(position[a], position[b]),
		)
	})
}

// rank orders notes about the component after its calls and writes.
func rank(e *entry) int {
	if e.note != "" {
		return 1
	}
	return 0
}

func eventRank(e *entry) int {
	if e.isEvent() {
		return 1
	}
	return 0
}

// eventOrder sorts events of one group by text.
func eventOrder(a, b *entry) int {
	if !a.isEvent() || !b.isEvent() {
		return 0
	}
	first, _ := printEvent(a.write)
	second, _ := printEvent(b.write)
	return strings.Compare(first, second)
}

// groups are sets of names of related objects: a claim, its volume, its attachment.
type groups struct {
	parent  map[string]string
	related func(kube.Object) []string // nil: none
}

// newGroups joins the names of all objects that exist or were written.
func newGroups(entries []*entry, cluster *kubetest.Cluster, kinds Kinds) *groups {
	g := &groups{parent: map[string]string{}, related: kinds.Related}
	objs := map[string]kube.Object{}
	for _, resource := range []string{"persistentvolumes", "persistentvolumeclaims", "volumeattachments"} {
		for _, obj := range cluster.Objects(resource) {
			objs[resource+" "+obj.GetName()] = obj
		}
	}
	g.joinRelated(cluster)
	for _, e := range entries {
		if e.write == nil {
			continue
		}
		for _, obj := range []kube.Object{e.write.Before, e.write.Object} {
			if obj != nil {
				g.join(g.tokensOf(obj)...)
				objs[e.write.Resource+" "+obj.GetName()] = obj
			}
		}
	}
	attachments := map[string][]string{} // by volume
	for _, obj := range objs {
		g.join(g.tokensOf(obj)...)
		if va, ok := obj.(*storagev1.VolumeAttachment); ok && va.Spec.Source.PersistentVolumeName != nil {
			pv := *va.Spec.Source.PersistentVolumeName
			attachments[pv] = append(attachments[pv], va.Name)
		}
	}
	for pv, names := range attachments {
		if len(names) == 1 { // several attachments of a volume are groups of their own
			g.join("volume "+pv, "attachment "+names[0])
		}
	}
	return g
}

// joinRelated joins the names of the custom resources that exist.
func (g *groups) joinRelated(cluster *kubetest.Cluster) {
	if g.related == nil {
		return
	}
	for _, resource := range cluster.Resources() {
		for _, obj := range cluster.Objects(resource) {
			if tokensOf(obj) == nil {
				g.join(g.tokensOf(obj)...)
			}
		}
	}
}

// tokensOf returns the names by which an object is known, and those of what it is related to.
func (g *groups) tokensOf(obj kube.Object) []string {
	tokens := tokensOf(obj)
	if g.related == nil || tokens != nil {
		return tokens
	}
	kind := reflect.TypeOf(obj).Elem().Name()
	tokens = append(tokens, kindToken(kind)+" "+nameOf(obj.GetNamespace(), obj.GetName()))
	for _, name := range g.related(obj) {
		if snapshot, ok := strings.CutPrefix(name, "snapshot "); ok {
			name = snapshotToken(snapshot)
		}
		tokens = append(tokens, name)
	}
	return tokens
}

// tokensOf returns the names by which an object of Kubernetes is known.
func tokensOf(obj kube.Object) []string {
	switch o := obj.(type) {
	case *corev1.PersistentVolume:
		tokens := []string{"volume " + o.Name}
		if o.Spec.CSI != nil {
			tokens = append(tokens, "volume "+o.Spec.CSI.VolumeHandle)
		}
		if ref := o.Spec.ClaimRef; ref != nil {
			tokens = append(tokens, "claim "+nameOf(ref.Namespace, ref.Name))
		}
		return tokens
	case *corev1.PersistentVolumeClaim:
		tokens := []string{"claim " + nameOf(o.Namespace, o.Name), "volume pvc-" + string(o.UID)}
		if o.Spec.VolumeName != "" {
			tokens = append(tokens, "volume "+o.Spec.VolumeName)
		}
		return tokens
	case *storagev1.VolumeAttachment:
		tokens := []string{"attachment " + o.Name}
		if spec := o.Spec.Source.InlineVolumeSpec; spec != nil && spec.CSI != nil {
			tokens = append(tokens, "volume "+spec.CSI.VolumeHandle)
		}
		return tokens
	}
	return nil
}

// tokenOf returns one name by which an entry is known.
func tokenOf(e *entry) string {
	if e.write == nil {
		return callToken(e)
	}
	if event, ok := e.write.Object.(*corev1.Event); ok {
		ref := event.InvolvedObject
		return kindToken(ref.Kind) + " " + nameOf(ref.Namespace, ref.Name)
	}
	return kindToken(e.write.Resource) + " " + nameOf(e.write.Namespace, e.write.Name)
}

func callToken(e *entry) string {
	switch request := e.request.(type) {
	case *csi.CreateSnapshotRequest, *csi.CreateVolumeGroupSnapshotRequest:
		name, _ := request.(interface{ GetName() string })
		return snapshotToken(name.GetName())
	case interface{ GetGroupSnapshotId() string }:
		return snapshotToken(request.GetGroupSnapshotId())
	case interface{ GetSnapshotId() string }:
		return snapshotToken(request.GetSnapshotId())
	case interface{ GetVolumeId() string }:
		return "volume " + request.GetVolumeId()
	case interface{ GetName() string }:
		return "volume " + request.GetName()
	}
	return "driver"
}

// snapshotToken returns the token of a UID, of a name made of it, or of a handle made of that: without what the driver in memory and the
// component put before, and as much of the UID as the shortest names have.
func snapshotToken(name string) string {
	for _, prefix := range []string{"snap-", "group-", "snapshot-", "groupsnapshot-"} {
		name = strings.TrimPrefix(name, prefix)
	}
	name = strings.ReplaceAll(name, "-", "")
	return "snapshot " + name[:min(len(name), 8)]
}

func kindToken(kind string) string {
	singular := strings.TrimSuffix(strings.ToLower(kind), "s")
	switch singular {
	case "persistentvolume":
		return "volume"
	case "persistentvolumeclaim":
		return "claim"
	case "volumeattachment":
		return "attachment"
	}
	return singular
}

// of returns the name of an entry's group: the first of its names.
func (g *groups) of(e *entry) string { return g.find(tokenOf(e)) }

func (g *groups) find(token string) string {
	for {
		parent, ok := g.parent[token]
		if !ok {
			return token
		}
		token = parent
	}
}

func (g *groups) join(tokens ...string) {
	for _, token := range tokens {
		a, b := g.find(tokens[0]), g.find(token)
		switch {
		case a < b:
			g.parent[b] = a
		case b < a:
			g.parent[a] = b
		}
	}
}
