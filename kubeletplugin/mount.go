package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// transientRetry is how soon a pod is resolved again after a problem that goes away by itself.
const transientRetry = 100 * time.Millisecond

// Mount is a volume of a pod that is ready to be used.
type Mount struct {
	// Volume is the name of the pod's volume.
	Volume string
	// Path is where it is mounted, or the device of a raw block volume, by a link to it: an absolute path.
	Path string
	// Block says that it is a raw block volume.
	Block bool
	// ReadOnly says that it was published read-only.
	ReadOnly bool
	// Driver and Handle identify it at its driver.
	Driver, Handle string
}

// Mount publishes all CSI volumes that the containers of a pod mount, and returns them in the order of the pod's volumes; other volumes are left out. The pod
// must have a UID. What drivers refuse is tried again until ctx is done; the error then says for each volume what it waits for. A problem with the objects,
// such as a claim that is not there, is returned at once. In both cases what was published stays until Unmount. A repeated call returns the same.
func (p *Plugin) Mount(ctx context.Context, pod *corev1.Pod) ([]Mount, error) {
	if pod.UID == "" {
		return nil, fmt.Errorf("mount volumes of pod %q: it has no UID", klog.KObj(pod))
	}
	wanted, err := p.want(ctx, pod)
	if err != nil {
		return nil, fmt.Errorf("mount volumes of pod %q: %w", klog.KObj(pod), err)
	}
	for {
		changed := p.next()
		if err = p.waiting(wanted); err == nil {
			return p.mounts(pod, wanted), nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("mount volumes of pod %q: %w", klog.KObj(pod), errors.Join(p.waiting(wanted), ctx.Err()))
		case <-changed:
		}
	}
}

// want asks for all volumes of a pod. It resolves the pod again only after problems that go away by themselves; any other is returned.
func (p *Plugin) want(ctx context.Context, pod *corev1.Pod) ([]volume.Publication, error) {
	for {
		wanted, problems := p.resolver.Pod(ctx, pod)
		for _, w := range wanted {
			p.volumes.Want(w)
		}
		if !resolve.Transient(problems) {
			return wanted, resolve.Join(problems)
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(resolve.Join(problems), ctx.Err())
		case <-time.After(transientRetry):
		}
	}
}

// waiting says which volumes are not published, and why; nil if all are.
func (p *Plugin) waiting(wanted []volume.Publication) error {
	var errs []error
	for i := range wanted {
		w := &wanted[i]
		st, ok := p.volumes.Status(w.Volume.Name, w.Key())
		switch {
		case ok && st.Published:
		case st.Err != nil:
			errs = append(errs, fmt.Errorf("volume %s: %w", strings.Join(w.PodVolumes, ", "), st.Err))
		default:
			errs = append(errs, fmt.Errorf("volume %s: not published yet", strings.Join(w.PodVolumes, ", ")))
		}
	}
	return errors.Join(errs...)
}

// mounts describes the published volumes, in the order of the pod's volumes.
func (p *Plugin) mounts(pod *corev1.Pod, wanted []volume.Publication) []Mount {
	var all []Mount
	for i := range pod.Spec.Volumes {
		name := pod.Spec.Volumes[i].Name
		for j := range wanted {
			if w := &wanted[j]; slices.Contains(w.PodVolumes, name) {
				m := Mount{Volume: name, Path: p.root.Target(pod.UID, w.SpecName), ReadOnly: w.ReadOnly, Driver: w.Volume.Driver, Handle: w.Volume.Handle}
				if m.Block = w.Key().Block; m.Block {
					m.Path = p.root.DeviceLink(pod.UID, w.SpecName)
				}
				all = append(all, m)
			}
		}
	}
	return all
}

// Unmount unpublishes all volumes of a pod, removes its directories, and unstages the volumes that no other pod uses. The pod may be of an earlier process. It
// returns when nothing is left, or when ctx is done, with what keeps it: the work goes on all the same. A pod that has nothing is no error.
func (p *Plugin) Unmount(ctx context.Context, pod types.UID) error {
	names := p.volumes.Of(pod)
	p.volumes.Drop(volume.Pod{UID: pod})
	for {
		changed := p.next()
		if !p.volumes.Busy(pod) && !slices.ContainsFunc(names, p.volumes.Leaving) {
			return p.CleanPod(pod)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("unmount volumes of pod %q: %w", pod, errors.Join(p.staying(names), ctx.Err()))
		case <-changed:
		}
	}
}

// staying says what keeps volumes from being unpublished and unstaged.
func (p *Plugin) staying(names []string) error {
	var errs []error
	for _, d := range p.volumes.Dump() {
		if !slices.Contains(names, d.Volume) {
			continue
		}
		if d.Error != "" {
			errs = append(errs, fmt.Errorf("volume %s: %s", d.Volume, d.Error))
		}
		for _, u := range d.Uses {
			if u.Error != "" {
				errs = append(errs, fmt.Errorf("volume %s of pod %q: %s", u.SpecName, u.Pod, u.Error))
			}
		}
	}
	return errors.Join(errs...)
}

// CleanPod removes the directories of a pod none of whose volumes is published. What is mounted there all the same is an error.
func (p *Plugin) CleanPod(pod types.UID) error { return p.disk.CleanPod(pod) }
