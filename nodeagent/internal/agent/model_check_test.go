package agent

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// The invariants, by the names in messages:
//
//	life cycle     NodePublishVolume only of a staged volume, NodeUnstageVolume only of one that is published nowhere on the node, one call at a time
//	record         a record on disk for all that is, or may be, staged or published, from before the call that makes it until after the one that ends it
//	attachment     a call that makes a mount has read the VolumeAttachment, attached and not being deleted, which exists while the call runs
//	stale stage    a volume is published only from a stage for the present attachment
//	in use         the name is in volumesInUse from before NodeStageVolume until after NodeUnstageVolume
//	one node       no volume for one node is staged on two, unless it was detached by force
//	one pod        no ReadWriteOncePod volume is published for two pods
//	parameters     a repeated call has the parameters of the first
//	living pod     the volume of a pod that runs is not unpublished
//	running        a pod is reported as running only with all of its volumes, whose files have its group
//	end of a pod   a pod is ended by the agent only if it is deleted, and deleted in the API only when none of its volumes is published
//	expansion      a volume is expanded where it is published; a claim gets no size that no driver has confirmed, and never a smaller one
//	end            after faults have ended, all pods run; after their deletion nothing is left

// certainty is what the callers of a driver can know about a mount.
type certainty int

const (
	no certainty = iota
	maybe
	yes
)

// lifeKey is a volume on a node.
type lifeKey struct{ node, volume string }

// life is what is, or may be, mounted of a volume on a node.
type life struct {
	running string
	caller  *process
	staged  certainty
	// stage is the last request to stage it, and stagedFor the UID of the attachment at that time.
	stage     *csi.NodeStageVolumeRequest
	stagedFor types.UID
	// abandoned is true while what is staged belongs to an attachment that was ended by force.
	abandoned bool
	// rebooted is true after a reboot of the node, until the volume is staged again or unstaged. The agent does not know that its mounts are gone.
	rebooted bool
	targets  map[string]*target
}

type target struct {
	mounted certainty
	pod     types.UID
	request *csi.NodePublishVolumeRequest
}

func (l *life) target(path string, pod types.UID) *target {
	if l.targets[path] == nil {
		l.targets[path] = &target{pod: pod}
	}
	return l.targets[path]
}

func (m *model) life(k lifeKey) *life {
	if m.lives[k] == nil {
		m.lives[k] = &life{targets: map[string]*target{}}
	}
	return m.lives[k]
}

func (c *modelCall) volume() string {
	if r, ok := c.request.(interface{ GetVolumeId() string }); ok {
		return r.GetVolumeId()
	}
	return ""
}

func (c *modelCall) target() string {
	if r, ok := c.request.(interface{ GetTargetPath() string }); ok {
		return r.GetTargetPath()
	}
	return ""
}

func (c *modelCall) staging() string {
	if r, ok := c.request.(interface{ GetStagingTargetPath() string }); ok {
		return r.GetStagingTargetPath()
	}
	return ""
}

func (c *modelCall) key() lifeKey { return lifeKey{c.process.node.name, c.volume()} }

func (c *modelCall) attachment() string {
	return layout.Attachment(c.volume(), c.driver.name, c.process.node.name)
}

// pod is the UID in the target path.
func (c *modelCall) pod() types.UID {
	path := c.target()
	if strings.Contains(path, "/"+layout.BlockDir+"/") {
		return types.UID(filepath.Base(path))
	}
	rel, _ := filepath.Rel(c.process.node.root.Pods(), path)
	uid, _, _ := strings.Cut(rel, "/")
	return types.UID(uid)
}

func (c *modelCall) String() string {
	words := []string{c.process.node.name, c.method, c.volume()}
	if uid := c.target(); uid != "" {
		words = append(words, "for "+string(c.pod()))
	}
	return strings.Join(words, " ")
}

