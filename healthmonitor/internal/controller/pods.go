package controller

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// Indexes of pods.
const (
	indexClaim = "claim"
	indexNode  = "node"
)

// pods is the informer of pods. It starts when it is needed first: pods of the whole cluster are not read before a volume is abnormal or a node is down.
type pods struct {
	make func() *kube.Informer[*corev1.Pod]
	// run runs a function in the background until the controller ends.
	run func(func(context.Context) error)
	// patience is the longest time that the first list is waited for.
	patience time.Duration

	mu       sync.Mutex
	informer *kube.Informer[*corev1.Pod]
}

// get returns the informer with a complete copy; nil if pods may not be watched, cannot be listed in time, or ctx ends first.
func (p *pods) get(ctx context.Context) *kube.Informer[*corev1.Pod] {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	informer := p.started()
	if informer.WaitTried(ctx) != nil || informer.Unwatched() != nil {
		return nil
	}
	return informer
}

func (p *pods) started() *kube.Informer[*corev1.Pod] {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.informer == nil {
		p.informer = p.make()
		p.run(p.informer.Run)
	}
	return p.informer
}

// newPods makes the informer.
func (c *Controller) newPods() *kube.Informer[*corev1.Pod] {
	return kube.NewInformer(c.cfg.Kube.Pods(""), kube.InformerOptions[*corev1.Pod]{
		Name: "Pod", Transform: slimPod, AskAgain: kube.DefaultAskAgain,
		Index: map[string]func(*corev1.Pod) []string{
			indexClaim: claimsOf,
			indexNode: func(pod *corev1.Pod) []string {
				if pod.Spec.NodeName == "" || len(pod.Spec.Volumes) == 0 {
					return nil
				}
				return []string{pod.Spec.NodeName}
			},
		},
	})
}

// podsOf returns the pods that use a claim.
func (c *Controller) podsOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) []*corev1.Pod {
	informer := c.pods.get(ctx)
	if informer == nil {
		return nil
	}
	return informer.ByIndex(indexClaim, keyOf(claim))
}
