package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/kubeletplugin/internal/oneline"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

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
// must have a UID, which is the name of a directory and stays the same over restarts. What drivers refuse is tried again until ctx is done; the error then says for
// each volume what it waits for. A problem with the objects, such as a claim that is not there, is returned at once. In both cases what was published stays until
// Unmount. A repeated call returns the same. Calls for several pods do not wait for each other: one that waits for its driver holds up no other.
func (p *Plugin) Mount(ctx context.Context, pod *corev1.Pod) ([]Mount, error) {
	err := oneline.Join(p.working(), checkUID(pod.UID))
	var wanted []volume.Publication
	if err == nil {
		wanted, err = p.want(ctx, pod)
	}
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
			return nil, fmt.Errorf("mount volumes of pod %q: %w", klog.KObj(pod), oneline.Join(p.waiting(wanted), ctx.Err()))
		case <-p.ended:
			return nil, fmt.Errorf("mount volumes of pod %q: %w", klog.KObj(pod), oneline.Join(p.waiting(wanted), ErrEnded))
		case <-changed:
		}
	}
}

// want asks for all volumes of a pod. It resolves the pod again only after problems that go away by themselves; any other is returned.
func (p *Plugin) want(ctx context.Context, pod *corev1.Pod) ([]volume.Publication, error) {
	again := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 10, Cap: 10 * time.Second}
	for {
		wanted, problems := p.resolver.Pod(ctx, pod)
		for i := range wanted {
			w := &wanted[i]
			if st, ok := p.volumes.Status(w.Volume.Name, w.Key()); ok && st.Published && st.ReadOnly != w.ReadOnly {
				return nil, fmt.Errorf("volume %s: the pod has it with readOnly=%t: it must be unmounted before it is mounted with readOnly=%t", strings.Join(w.PodVolumes, ", "), st.ReadOnly, w.ReadOnly)
			}
			p.explainWanted(w)
			p.volumes.Want(*w)
		}
		if !resolve.Transient(problems) {
			return wanted, resolve.Join(problems)
		}
		select {
		case <-ctx.Done():
			return nil, oneline.Join(resolve.Join(problems), ctx.Err())
		case <-time.After(again.Step()):
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
		if st.Running != "" && !st.Published {
			errs = append(errs, fmt.Errorf("volume %s: %s", strings.Join(w.PodVolumes, ", "), st.Running))
		}
	}
	return oneline.Join(errs...)
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

// checkUID returns an error for the UID of a pod that cannot be the name of a directory.
func checkUID(uid types.UID) error {
	if uid == "" {
		return errors.New("it has no UID")
	}
	if problems := content.IsPathSegmentName(string(uid)); len(problems) > 0 {
		return fmt.Errorf("UID %q cannot be the name of a directory: %s", uid, strings.Join(problems, ", "))
	}
	return nil
}

// Unmount unpublishes all volumes of a pod, removes its directories, and unstages the volumes that no other pod uses. The pod may be of an earlier process. It
// returns nil when nothing is left, also if it is called again, and else when ctx is done, with what keeps it: the work goes on all the same. Which pod had a
// volume that an earlier process has staged, and not unstaged, is not known: each Unmount waits for these. A volume that is mounted where no record explains it
// stays staged, which is an error. A pod that has nothing is no error.
func (p *Plugin) Unmount(ctx context.Context, pod types.UID) error {
	if err := oneline.Join(p.working(), checkUID(pod)); err != nil {
		return fmt.Errorf("unmount volumes of pod %q: %w", pod, err)
	}
	p.explainPod(ctx, pod)
	names := p.leaving(pod)
	p.volumes.Drop(volume.Pod{UID: pod})
	for {
		changed := p.next()
		if !p.volumes.Busy(pod) && !slices.ContainsFunc(names, p.volumes.Leaving) && !slices.ContainsFunc(names, p.attached) {
			return p.unmounted(pod, names)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("unmount volumes of pod %q: %w", pod, oneline.Join(p.staying(names), ctx.Err()))
		case <-p.ended:
			return fmt.Errorf("unmount volumes of pod %q: %w", pod, oneline.Join(p.staying(names), ErrEnded))
		case <-changed:
		}
	}
}

// leaving returns the volumes that a pod has, or had at an Unmount before, and those that nobody is known to have had.
func (p *Plugin) leaving(pod types.UID) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := append(p.volumes.Of(pod), p.left[pod]...)
	slices.Sort(names)
	p.left[pod] = slices.Compact(names)
	return append(slices.Clone(p.left[pod]), p.orphans...)
}

// unmounted ends an Unmount whose volumes are not on their way out any more.
func (p *Plugin) unmounted(pod types.UID, names []string) error {
	if err := oneline.Join(p.CleanPod(pod), p.cleaned(pod)); err != nil {
		return fmt.Errorf("unmount volumes of pod %q: %w", pod, err)
	}
	if pinned := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !p.volumes.Pinned(name) }); len(pinned) > 0 {
		return fmt.Errorf("unmount volumes of pod %q: %q stay staged: they are, or may be, mounted where no record explains it", pod, pinned)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.left, pod)
	return nil
}

// attached reports whether a volume is on its way to be detached.
func (p *Plugin) attached(name string) bool {
	leaves, _ := p.attacher.leaves(name)
	return leaves
}

// staying says what keeps volumes from being unpublished and unstaged.
func (p *Plugin) staying(names []string) error {
	var errs []error
	for _, name := range names {
		if _, err := p.attacher.leaves(name); err != nil {
			errs = append(errs, fmt.Errorf("volume %s stays attached: %w", name, err))
		}
	}
	for _, d := range p.volumes.Dump() {
		if !slices.Contains(names, d.Volume) {
			continue
		}
		for _, problem := range []string{d.Error, d.Running} {
			if problem != "" {
				errs = append(errs, fmt.Errorf("volume %s: %s", d.Volume, problem))
			}
		}
		for _, u := range d.Uses {
			if u.Error != "" {
				errs = append(errs, fmt.Errorf("volume %s of pod %q: %s", u.SpecName, u.Pod, u.Error))
			}
		}
	}
	return oneline.Join(errs...)
}

// Expand expands the file system, or the device, of a PersistentVolume that pods of this node have, to a size in bytes, after the controller of its driver has expanded
// the volume (CSI v1.13, "NodeExpandVolume"). What the driver does not answer is tried again until ctx is done; an error that it answers is returned at once. A
// claim whose status says that the node has to expand it needs no call: see Config.Claims.
func (p *Plugin) Expand(ctx context.Context, pv string, bytes int64) error {
	object, err := p.cfg.Objects.Volume(ctx, pv)
	switch {
	case err != nil:
		return fmt.Errorf("expand volume %q: %w", pv, err)
	case object.Spec.CSI == nil || bytes <= 0:
		return fmt.Errorf("expand volume %q to %d bytes: the volume must be of a CSI driver, and the size more than 0", pv, bytes)
	}
	if err := oneline.Join(p.working(), p.volumes.Expand(pv, bytes, object.Spec.CSI.NodeExpandSecretRef)); err != nil {
		return err
	}
	for {
		changed := p.next()
		ended, err := p.volumes.Expanded(pv)
		if ended {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("expand volume %q: %w", pv, oneline.Join(err, ctx.Err()))
		case <-p.ended:
			return fmt.Errorf("expand volume %q: %w", pv, oneline.Join(err, ErrEnded))
		case <-changed:
		}
	}
}

// CleanPod removes the directories of a pod none of whose volumes is published. What is mounted there all the same is an error.
func (p *Plugin) CleanPod(pod types.UID) error { return p.disk.CleanPod(pod) }
