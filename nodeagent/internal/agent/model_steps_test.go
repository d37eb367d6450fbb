package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

const (
	// modelPods is how many names there are for pods: a name is used again and again.
	modelPods = 6
	// settleTime is how long the cluster may take, in model time, to do what it should when all works again.
	settleTime = time.Hour
)

// action is something that happens.
type action struct {
	name   string
	weight int
	do     func()
}

func (m *model) actions() []action {
	return []action{
		{"create a pod", 22, m.createPod},
		{"delete a pod", 16, m.deletePod},
		{"delete a pod by force", 4, m.forceDeletePod},
		{"replace a pod unseen", 5, m.replacePod},
		{"break calls", 12, m.breakCall},
		{"break the API", 9, m.breakAPI},
		{"break all watches", 3, m.breakWatches},
		{"stop or start a driver", 5, m.flipDriver},
		{"arm a kill", 22, m.armKill},
		{"kill an agent", 4, func() { m.anyNode().kill("at some moment") }},
		{"reboot a node", 2, func() { m.anyNode().reboot() }},
		{"lose a node", 2, m.loseNode},
		{"expand a claim", 8, m.expandClaim},
		{"delete an attachment", 2, func() { m.controller.deleteOne(m.rand.IntN) }},
		{"wait for minutes", 4, func() { m.pause(time.Duration(m.rand.IntN(180)) * time.Second) }},
		{"heal", 6, m.heal},
	}
}

// step does something at random, and lets time pass.
func (m *model) step() {
	all := m.actions()
	total := 0
	for _, a := range all {
		total += a.weight
	}
	n := m.rand.IntN(total)
	for _, a := range all {
		if n -= a.weight; n < 0 {
			m.logf("STEP %d: %s", m.stats.steps-m.firstStep, a.name)
			m.stats.events["step: "+a.name]++
			a.do()
			break
		}
	}
	longest := []int{1, 500, 5000, 40000}[m.rand.IntN(4)]
	m.pause(time.Duration(m.rand.IntN(longest)) * time.Millisecond)
	synctest.Wait()
	m.check()
}

// pause lets time pass. Dead agents are started again, most of them soon.
func (m *model) pause(d time.Duration) {
	for end := time.Now().Add(d); !m.failed(); {
		m.controller.tick()
		for _, n := range m.nodes {
			m.care(n)
		}
		left := time.Until(end)
		if left <= 0 {
			return
		}
		time.Sleep(min(left, controllerPeriod))
	}
}

// care starts a new agent where one has died.
func (m *model) care(n *modelNode) {
	n.reap()
	if n.process != nil {
		return
	}
	if n.startAt.IsZero() {
		n.startAt = time.Now().Add(time.Duration(m.rand.IntN([]int{1, 3, 90}[m.rand.IntN(3)])) * time.Second)
	}
	if !time.Now().Before(n.startAt) {
		n.startAt = time.Time{}
		n.start()
	}
}

func (m *model) anyNode() *modelNode { return m.nodes[m.rand.IntN(len(m.nodes))] }

// createPod makes a pod of a name that is free, with volumes at random.
func (m *model) createPod() {
	pods := objects[*corev1.Pod](m, "pods")
	name := fmt.Sprintf("pod-%d", m.rand.IntN(modelPods))
	if pods[name] != nil {
		return
	}
	var claims []string
	for i := range modelVolumes {
		if m.rand.IntN(4) == 0 {
			claims = append(claims, modelVolumes[i].claim)
		}
	}
	m.addPod(name, m.anyNode().name, claims)
}

func (m *model) addPod(name, node string, claims []string) {
	m.serial++
	pod := podWith(name, corev1.VolumeSource{})
	pod.UID, pod.Spec.NodeName, pod.Spec.Volumes = types.UID(fmt.Sprintf("uid-%s-%d", name, m.serial)), node, nil
	container := &pod.Spec.Containers[0]
	container.VolumeMounts = nil
	for _, claim := range claims {
		source := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: m.rand.IntN(5) == 0}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: source}})
		if modelVolumeOf(claim).isBlock {
			container.VolumeDevices = append(container.VolumeDevices, corev1.VolumeDevice{Name: claim, DevicePath: "/dev/" + claim})
			continue
		}
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: claim, MountPath: "/" + claim})
	}
	for _, driver := range []string{fullDriver, plainDriver} {
		if m.rand.IntN(4) == 0 {
			volume := "inline-" + driver[:5]
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}})
			container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: "/" + volume})
		}
	}
	if m.rand.IntN(2) == 0 || strings.Contains(string(m.focus), "group") {
		withGroup(pod)
	}
	m.logf("pod %s (%s) on %s with %q is created", name, pod.UID, node, claims)
	m.apply(pod)
}

