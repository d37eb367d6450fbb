package kubeletplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/oneline"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// unexplained is what no record explains.
type unexplained struct {
	lost map[types.UID][]volume.Lost // by pod
	// foreign has paths by the staging directory that they are or that they are in. Others are below no such directory, and each has its own key.
	foreign map[string][]volume.Foreign
}

func newUnexplained(root layout.Root, found *volume.Found) unexplained {
	u := unexplained{lost: map[types.UID][]volume.Lost{}, foreign: map[string][]volume.Foreign{}}
	for _, l := range found.Lost {
		u.lost[l.Key.Pod] = append(u.lost[l.Key.Pod], l)
	}
	for _, f := range found.Foreign {
		key := f.Path
		if rest, ok := strings.CutPrefix(f.Path, root.Drivers()+"/"); ok {
			if parts := strings.SplitN(rest, "/", 3); len(parts) == 3 { // driver, volume, and what is in its directory
				key = strings.TrimSuffix(f.Path, "/"+parts[2])
			}
		}
		u.foreign[key] = append(u.foreign[key], f)
	}
	return u
}

// Unexplained returns what Open has found of which no record says which volume it is of, and Explain has not been called for: targets of pods, and other paths.
// While there is any, volumes that were found staged and without a pod stay staged, as it may be theirs.
func (p *Plugin) Unexplained() (lost []volume.Lost, foreign []volume.Foreign) {
	p.mu.Lock()
	defer p.mu.Unlock()
	lost = slices.SortedFunc(flatten(p.unexplained.lost), func(a, b volume.Lost) int { return cmp.Compare(a.Path, b.Path) })
	foreign = slices.SortedFunc(flatten(p.unexplained.foreign), func(a, b volume.Foreign) int { return cmp.Compare(a.Path, b.Path) })
	return lost, foreign
}

// flatten returns the elements of all lists.
func flatten[K comparable, V any](lists map[K][]V) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, list := range lists {
			for _, v := range list {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// Explain takes over a volume whose record at a target path is lost: the caller knows from other objects which one it is. Mount and Unmount do so for the volumes
// of the pod that they can identify. It reports whether nothing is left that no record explains.
func (p *Plugin) Explain(v volume.Recovered) bool {
	p.volumes.Adopt([]volume.Recovered{v})
	return p.forgetLost(v.Targets, p.root.StagingDir(v.Volume.Driver, v.Volume.Handle))
}

// forgetLost drops targets, and what is in a staging directory, from what no record explains.
func (p *Plugin) forgetLost(targets []volume.Key, staging string) (none bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range targets {
		left := slices.DeleteFunc(p.unexplained.lost[k.Pod], func(l volume.Lost) bool { return l.Key == k })
		if p.unexplained.lost[k.Pod] = left; len(left) == 0 {
			delete(p.unexplained.lost, k.Pod)
		}
	}
	delete(p.unexplained.foreign, staging)
	if len(p.unexplained.lost)+len(p.unexplained.foreign) > 0 {
		return false
	}
	for _, name := range p.orphans {
		p.volumes.Unpin(name)
	}
	return true
}

// lostOf lists the targets of a pod whose records are lost.
func (p *Plugin) lostOf(pod types.UID) []volume.Lost {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.unexplained.lost[pod])
}

// explainWanted takes over the volume of a publication if its record is lost.
func (p *Plugin) explainWanted(w *volume.Publication) {
	if slices.ContainsFunc(p.lostOf(w.Pod.UID), func(l volume.Lost) bool { return l.Key == w.Key() }) {
		p.Explain(p.recovered(w.Key(), w.Volume))
	}
}

// explainPod takes over the volumes of a pod whose records are lost, if they are PersistentVolumes that are known.
func (p *Plugin) explainPod(ctx context.Context, pod types.UID) {
	for _, l := range p.lostOf(pod) {
		pv, err := p.cfg.Objects.Volume(ctx, l.Key.SpecName)
		if err != nil || pv.Spec.CSI == nil {
			klog.FromContext(ctx).Info("The record of a volume is lost, and the volume is not known", logging.KeyPath, l.Path, logging.KeyReason, oneline.Join(l.Err, err).Error())
			continue
		}
		src := pv.Spec.CSI
		v := volume.Volume{Name: layout.Unique(src.Driver, src.VolumeHandle), Driver: src.Driver, Handle: src.VolumeHandle, Attachable: !p.cfg.noAttach()}
		if pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock {
			v.Device = pv.Name
		}
		p.Explain(p.recovered(l.Key, v))
	}
}

// recovered is a volume as Open finds it, with one target.
func (p *Plugin) recovered(k volume.Key, v volume.Volume) volume.Recovered {
	_, err := os.Lstat(p.root.StagingDir(v.Driver, v.Handle))
	return volume.Recovered{Volume: v, Targets: []volume.Key{k}, Staged: !v.Ephemeral && !errors.Is(err, os.ErrNotExist)}
}

// cleaned says what is left of a pod whose directories are removed: a target that is gone needs no record any more.
func (p *Plugin) cleaned(pod types.UID) error {
	var errs []error
	for _, l := range p.lostOf(pod) {
		if _, err := os.Lstat(l.Path); errors.Is(err, os.ErrNotExist) {
			p.forgetLost([]volume.Key{l.Key}, "")
			continue
		}
		errs = append(errs, fmt.Errorf("%s stays: no record says of which volume it is (%w): unmount it", l.Path, l.Err))
	}
	return oneline.Join(errs...)
}