// begin checks that a call may be made now.
func (m *model) begin(c *modelCall) {
	if c.volume() == "" {
		return
	}
	node, va := m.node(c.process.node.name), objects[*storagev1.VolumeAttachment](m, "volumeattachments")[c.attachment()]
	pods := m.podsByUID()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note("%s", c)
	l := m.life(c.key())
	if l.running != "" && l.caller == c.process {
		m.violated("life cycle", "%s during %s", c, l.running)
	}
	l.running, l.caller = c.method, c.process
	if v := modelVolumeOf(c.volume()); v != nil && v.attaches() {
		m.checkInUse(c, v, node)
		m.checkAttachment(c, va)
	}
	switch r := c.request.(type) {
	case *csi.NodeStageVolumeRequest:
		m.beginStage(c, l, r, va)
	case *csi.NodePublishVolumeRequest:
		m.beginPublish(c, l, r)
	case *csi.NodeUnpublishVolumeRequest:
		m.beginUnpublish(c, l, pods)
	case *csi.NodeUnstageVolumeRequest:
		m.beginUnstage(c, l)
	case *csi.NodeExpandVolumeRequest:
		if t := l.targets[r.GetVolumePath()]; t == nil || t.mounted != yes {
			m.violated("expansion", "%s at %s, where it is not published", c, r.GetVolumePath())
		}
	}
}

func (m *model) checkInUse(c *modelCall, v *modelVolume, node *corev1.Node) {
	if !slices.Contains(node.Status.VolumesInUse, corev1.UniqueVolumeName(v.unique())) {
		m.violated("in use", "%s while the volume is not in volumesInUse: %v", c, node.Status.VolumesInUse)
	}
}

// checkAttachment checks a call that makes a mount.
func (m *model) checkAttachment(c *modelCall, va *storagev1.VolumeAttachment) {
	var context map[string]string
	switch r := c.request.(type) {
	case *csi.NodeStageVolumeRequest:
		context = r.GetPublishContext()
	case *csi.NodePublishVolumeRequest:
		context = r.GetPublishContext()
	default:
		return
	}
	read := c.process.reads[c.attachment()]
	switch {
	case read == nil || !read.Status.Attached || read.DeletionTimestamp != nil:
		m.violated("attachment", "%s, but the agent has last read the attachment as %+v", c, read)
	case !maps.Equal(context, read.Status.AttachmentMetadata):
		m.violated("attachment", "%s with publish_context %v, want that of the attachment: %v", c, context, read.Status.AttachmentMetadata)
	case !m.forced[read.UID] && (va == nil || va.UID != read.UID || va.DeletionTimestamp != nil):
		m.violated("attachment", "%s without the attachment %s: it is %+v", c, read.UID, va)
	}
}

func (m *model) beginStage(c *modelCall, l *life, r *csi.NodeStageVolumeRequest, va *storagev1.VolumeAttachment) {
	if info, err := os.Stat(c.staging()); err != nil || !info.IsDir() {
		m.violated("life cycle", "%s: the staging path must be a directory: %v", c, err)
	}
	m.checkRecord(c, c.process.node.stagingRecord(c))
	if v := modelVolumeOf(c.volume()); v.onOneNode() {
		for k, other := range m.lives {
			if k.volume == c.volume() && k.node != c.key().node && other.staged != no && !other.abandoned {
				m.violated("one node", "%s while it is, or may be, staged on %s", c, k.node)
			}
		}
	}
	if l.staged != no && va != nil && va.UID == l.stagedFor && !sameStage(r, l.stage) {
		m.violated("parameters", "%s with %v after %v", c, r, l.stage)
	}
	if read := c.process.reads[c.attachment()]; read != nil {
		if l.staged != no && l.stagedFor != read.UID {
			m.violated("stale stage", "%s for attachment %s over that for %s", c, read.UID, l.stagedFor)
		}
		l.stagedFor = read.UID
		l.abandoned = l.abandoned || m.forced[read.UID]
	}
	l.stage = r
	c.prior, l.staged = l.staged, max(l.staged, maybe)
}

func (m *model) beginPublish(c *modelCall, l *life, r *csi.NodePublishVolumeRequest) {
	if info, err := os.Stat(filepath.Dir(c.target())); err != nil || !info.IsDir() {
		m.violated("life cycle", "%s: the parent of the target path must be a directory: %v", c, err)
	}
	m.checkRecord(c, c.process.node.targetRecord(c))
	if v := modelVolumeOf(c.volume()); v != nil && v.attaches() {
		if l.staged != yes {
			m.violated("life cycle", "%s, but it is not known to be staged", c)
		}
		if read := c.process.reads[c.attachment()]; read != nil && read.UID != l.stagedFor {
			m.violated("stale stage", "%s for attachment %s, but it is staged for %s", c, read.UID, l.stagedFor)
		}
		for _, t := range l.targets {
			if v.mode == corev1.ReadWriteOncePod && t.mounted != no && t.pod != c.pod() {
				m.violated("one pod", "%s while it is, or may be, published for pod %s", c, t.pod)
			}
		}
	}
	t := l.target(c.target(), c.pod())
	if old := t.request; t.mounted != no && old != nil && !samePublication(r, old) {
		m.violated("parameters", "%s with %v after %v", c, r, old)
	}
	t.request = r
	c.prior, t.mounted = t.mounted, max(t.mounted, maybe)
}