// anyPod returns a pod, nil if there is none.
func (m *model) anyPod() *corev1.Pod {
	pods := objects[*corev1.Pod](m, "pods")
	if len(pods) == 0 {
		return nil
	}
	return pods[sorted(pods)[m.rand.IntN(len(pods))]]
}

func (m *model) deletePod() { m.delete(m.anyPod()) }

func (m *model) delete(pod *corev1.Pod) {
	if pod == nil {
		return
	}
	m.logf("pod %s (%s) is to be deleted", pod.Name, pod.UID)
	if err := m.api.Remove("pods", pod.Namespace, pod.Name); err != nil {
		m.t.Error(err)
	}
}

func (m *model) forceDeletePod() { m.forceDelete(m.anyPod()) }

func (m *model) forceDelete(pod *corev1.Pod) {
	if pod == nil {
		return
	}
	m.logf("pod %s (%s) is deleted by force", pod.Name, pod.UID)
	if err := m.api.Drop("pods", pod.Namespace, pod.Name); err != nil {
		m.t.Error(err)
	}
}

// replacePod deletes a pod, and makes another one of its name, while the agents do not see it. Each agent finds that out in a minute, or earlier.
func (m *model) replacePod() {
	pod := m.anyPod()
	if pod == nil {
		return
	}
	if m.rand.IntN(2) == 0 {
		m.delete(pod)
		m.pause(time.Duration(m.rand.IntN(1500)) * time.Millisecond)
	}
	for _, verb := range []string{"watch", "list"} {
		m.api.Inject(kubetest.Fault{Verb: verb, Resource: "pods", Err: errLost, Times: 12})
	}
	m.api.BreakWatches()
	if now := objects[*corev1.Pod](m, "pods")[pod.Name]; now != nil && now.UID == pod.UID {
		m.forceDelete(pod)
	}
	m.createNamed(pod.Name, pod.Spec.NodeName)
}

func (m *model) createNamed(name, node string) {
	if objects[*corev1.Pod](m, "pods")[name] == nil {
		m.addPod(name, node, []string{modelVolumes[m.rand.IntN(len(modelVolumes))].claim})
	}
}

// refusals have no effect, by their meaning.
var refusals = []codes.Code{codes.InvalidArgument, codes.FailedPrecondition, codes.ResourceExhausted}

// breakCall lets calls fail, with or without an effect, or take long, or ends the driver's process in one.
func (m *model) breakCall() {
	methods := []string{
		"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume",
		"NodeExpandVolume", "NodeGetCapabilities", "NodeGetInfo",
	}
	f := callFault{node: m.anyNode().name, method: methods[m.rand.IntN(len(methods))], times: 1 + m.rand.IntN(4), after: m.rand.IntN(2) == 0}
	switch m.rand.IntN(6) {
	case 0:
		f.delay = time.Duration(m.rand.IntN(240)) * time.Second
	case 1:
		f.crash, f.times = true, 1
	case 2:
		f.code, f.after = refusals[m.rand.IntN(len(refusals))], false
	default:
		all := []codes.Code{codes.Internal, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.Unknown}
		f.code = all[m.rand.IntN(len(all))]
		f.delay = time.Duration(m.rand.IntN(3)) * time.Second
	}
	m.logf("calls: %+v", f)
	m.anyDriver().inject(f)
}

func (m *model) anyDriver() *modelDriver {
	if m.rand.IntN(5) == 0 {
		return m.drivers[plainDriver]
	}
	return m.drivers[fullDriver]
}

var errLost = errors.New("connection lost")

// breakAPI lets requests to the API server fail, some of them after they have taken effect.
func (m *model) breakAPI() {
	resources := []string{"nodes", "nodes", "nodes/status", "pods", "pods/status", "volumeattachments", "persistentvolumeclaims", "persistentvolumes", "csinodes", "leases", "secrets", ""}
	verbs := []string{"get", "patch", "patch", "update", "create", "delete", "list", "watch", ""}
	group := schema.GroupResource{Resource: "things"}
	errs := []error{
		errLost, apierrors.NewConflict(group, "it", errLost), apierrors.NewTooManyRequests("injected", 1), apierrors.NewInternalError(errLost),
		apierrors.NewTimeoutError("injected", 1), apierrors.NewServiceUnavailable("injected"),
	}
	f := kubetest.Fault{
		Verb: verbs[m.rand.IntN(len(verbs))], Resource: resources[m.rand.IntN(len(resources))], Err: errs[m.rand.IntN(len(errs))],
		After: m.rand.IntN(2) == 0, Times: 1 + m.rand.IntN(8),
	}
	if m.rand.IntN(4) == 0 {
		f.Delay = time.Duration(m.rand.IntN(15)) * time.Second
	}
	m.logf("API: %d times %s %s: %v (after the effect: %t, delay %v)", f.Times, f.Verb, f.Resource, f.Err, f.After, f.Delay)
	m.api.Inject(f)
}

