package controller

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
)

// refusedPause is the time without writes of healthStatus after the API server has dropped or refused one: it has not the field (Kubernetes 1.36, or the
// feature gate CSIVolumeHealth is off), or the role does not have the right. Neither changes soon.
const refusedPause = time.Hour

// pause is a time in which nothing is written. The zero value is over.
type pause struct {
	mu    sync.Mutex
	until time.Time
}

func (p *pause) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !time.Now().Before(p.until)
}

func (p *pause) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = time.Now().Add(refusedPause)
}

// withCategory are the problems that the status of a claim can have.
func withCategory(problems []corev1.VolumeHealthCondition) []corev1.VolumeHealthCondition {
	return slices.DeleteFunc(slices.Clone(problems), func(p corev1.VolumeHealthCondition) bool { return p.Status == "" })
}

// sameProblems reports whether two lists have the same categories and reasons, in any order. Messages do not count: they may differ each time.
func sameProblems(a, b []corev1.VolumeHealthCondition) bool {
	return identity(slices.SortedFunc(slices.Values(a), compareIdentity)) == identity(slices.SortedFunc(slices.Values(b), compareIdentity))
}

// conditionsOf are the problems in the status of a claim.
func conditionsOf(claim *corev1.PersistentVolumeClaim) []corev1.VolumeHealthCondition {
	if claim.Status.HealthStatus == nil {
		return nil
	}
	return claim.Status.HealthStatus.HealthConditions
}

// healthPatch is a merge patch that replaces the problems in the status of a claim.
func healthPatch(claim *corev1.PersistentVolumeClaim, problems []corev1.VolumeHealthCondition, now time.Time) ([]byte, error) {
	status := map[string]any{"healthConditions": nil, "lastTransitionTime": metav1.NewTime(now)}
	if len(problems) > 0 {
		status["healthConditions"] = problems
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID},
		"status":   map[string]any{"healthStatus": status},
	})
}

// writeStatus writes the problems of a volume to the status of its claim, if they have changed. What fails is repeated after the next answer about the volume.
func (c *Controller) writeStatus(ctx context.Context, claim *corev1.PersistentVolumeClaim, h health) {
	problems := withCategory(h.problems)
	if sameProblems(conditionsOf(claim), problems) || !c.refused.over() {
		return
	}
	logger := klog.FromContext(ctx).WithValues(logging.KeyClaim, klog.KObj(claim))
	patch, err := healthPatch(claim, problems, time.Now())
	if err != nil {
		logger.Error(err, "Encoding the health of a claim")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.KubeTimeout)
	defer cancel()
	written, err := c.cfg.Kube.PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case err == nil && sameProblems(conditionsOf(written), problems):
		c.claims.Remember(written)
	case err == nil, apierrors.IsForbidden(err):
		c.refused.begin()
		c.cfg.Metrics.dropped.Inc()
		reason := "the API server dropped the field, which it has since Kubernetes 1.37 with the feature gate CSIVolumeHealth"
		if err != nil {
			reason = err.Error()
		}
		logger.Info("Health is not written to the status of claims, trying again later", logging.KeyReason, reason, logging.KeyDelay, refusedPause)
	case kube.IsStale(err), kube.IsTransient(err), apierrors.IsNotFound(err), ctx.Err() != nil:
		logger.V(2).Info("Writing the health of a claim failed, trying again", logging.KeyReason, err.Error())
	default:
		logger.Error(err, "Writing the health of a claim failed, trying again")
	}
}
