package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/outcome"
)

// holdBack is the least time between two events about one abnormal volume: messages of a VolumeCondition may differ each time.
const holdBack = 10 * time.Minute

// report is what the newest event says of a volume. The zero value is a volume without problems.
type report struct {
	abnormal bool
	// identity is that of the problems. It is empty after a restart, when only the text of the event is known.
	identity string
	text     string
	at       time.Time
}

// next returns the report after an answer of the driver, and whether it needs an event.
func (r report) next(h health, now time.Time) (report, bool) {
	if len(h.problems) == 0 {
		return report{}, r.abnormal
	}
	found := report{abnormal: true, identity: identity(h.problems), text: kube.Cut(describe(h.problems), maxMessage), at: now}
	switch {
	case !r.abnormal:
		return found, true
	case r.identity == found.identity, r.text == found.text:
		found.text, found.at = cmp.Or(r.text, found.text), r.at
		return found, false
	case now.Sub(r.at) < holdBack:
		return r, false
	}
	return found, true
}

// record is the state of a volume that has problems, or whose last call failed. Other volumes have none.
type record struct {
	key      string // of the claim
	volume   string
	report   report
	problems []corev1.VolumeHealthCondition
	since    time.Time
	// pods are those that have an event about the report.
	pods map[types.UID]bool
	// failures counts the failed calls in a row, err is the error of the last.
	failures int
	err      string
}

// records has the records by the UID of the claim.
type records struct {
	mu   sync.Mutex
	all  map[types.UID]*record
	pods map[types.UID]string // the texts of events on pods, as found at the start
}

// of returns the record of a claim, a new one if there is none: its report is then what the status of the claim says.
func (r *records) of(claim *corev1.PersistentVolumeClaim) *record {
	if found, ok := r.all[claim.UID]; ok {
		return found
	}
	made := &record{key: keyOf(claim), volume: claim.Spec.VolumeName}
	if status := claim.Status.HealthStatus; status != nil && len(status.HealthConditions) > 0 {
		had := slices.SortedFunc(slices.Values(status.HealthConditions), compareIdentity)
		made.report = report{abnormal: true, identity: identity(had), at: status.LastTransitionTime.Time}
	}
	r.all[claim.UID] = made
	return made
}

// answered notes an answer of the driver. It returns the problems before, the report, and whether that needs an event.
func (r *records) answered(claim *corev1.PersistentVolumeClaim, h health, now time.Time) (before []corev1.VolumeHealthCondition, after report, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.of(claim)
	before = rec.problems
	rec.failures, rec.err, rec.problems = 0, "", h.problems
	rec.report, changed = rec.report.next(h, now)
	if changed {
		rec.since, rec.pods = now, nil
	}
	if len(h.problems) == 0 {
		delete(r.all, claim.UID)
	}
	return before, rec.report, changed
}

// failed notes a call that failed, which says nothing about the volume.
func (r *records) failed(claim *corev1.PersistentVolumeClaim, err error) (failures int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.of(claim)
	rec.failures++
	rec.err = outcome.Message(err)
	return rec.failures
}

// isAbnormal reports whether the volume of a claim has problems, as far as was reported.
func (r *records) isAbnormal(claim *corev1.PersistentVolumeClaim) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.all[claim.UID]
	status := claim.Status.HealthStatus
	return ok && rec.report.abnormal || status != nil && len(status.HealthConditions) > 0
}

// withoutEvent returns those of the pods that have no event about the report of a claim, and notes that they get one.
func (r *records) withoutEvent(claim types.UID, pods []*corev1.Pod, text string) (missing []*corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.all[claim]
	if !ok {
		return nil
	}
	for _, pod := range pods {
		if rec.pods[pod.UID] {
			continue
		}
		if rec.pods == nil {
			rec.pods = map[types.UID]bool{}
		}
		rec.pods[pod.UID] = true
		if r.pods[pod.UID] != text {
			missing = append(missing, pod)
		}
	}
	return missing
}

// forget drops the record of a claim whose volume is not monitored any more, and returns its problems.
func (r *records) forget(claim types.UID) []corev1.VolumeHealthCondition {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, ok := r.all[claim]
	if !ok {
		return nil
	}
	delete(r.all, claim)
	return rec.problems
}

// keyOf returns the namespace and name of an object.
func keyOf(obj kube.Object) string { return obj.GetNamespace() + "/" + obj.GetName() }

// claimOf returns the claim that a volume is bound to.
func (c *Controller) claimOf(pv *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, bool) {
	if !isBound(pv) {
		return nil, false
	}
	claim, ok := c.claims.Get(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
	return claim, ok && claim.UID == pv.Spec.ClaimRef.UID
}

// answered reports what the driver has answered about a volume.
func (c *Controller) answered(ctx context.Context, pv *corev1.PersistentVolume, h health) {
	claim, ok := c.claimOf(pv)
	if !ok {
		return // the watch brings the one or the deletion of the other
	}
	for _, category := range h.unknown {
		c.cfg.Metrics.unknown.WithLabelValues(fmt.Sprint(int32(category))).Inc()
		c.cfg.Events.Warning(claim, ReasonUnknown, fmt.Sprintf(
			"Driver %s reports a problem of category %d, which Kubernetes does not have: see the documentation of the driver", c.cfg.Driver, category))
	}
	before, after, changed := c.records.answered(claim, h, time.Now())
	c.cfg.Metrics.setStatus(claim.Namespace, claim.Name, categoriesOf(before), categoriesOf(h.problems))
	if changed {
		klog.FromContext(ctx).Info("Health of a volume has changed", logging.KeyVolume, pv.Name, logging.KeyClaim, klog.KObj(claim), logging.KeyState, describe(h.problems))
	}
	c.recordEvents(ctx, claim, after, changed)
	c.writeStatus(ctx, claim, h)
}

// recordEvents records the events of a report on the claim if it has changed, and on pods that have none about it yet.
func (c *Controller) recordEvents(ctx context.Context, claim *corev1.PersistentVolumeClaim, r report, changed bool) {
	switch {
	case r.abnormal:
		if changed {
			c.cfg.Events.Warning(claim, ReasonAbnormal, r.text)
		}
		text := podText(claim, r.text)
		for _, pod := range c.records.withoutEvent(claim.UID, c.podsOf(ctx, claim), text) {
			c.cfg.Events.Warning(pod, ReasonAbnormal, text)
		}
	case changed:
		const text = "The driver does not report a problem of the volume any more"
		c.cfg.Events.Normal(claim, ReasonNormal, text)
		for _, pod := range c.podsOf(ctx, claim) {
			c.cfg.Events.Normal(pod, ReasonNormal, podText(claim, text))
		}
	}
}

// podText is the text of an event on a pod.
func podText(claim *corev1.PersistentVolumeClaim, text string) string {
	return kube.Cut("Volume of claim "+claim.Name+": "+text, maxMessage)
}

// failed notes that the driver has not answered for a volume. Reports stay as they are: a missing answer is no recovery.
func (c *Controller) failed(ctx context.Context, pv *corev1.PersistentVolume, err error) {
	claim, ok := c.claimOf(pv)
	if !ok {
		return
	}
	failures := c.records.failed(claim, err)
	klog.FromContext(ctx).V(2).Info("Reading the health of a volume failed", logging.KeyVolume, pv.Name, logging.KeyClaim, klog.KObj(claim),
		logging.KeyCount, failures, logging.KeyReason, outcome.Message(err))
}