func (m *model) breakWatches() {
	if m.rand.IntN(2) == 0 {
		m.api.Compact()
	}
	m.api.BreakWatches()
}

func (m *model) flipDriver() {
	d, node := m.anyDriver(), m.anyNode().name
	up, _ := d.state(node)
	d.set(node, !up, m.rand.IntN(2) == 0)
}

func (m *model) heal() {
	m.api.Heal()
	for _, d := range m.drivers {
		d.heal()
		for _, n := range m.nodes {
			if up, _ := d.state(n.name); !up {
				d.set(n.name, true, false)
			}
		}
	}
}

// armKill has an agent killed at a fault point, and does something that leads there.
func (m *model) armKill() {
	n, point := m.anyNode(), m.focus
	if m.rand.IntN(3) == 0 {
		point = killPoints()[m.rand.IntN(len(killPoints()))]
	}
	if n.process == nil {
		return
	}
	m.logf("%s: the next agent %s is killed", n.name, point)
	m.mu.Lock()
	n.process.armed = point
	m.mu.Unlock()
	switch {
	case strings.Contains(string(point), "expand"):
		m.expandClaim()
	case comesUp(point):
		m.createPod()
	default:
		m.deletePod()
	}
}

// loseNode has a node lost for longer than kube-controller-manager waits. Its pods are deleted by force, and others may want their volumes.
func (m *model) loseNode() {
	n := m.anyNode()
	n.kill("for long")
	n.startAt = time.Now().Add(time.Duration(m.rand.IntN(12)) * time.Minute)
	m.pause(time.Minute)
	lost := []*corev1.Pod{}
	for _, pod := range objects[*corev1.Pod](m, "pods") {
		if pod.Spec.NodeName == n.name {
			lost = append(lost, pod)
		}
	}
	slices.SortFunc(lost, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for _, pod := range lost {
		m.forceDelete(pod)
	}
	if m.rand.IntN(2) == 0 {
		m.controller.outOfService[n.name] = true
		m.pause(5 * time.Second)
		delete(m.controller.outOfService, n.name)
	} else if m.rand.IntN(3) > 0 {
		m.pause(forceAfter)
	}
	for _, pod := range lost {
		if m.rand.IntN(2) == 0 && objects[*corev1.Pod](m, "pods")[pod.Name] == nil {
			var claims []string
			for _, v := range volumesOf(pod) {
				claims = append(claims, v.claim)
			}
			m.addPod(pod.Name, m.anyNode().name, claims)
		}
	}
}

// expandClaim does what a user and a resizer do before it is the node's turn, or what another node has done besides.
func (m *model) expandClaim() {
	v := &modelVolumes[m.rand.IntN(len(modelVolumes)-1)] // not of the plain driver
	if pod := m.anyPod(); pod != nil {
		for _, used := range volumesOf(pod) {
			if used.attaches() && m.rand.IntN(2) == 0 {
				v = used
			}
		}
	}
	s := objects[*corev1.PersistentVolumeClaim](m, "persistentvolumeclaims")[v.claim].Status
	if s.AllocatedResourceStatuses != nil {
		m.handOver(v) // one after the other
		return
	}
	size := mebi(s.Capacity.Storage().Value()>>20 + 1)
	m.logf("claim %s is to be expanded to %s", v.claim, size.Storage())
	m.merge("persistentvolumes", "", v.pv(), fmt.Sprintf(`{"spec":{"capacity":{"storage":%q}}}`, size.Storage()))
	m.merge("persistentvolumeclaims", "ns", v.claim, fmt.Sprintf(`{"status":{"allocatedResources":{"storage":%q}}}`, size.Storage()))
	if !v.onOneNode() && m.rand.IntN(3) == 0 {
		m.merge("persistentvolumeclaims", "ns", v.claim, fmt.Sprintf(`{"status":{"capacity":{"storage":%q}}}`, size.Storage()))
		return
	}
	m.handOver(v)
}

// handOver leaves an expansion that is not done to the node.
func (m *model) handOver(v *modelVolume) {
	s := objects[*corev1.PersistentVolumeClaim](m, "persistentvolumeclaims")[v.claim].Status
	if s.AllocatedResources.Storage().Cmp(*s.Capacity.Storage()) > 0 {
		m.merge("persistentvolumeclaims", "ns", v.claim, `{"status":{"allocatedResourceStatuses":{"storage":"NodeResizePending"}}}`)
	}
}

// settle ends all faults, and expects pods to run, and to leave nothing.
func (m *model) settle() {
	if m.failed() {
		return
	}
	m.logf("STEP: all faults end")
	m.heal()
	m.controller.calm = true
	for _, n := range m.nodes {
		n.kill("to start again")
		n.startAt = time.Now()
	}
	for i := range modelVolumes {
		m.handOver(&modelVolumes[i]) // as a resizer does again with what was infeasible
	}
	m.deleteRivals()
	m.await("all pods to run and all their claims to be expanded", m.unserved)
	for _, pod := range objects[*corev1.Pod](m, "pods") {
		if pod.DeletionTimestamp == nil && !m.failed() {
			m.delete(pod)
		}
	}
	m.await("nothing to be left", m.leftovers)
}

// deleteRivals deletes pods until all others can have their volumes.
func (m *model) deleteRivals() {
	owners := map[string]string{}
	pods := objects[*corev1.Pod](m, "pods")
	for _, name := range sorted(pods) {
		pod := pods[name]
		claims := map[string]string{}
		blocked := false
		for _, v := range volumesOf(pod) {
			claims[v.claim] = pod.Spec.NodeName
			if v.mode == corev1.ReadWriteOncePod {
				claims[v.claim] = pod.Name
			}
			blocked = blocked || v.onOneNode() && owners[v.claim] != "" && owners[v.claim] != claims[v.claim] || m.isStale(pod.Spec.NodeName, v)
		}
		switch {
		case pod.DeletionTimestamp != nil:
		case blocked:
			m.delete(pod)
		default:
			maps.Copy(owners, claims)
		}
	}
}

// isStale reports whether a volume is staged for an attachment that has ended: pods that run must be deleted (event StaleVolumeMount). The same holds after a
// reboot, although the mounts are gone then: the agent knows only its records, as a driver may have mounts that are none of the kernel's.
func (m *model) isStale(node string, v *modelVolume) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lives[lifeKey{node, v.handle()}]
	return l != nil && (l.staged != no || l.rebooted) && m.forced[l.stagedFor]
}

