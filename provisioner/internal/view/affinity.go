package view

import (
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/topology"
)

// affinities shares equal node affinities of volumes: there are many volumes and few segments.
type affinities struct {
	mu sync.Mutex
	by map[string]*corev1.VolumeNodeAffinity
}

// share returns one and the same affinity for all that list the same segments; nil for none and for other forms.
func (p *affinities) share(affinity *corev1.VolumeNodeAffinity) *corev1.VolumeNodeAffinity {
	segments, err := topology.AffinitySegments(affinity)
	if err != nil || len(segments) == 0 {
		return nil
	}
	names := make([]string, 0, len(segments))
	for _, segment := range segments {
		names = append(names, segment.String())
	}
	slices.Sort(names)
	key := strings.Join(names, "\n")
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.by[key]; ok {
		return known
	}
	if p.by == nil {
		p.by = map[string]*corev1.VolumeNodeAffinity{}
	}
	p.by[key] = affinity
	return affinity
}

// withAffinity keeps the node affinity of volumes whose handle slim keeps.
func withAffinity(slim func(*corev1.PersistentVolume) *corev1.PersistentVolume) func(*corev1.PersistentVolume) *corev1.PersistentVolume {
	shared := &affinities{}
	return func(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
		affinity := pv.Spec.NodeAffinity
		kept := slim(pv)
		if kept.Spec.CSI != nil {
			kept.Spec.NodeAffinity = shared.share(affinity)
		}
		return kept
	}
}
