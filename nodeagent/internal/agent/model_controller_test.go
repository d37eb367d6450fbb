package agent

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

const (
	// controllerPeriod is how often attachDetach looks at everything.
	controllerPeriod = time.Second
	// forceAfter is how long a volume of a node that is not ready has to be unused to be detached by force (reference, item 29).
	forceAfter = 6 * time.Minute
	// nodeGrace is how long a node may not renew its lease.
	nodeGrace = 50 * time.Second
	// verifyAfter is when kube-controller-manager finds that an attachment is gone.
	verifyAfter = time.Minute
)

// attachDetach does what kube-controller-manager's attach/detach controller, an attacher and the node lifecycle controller do. It sees everything
// a period late, except where the real one reads from the API server, and takes its steps one period apart. Only the goroutine of the test uses it.
type attachDetach struct {
	model *model
	rand  *rand.Rand
	last  time.Time
	// attachments are by node and handle.
	attachments map[string]*attachment
	// seen are the nodes as of the period before.
	seen map[string]*corev1.Node
	// outOfService has the nodes that an administrator has declared lost.
	outOfService map[string]bool
	// calm ends slow and failing attachers.
	calm bool
}

type attachPhase string

const (
	attaching attachPhase = "attaching"
	attached  attachPhase = "attached"
	// unreported: not in volumesAttached any more, but still attached.
	unreported attachPhase = "unreported"
	detaching  attachPhase = "detaching"
)

// attachment is a VolumeAttachment with what is known of it.
type attachment struct {
	node   string
	volume *modelVolume
	name   string
	uid    types.UID
	phase  attachPhase
	// at is when the phase attaching or detaching ends.
	at time.Time
	// unwanted is since when no pod wants it.
	unwanted time.Time
	forced   bool
	// unreportAt is when volumesAttached follows the deletion by a user.
	unreportAt time.Time
}

func newAttachDetach(m *model) *attachDetach {
	return &attachDetach{
		model: m, rand: rand.New(rand.NewPCG(m.seed, 3)), attachments: map[string]*attachment{}, seen: map[string]*corev1.Node{}, outOfService: map[string]bool{},
	}
}

// tick does one period's work, if it is time.
func (c *attachDetach) tick() {
	if age(c.last) < controllerPeriod && !c.last.IsZero() {
		return
	}
	c.last = time.Now()
	c.judgeNodes()
	wanted := c.wanted()
	for _, key := range sorted(wanted) {
		c.attach(key, wanted[key])
	}
	for _, key := range sorted(c.attachments) {
		c.advance(key, c.attachments[key], wanted[key] != nil)
	}
	c.seen = objects[*corev1.Node](c.model, "nodes")
}

// judgeNodes marks nodes whose lease is old.
func (c *attachDetach) judgeNodes() {
	leases := objects[*coordinationv1.Lease](c.model, "leases")
	for name, node := range objects[*corev1.Node](c.model, "nodes") {
		lease := leases[name]
		if lease == nil || lease.Spec.RenewTime == nil || age(lease.Spec.RenewTime.Time) < nodeGrace || !isReady(node) {
			continue
		}
		for i := range node.Status.Conditions {
			node.Status.Conditions[i].Status = corev1.ConditionUnknown
		}
		c.model.logf("%s is not ready any more", name)
		c.patchNode(name, map[string]any{"conditions": node.Status.Conditions})
	}
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (c *attachDetach) patchNode(name string, status map[string]any) {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		c.model.t.Error(err)
	}
	c.model.merge("nodes", "", name, string(patch))
}

// wanted lists what is to be attached, as NODE/HANDLE, by the pods that have not ended (reference, item 26).
func (c *attachDetach) wanted() map[string]*modelVolume {
	all := map[string]*modelVolume{}
	for _, pod := range objects[*corev1.Pod](c.model, "pods") {
		if hasEnded(pod) {
			continue
		}
		for _, v := range volumesOf(pod) {
			if v.attaches() {
				all[pod.Spec.NodeName+"/"+v.handle()] = v
			}
		}
	}
	return all
}

func hasEnded(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return true
	}
	return pod.DeletionTimestamp != nil && !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running != nil })
}

// attach creates a VolumeAttachment, unless the volume is, or may be, attached already, or elsewhere if it is for one node.
func (c *attachDetach) attach(key string, v *modelVolume) {
	m := c.model
	node := key[:len(key)-len(v.handle())-1]
	for _, a := range c.attachments {
		if a.volume == v && (a.node == node || v.onOneNode()) {
			return
		}
	}
	if objects[*corev1.Node](m, "nodes")[node] == nil || c.outOfService[node] {
		return
	}
	m.serial++
	a := &attachment{
		node: node, volume: v, name: layout.Attachment(v.handle(), v.driver, node), uid: types.UID(fmt.Sprintf("va-%d", m.serial)),
		phase: attaching, at: time.Now().Add(c.duration(2 * time.Second)),
	}
	m.apply(&storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: a.name, UID: a.uid, Finalizers: []string{"attacher/" + v.driver}},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: v.driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: on(v.pv())}},
	})
	c.attachments[key] = a
	m.logf("controller: %s to %s as %s: attaching", v.handle(), node, a.uid)
}