// volumesOf lists the volumes of the claims of a pod.
func volumesOf(pod *corev1.Pod) []*modelVolume {
	var all []*modelVolume
	for i := range pod.Spec.Volumes {
		if c := pod.Spec.Volumes[i].PersistentVolumeClaim; c != nil {
			all = append(all, modelVolumeOf(c.ClaimName))
		}
	}
	return all
}

// unserved lists the pods that do not have what they should have.
func (m *model) unserved() []string {
	var all []string
	claims := objects[*corev1.PersistentVolumeClaim](m, "persistentvolumeclaims")
	for name, pod := range objects[*corev1.Pod](m, "pods") {
		if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
			all = append(all, fmt.Sprintf("pod %s (%s) is %s, deleted at %v", name, pod.UID, pod.Status.Phase, pod.DeletionTimestamp))
		}
		for i := range pod.Spec.Volumes {
			c := pod.Spec.Volumes[i].PersistentVolumeClaim
			if c == nil || c.ReadOnly || !modelVolumeOf(c.ClaimName).attaches() {
				continue
			}
			if s := claims[c.ClaimName].Status; s.AllocatedResources.Storage().Cmp(*s.Capacity.Storage()) > 0 || len(s.AllocatedResourceStatuses) > 0 {
				all = append(all, fmt.Sprintf("claim %s of pod %s is not expanded: %+v", c.ClaimName, name, s))
			}
		}
	}
	return all
}

// await waits until nothing is missing.
func (m *model) await(what string, missing func() []string) {
	for deadline := time.Now().Add(settleTime); !m.failed(); {
		m.pause(5 * time.Second)
		synctest.Wait()
		m.check()
		left := missing()
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			for _, n := range m.nodes {
				if n.process != nil {
					m.logf("%s: %+v", n.name, n.process.agent.State())
				}
			}
			m.violation("end", "waited for %s: %s", what, strings.Join(left, "; "))
		}
	}
}
