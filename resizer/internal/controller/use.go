package controller

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// Names of the informers' indexes.
const (
	indexClass = "class" // claims by VolumeAttributesClass
	indexClaim = "claim" // pods by claim
	indexPV    = "pv"    // attachments by volume
)

// errInUse is a volume that the driver does not expand while it is in use.
var errInUse = errors.New("the driver expands it only while it is not in use; the expansion continues when it is not")

// checkUnused returns errInUse if a pod or an attachment uses the volume. What cannot be watched, as the role does not allow it, is not
// asked for: then the driver's answer decides.
func (c *Controller) checkUnused(ctx context.Context, v volume) error {
	ctx, cancel := c.kubeDeadline(ctx)
	defer cancel()
	attachments, err := c.attachments.get(ctx)
	switch {
	case err != nil && !kube.IsUnwatchable(err):
		return err
	case err == nil:
		for _, va := range attachments.ByIndex(indexPV, v.pv.Name) {
			return fmt.Errorf("volume is attached to node %q: %w", va.Spec.NodeName, errInUse)
		}
	}
	pods, err := c.pods.get(ctx)
	switch {
	case err != nil && !kube.IsUnwatchable(err):
		return err
	case err == nil:
		for _, pod := range pods.ByIndex(indexClaim, keyOf(v.claim)) {
			return fmt.Errorf("volume is used by pod %q: %w", pod.Name, errInUse)
		}
	}
	return nil
}

// newPods makes the informer of the pods that may use a volume: a pod that has ended does not.
func (c *Controller) newPods() *kube.Informer[*corev1.Pod] {
	pods := kube.NewInformer(c.cfg.Kube.Pods(""), kube.InformerOptions[*corev1.Pod]{
		Name: "Pod", AskAgain: kube.DefaultAskAgain, FieldSelector: "status.phase!=Succeeded,status.phase!=Failed", Transform: slimPod,
		Index: map[string]func(*corev1.Pod) []string{indexClaim: claimsOf},
	})
	pods.OnChange(func(before, after *corev1.Pod) {
		if before != nil && after == nil {
			for _, key := range claimsOf(before) {
				c.wakeUnused(key)
			}
		}
	})
	return pods
}

// claimsOf returns the keys of the claims that a pod uses.
func claimsOf(pod *corev1.Pod) []string {
	keys := make([]string, 0, len(pod.Spec.Volumes))
	for _, v := range pod.Spec.Volumes {
		claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace}}
		switch {
		case v.PersistentVolumeClaim != nil:
			claim.Name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			claim.Name = pod.Name + "-" + v.Name
		default:
			continue
		}
		keys = append(keys, keyOf(&claim))
	}
	return keys
}

// newAttachments makes the informer of the driver's attachments.
func (c *Controller) newAttachments() *kube.Informer[*storagev1.VolumeAttachment] {
	volumeOf := func(va *storagev1.VolumeAttachment) []string {
		if name := va.Spec.Source.PersistentVolumeName; name != nil {
			return []string{*name}
		}
		return nil
	}
	attachments := kube.NewInformer(c.cfg.Kube.VolumeAttachments(), kube.InformerOptions[*storagev1.VolumeAttachment]{
		Name: "VolumeAttachment", AskAgain: kube.DefaultAskAgain, Transform: slimVA(c.cfg.Driver),
		Index: map[string]func(*storagev1.VolumeAttachment) []string{indexPV: volumeOf},
	})
	attachments.OnChange(func(before, after *storagev1.VolumeAttachment) {
		if before == nil || after != nil {
			return
		}
		for _, name := range volumeOf(before) {
			if pv, ok := c.pvs.Get("", name); ok {
				c.wakeUnused(claimKey(pv))
			}
		}
	})
	return attachments
}

// wakeUnused continues an expansion that waits until the volume is not used.
func (c *Controller) wakeUnused(key string) {
	if c.memory.retryUnused(key) {
		c.queue.Add(key)
	}
}