func (m *model) beginUnpublish(c *modelCall, l *life, pods map[types.UID]*corev1.Pod) {
	if pod := pods[c.pod()]; pod != nil && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
		m.violated("living pod", "%s, which runs as %s/%s", c, pod.Namespace, pod.Name)
	}
	m.checkRecord(c, c.process.node.targetRecord(c))
	t := l.target(c.target(), c.pod())
	c.prior, t.mounted = t.mounted, min(t.mounted, maybe)
}

func (m *model) beginUnstage(c *modelCall, l *life) {
	m.checkRecord(c, c.process.node.stagingRecord(c))
	for path, t := range l.targets {
		if t.mounted != no {
			m.violated("life cycle", "%s while it is, or may be, published at %s", c, path)
		}
	}
	c.prior, l.staged = l.staged, min(l.staged, maybe)
}

func sameStage(a, b *csi.NodeStageVolumeRequest) bool {
	return a.GetStagingTargetPath() == b.GetStagingTargetPath() && proto.Equal(a.GetVolumeCapability(), b.GetVolumeCapability()) &&
		maps.Equal(a.GetVolumeContext(), b.GetVolumeContext())
}

func samePublication(a, b *csi.NodePublishVolumeRequest) bool {
	return a.GetStagingTargetPath() == b.GetStagingTargetPath() && proto.Equal(a.GetVolumeCapability(), b.GetVolumeCapability()) &&
		maps.Equal(a.GetVolumeContext(), b.GetVolumeContext()) && a.GetReadonly() == b.GetReadonly()
}

func (m *model) checkRecord(c *modelCall, path string) {
	if _, err := os.Lstat(path); err != nil {
		m.violated("record", "%s without the record %s: %v", c, path, err)
	}
}

// stagingRecord is the record of the volume of a call.
func (n *modelNode) stagingRecord(c *modelCall) string {
	if v := modelVolumeOf(c.volume()); v != nil && v.isBlock {
		return filepath.Join(n.root.DeviceRecordDir(v.pv()), layout.RecordFile)
	}
	return filepath.Join(n.root.StagingDir(c.driver.name, c.volume()), layout.RecordFile)
}

// targetRecord is the record of the target path of a call.
func (n *modelNode) targetRecord(c *modelCall) string {
	if v := modelVolumeOf(c.volume()); v != nil && v.isBlock {
		return n.root.DeviceLink(c.pod(), v.pv())
	}
	return filepath.Join(filepath.Dir(c.target()), layout.RecordFile)
}

// done notes that a call has taken effect at the driver, which may be later than its end.
func (m *model) done(c *modelCall, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.effective = err == nil
}

// end notes the answer that the agent gets. A call that the driver has answered without an effect has left everything as it was.
func (m *model) end(c *modelCall, answered bool, err error) {
	va := objects[*storagev1.VolumeAttachment](m, "volumeattachments")[c.attachment()]
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.calls[c.method+" "+status.Code(err).String()]++
	if c.volume() == "" {
		return
	}
	if err != nil {
		m.note("%s: %v", c, err)
	}
	l := m.life(c.key())
	l.running = ""
	after := func(makes bool) certainty {
		switch {
		case err == nil && makes:
			return yes
		case err == nil, answered && c.effective && !makes:
			return no
		case answered && !c.effective:
			return c.prior
		case makes:
			return maybe
		default:
			return min(c.prior, maybe)
		}
	}
	switch r := c.request.(type) {
	case *csi.NodeStageVolumeRequest:
		l.staged = after(true)
		l.rebooted = l.rebooted && err != nil
		if read := c.process.reads[c.attachment()]; read != nil && !m.forced[read.UID] && (va == nil || va.UID != read.UID) && !c.process.dead.Load() {
			m.violated("attachment", "%s: the attachment %s has not lasted", c, read.UID)
		}
	case *csi.NodePublishVolumeRequest:
		l.target(c.target(), c.pod()).mounted = after(true)
	case *csi.NodeUnpublishVolumeRequest:
		l.target(c.target(), c.pod()).mounted = after(false)
	case *csi.NodeUnstageVolumeRequest:
		if l.staged = after(false); l.staged == no {
			l.abandoned, l.rebooted = false, false
		}
	case *csi.NodeExpandVolumeRequest:
		if c.effective {
			m.capacity[c.volume()] = max(m.capacity[c.volume()], r.GetCapacityRange().GetRequiredBytes())
		}
	}
}