// duration is at most longest, as a rule; sometimes it is minutes.
func (c *attachDetach) duration(longest time.Duration) time.Duration {
	if !c.calm && c.rand.IntN(10) == 0 {
		longest = 4 * time.Minute
	}
	return time.Duration(c.rand.Int64N(int64(longest)))
}

// advance takes the next step of an attachment.
func (c *attachDetach) advance(key string, a *attachment, wanted bool) {
	now := time.Now()
	switch {
	case wanted:
		a.unwanted = time.Time{}
	case a.unwanted.IsZero():
		a.unwanted = now
	}
	switch a.phase {
	case attaching:
		if now.After(a.at) {
			c.finishAttach(a)
		}
	case attached:
		if !c.reported(a) {
			c.report(a, true)
		}
		if !wanted {
			c.beginDetach(a)
		}
	case unreported:
		c.detach(a)
	case detaching:
		if !a.unreportAt.IsZero() && now.After(a.unreportAt) && c.reported(a) {
			c.report(a, false)
		}
		if now.After(a.at) {
			c.finishDetach(key, a)
		}
	}
}

func (c *attachDetach) finishAttach(a *attachment) {
	m := c.model
	if !c.calm && c.rand.IntN(5) == 0 {
		m.stats.events["attachment fails"]++
		a.at = time.Now().Add(c.duration(20 * time.Second))
		m.merge("volumeattachments", "", a.name, `{"status":{"attachError":{"message":"injected"}}}`)
		return
	}
	m.stats.events["attachment"]++
	a.phase = attached
	m.merge("volumeattachments", "", a.name, fmt.Sprintf(`{"status":{"attached":true,"attachError":null,"attachmentMetadata":{"attachment":%q}}}`, a.uid))
	m.logf("controller: %s is attached to %s as %s", a.volume.handle(), a.node, a.uid)
}

// reported reports whether the volume is in volumesAttached.
func (c *attachDetach) reported(a *attachment) bool {
	return slices.ContainsFunc(c.model.node(a.node).Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return string(v.Name) == a.volume.unique() })
}

// report adds the volume to volumesAttached, or removes it.
func (c *attachDetach) report(a *attachment, add bool) {
	all := slices.DeleteFunc(c.model.node(a.node).Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return string(v.Name) == a.volume.unique() })
	if add {
		all = append(all, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(a.volume.unique())})
	}
	c.model.logf("controller: volumesAttached of %s has %s: %t", a.node, a.volume.handle(), add)
	c.patchNode(a.node, map[string]any{"volumesAttached": all})
}

// beginDetach takes the volume out of volumesAttached, if the node does not use it or is lost.
func (c *attachDetach) beginDetach(a *attachment) {
	node := c.seen[a.node]
	a.forced = c.outOfService[a.node] || node != nil && !isReady(node) && age(a.unwanted) >= forceAfter
	if a.forced || node != nil && !usesVolume(node, a.volume) {
		c.report(a, false)
		a.phase = unreported
	}
}

func usesVolume(node *corev1.Node, v *modelVolume) bool {
	return slices.Contains(node.Status.VolumesInUse, corev1.UniqueVolumeName(v.unique()))
}

// detach deletes the VolumeAttachment, if the node does not use the volume at this moment.
func (c *attachDetach) detach(a *attachment) {
	if !a.forced && usesVolume(c.model.node(a.node), a.volume) {
		c.model.stats.events["detachment given up"]++
		a.phase = attached
		return
	}
	if a.forced {
		c.model.stats.events["detachment by force"]++
		c.force(a)
	}
	c.remove(a)
}

// force notes that the attachment ends without the consent of the node.
func (c *attachDetach) force(a *attachment) {
	m := c.model
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forced[a.uid] = true
	if l := m.lives[lifeKey{a.node, a.volume.handle()}]; l != nil && l.staged != no {
		l.abandoned = true
	}
}

// remove deletes the VolumeAttachment, which goes when its attacher has detached the volume.
func (c *attachDetach) remove(a *attachment) {
	m := c.model
	a.phase, a.at = detaching, time.Now().Add(c.duration(3*time.Second))
	m.logf("controller: attachment %s of %s to %s is deleted (by force: %t)", a.uid, a.volume.handle(), a.node, a.forced)
	if err := m.api.Remove("volumeattachments", "", a.name); err != nil {
		m.t.Error(err)
	}
}

func (c *attachDetach) finishDetach(key string, a *attachment) {
	m := c.model
	if c.reported(a) {
		c.report(a, false)
	}
	m.stats.events["detachment"]++
	m.logf("controller: attachment %s of %s to %s is gone", a.uid, a.volume.handle(), a.node)
	if err := m.api.Drop("volumeattachments", "", a.name); err != nil {
		m.t.Error(err)
	}
	delete(c.attachments, key)
}

// deleteOne does what a user does who deletes a VolumeAttachment by hand. volumesAttached follows late.
func (c *attachDetach) deleteOne(choose func(int) int) {
	keys := slices.DeleteFunc(sorted(c.attachments), func(key string) bool { return c.attachments[key].phase != attached })
	if len(keys) == 0 {
		return
	}
	a := c.attachments[keys[choose(len(keys))]]
	a.unreportAt = time.Now().Add(verifyAfter)
	c.force(a)
	c.remove(a)
	if c.rand.IntN(2) == 0 { // the attacher takes its time
		a.at = time.Now().Add(time.Duration(c.rand.Int64N(int64(3 * time.Minute))))
	}
}