// observe checks the requests of the agents to the API server; it must not make any itself.
func (m *model) observe(w kubetest.Write) {
	if w.Err != nil || w.Object == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch now := w.Object.(type) {
	case *corev1.Node:
		if before, ok := w.Before.(*corev1.Node); ok {
			m.observeNode(before, now)
		}
	case *corev1.Pod:
		if before, ok := w.Before.(*corev1.Pod); ok {
			m.observePod(before, now, w.Gone)
		}
	case *corev1.PersistentVolumeClaim:
		m.note("claim %s: %s %v", now.Name, now.Status.Capacity.Storage(), now.Status.AllocatedResourceStatuses)
		if before, ok := w.Before.(*corev1.PersistentVolumeClaim); ok {
			m.observeClaim(before.Status.Capacity.Storage().Value(), now)
		}
	}
}

func (m *model) observeClaim(before int64, now *corev1.PersistentVolumeClaim) {
	if size, confirmed := now.Status.Capacity.Storage().Value(), m.capacity["vol-"+now.Name]; size < before || size > before && size > confirmed {
		m.violated("expansion", "claim %s gets %d bytes instead of %d; a driver has confirmed %d", now.Name, size, before, confirmed)
	}
}

func (m *model) observeNode(before, now *corev1.Node) {
	if slices.Equal(before.Status.VolumesInUse, now.Status.VolumesInUse) {
		return
	}
	m.note("%s volumesInUse: %v", now.Name, now.Status.VolumesInUse)
	for k, l := range m.lives {
		v := modelVolumeOf(k.volume)
		if k.node == now.Name && v != nil && v.attaches() && l.staged != no && !slices.Contains(now.Status.VolumesInUse, corev1.UniqueVolumeName(v.unique())) {
			m.violated("in use", "%s leaves volumesInUse of %s while it is, or may be, staged", k.volume, k.node)
		}
	}
}

func (m *model) observePod(before, now *corev1.Pod, gone bool) {
	if gone {
		m.note("%s: pod %s (%s) is deleted by the agent", now.Spec.NodeName, now.Name, now.UID)
		if before.DeletionTimestamp == nil {
			m.violated("end of a pod", "pod %s (%s) was deleted by an agent, but by nobody else", now.Name, now.UID)
		}
		for k, l := range m.lives {
			for path, t := range l.targets {
				if k.node == now.Spec.NodeName && t.pod == now.UID && t.mounted != no {
					m.violated("end of a pod", "pod %s (%s) was deleted while %s is, or may be, published at %s", now.Name, now.UID, k.volume, path)
				}
			}
		}
		return
	}
	if before.Status.Phase == now.Status.Phase {
		return
	}
	m.note("%s: pod %s (%s) is %s", now.Spec.NodeName, now.Name, now.UID, now.Status.Phase)
	switch now.Status.Phase {
	case corev1.PodRunning:
		m.checkRunning(now)
	default:
		if now.DeletionTimestamp == nil {
			m.violated("end of a pod", "pod %s (%s) is %s, but it was not deleted", now.Name, now.UID, now.Status.Phase)
		}
	}
}

func (m *model) checkRunning(pod *corev1.Pod) {
	for _, u := range m.usesOf(pod) {
		l := m.lives[lifeKey{pod.Spec.NodeName, u.volume}]
		if l == nil || l.targets[u.target] == nil || l.targets[u.target].mounted != yes {
			m.violated("running", "pod %s (%s) is reported as running without volume %s at %s", pod.Name, pod.UID, u.volume, u.target)
			continue
		}
		const groupBits = os.ModeSetgid | 0o070
		if info, err := os.Stat(u.target); u.grouped && (err != nil || info.Mode()&groupBits != groupBits) {
			m.violated("running", "pod %s (%s) is reported as running while the files of volume %s do not have its group: %v %v", pod.Name, pod.UID, u.volume, info, err)
		}
	}
}

// usage is a volume of a pod.
type usage struct {
	volume, target string
	// grouped says that its files get the group of the pod.
	grouped bool
}

// usesOf lists the volumes of a pod.
func (m *model) usesOf(pod *corev1.Pod) []usage {
	var all []usage
	root := layout.Root(filepath.Join(m.dir, pod.Spec.NodeName))
	for i := range pod.Spec.Volumes {
		name := pod.Spec.Volumes[i].Name
		claim := pod.Spec.Volumes[i].PersistentVolumeClaim
		if claim == nil {
			all = append(all, usage{
				volume: layout.InlineHandle(pod.UID, name), target: root.Target(pod.UID, name),
				grouped: pod.Spec.Volumes[i].CSI.Driver == fullDriver && pod.Spec.SecurityContext != nil,
			})
			continue
		}
		v := modelVolumeOf(claim.ClaimName)
		u := usage{volume: v.handle(), target: root.Target(pod.UID, v.pv())}
		if v.isBlock {
			u.target = root.DeviceTarget(pod.UID, v.pv())
		}
		u.grouped = v.getsGroup() && pod.Spec.SecurityContext != nil && !claim.ReadOnly
		all = append(all, u)
	}
	return all
}

// check looks at what drivers have, which is the truth about mounts. Other goroutines do nothing meanwhile.
func (m *model) check() {
	for _, d := range m.drivers {
		for _, v := range d.csi.Violations() {
			m.violation("life cycle", "driver %s: %s", d.name, v)
		}
	}
	volumes := m.drivers[fullDriver].csi.Volumes()
	nodes := objects[*corev1.Node](m, "nodes")
	for _, v := range volumes {
		known := modelVolumeOf(v.ID)
		for _, at := range v.Staged {
			if !slices.Contains(nodes[at.Node].Status.VolumesInUse, corev1.UniqueVolumeName(known.unique())) {
				m.violation("in use", "volume %s is staged on %s, where it is not in volumesInUse: %v", v.ID, at.Node, nodes[at.Node].Status.VolumesInUse)
			}
		}
	}
}

func (m *model) node(name string) *corev1.Node {
	if n := objects[*corev1.Node](m, "nodes")[name]; n != nil {
		return n
	}
	return &corev1.Node{}
}

func (m *model) podsByUID() map[types.UID]*corev1.Pod {
	all := map[types.UID]*corev1.Pod{}
	for _, p := range objects[*corev1.Pod](m, "pods") {
		all[p.UID] = p
	}
	return all
}

// leftovers lists what must not be there once there are no pods.
func (m *model) leftovers() []string {
	var left []string
	for _, d := range m.drivers {
		for _, v := range d.csi.Volumes() {
			if v.Ephemeral || len(v.Staged)+len(v.Published) > 0 {
				left = append(left, fmt.Sprintf("driver %s has volume %s staged at %v, published at %v", d.name, v.ID, v.Staged, v.Published))
			}
		}
	}
	for name, n := range objects[*corev1.Node](m, "nodes") {
		if len(n.Status.VolumesInUse)+len(n.Status.VolumesAttached) > 0 {
			left = append(left, fmt.Sprintf("%s has volumesInUse %v and volumesAttached %v", name, n.Status.VolumesInUse, n.Status.VolumesAttached))
		}
	}
	for _, kind := range []string{"pods", "volumeattachments"} {
		for _, obj := range m.api.Objects(kind) {
			left = append(left, fmt.Sprintf("%s %s is there: %+v", kind, obj.GetName(), obj))
		}
	}
	for _, n := range m.nodes {
		for _, pattern := range []string{"pods/*", "plugins/kubernetes.io/csi/*/*", "plugins/kubernetes.io/csi/volumeDevices/*/*"} {
			paths, _ := filepath.Glob(filepath.Join(string(n.root), pattern))
			for _, path := range paths {
				if path != filepath.Dir(n.root.DeviceStaging("pv")) && path != filepath.Dir(n.root.DeviceTargetDir("pv")) { // the parents of all block volumes stay
					left = append(left, path+" is there")
				}
			}
		}
	}
	return left
}

// age is the time since something happened; zero if it has not.
func age(since time.Time) time.Duration {
	if since.IsZero() {
		return 0
	}
	return time.Since(since)
}
