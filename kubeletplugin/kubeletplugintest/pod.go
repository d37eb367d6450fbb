package kubeletplugintest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin"
	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// Volume is a volume that pods use.
type Volume struct {
	// Name is that of the volume in pods, of its claim, and of CreateVolume.
	Name string
	// Handle is the id that the driver gave; empty for an inline volume, which each pod has for itself.
	Handle string
	// Inline says that the volume is part of a pod.
	Inline bool
	// ReadOnly has pods mount the volume read-only.
	ReadOnly bool

	context map[string]string
}

// CreateVolume has the driver make a volume, accessible from this node, for one node that writes.
func (k *Kubelet) CreateVolume(name string) Volume {
	k.t.Helper()
	ctx, cancel := k.deadline()
	defer cancel()
	req := &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: k.cfg.Size}, Parameters: k.cfg.Parameters, Secrets: k.cfg.Secrets,
		VolumeCapabilities: []*csi.VolumeCapability{k.capability()},
	}
	if len(k.segment) > 0 {
		here := []*csi.Topology{{Segments: k.segment}}
		req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: here, Preferred: here}
	}
	created, err := k.controller.CreateVolume(ctx, req)
	if err != nil {
		k.fatalf("create volume %q: %v", name, err)
	}
	v := Volume{Name: name, Handle: created.GetVolume().GetVolumeId(), context: created.GetVolume().GetVolumeContext()}
	k.AddVolume(v)
	return v
}

// AddVolume makes a volume known that exists already, in place of CreateVolume.
func (k *Kubelet) AddVolume(v Volume) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + v.Name}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(k.cfg.Size, resource.BinarySI)}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: k.driver, VolumeHandle: v.Handle, VolumeAttributes: v.context}
	if k.cfg.Block {
		mode := corev1.PersistentVolumeBlock
		pv.Spec.VolumeMode = &mode
	}
	if k.cfg.Secrets != nil {
		ref := &corev1.SecretReference{Namespace: namespace, Name: "secret"}
		pv.Spec.CSI.NodeStageSecretRef, pv.Spec.CSI.NodePublishSecretRef = ref, ref
	}
	k.objects.AddVolume(pv, namespace, v.Name)
	k.attachments.add(v)
	k.log.name(v.Handle, v.Name)
}

// DeleteVolume has the driver delete a volume.
func (k *Kubelet) DeleteVolume(v Volume) {
	k.t.Helper()
	ctx, cancel := k.deadline()
	defer cancel()
	if _, err := k.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.Handle, Secrets: k.cfg.Secrets}); err != nil {
		k.fatalf("delete volume %q: %v", v.Name, err)
	}
}

// InlineVolume is a volume that each pod has for itself.
func (k *Kubelet) InlineVolume(name string) Volume { return Volume{Name: name, Inline: true} }

func (k *Kubelet) capability() *csi.VolumeCapability {
	mode := csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	if k.many {
		mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	}
	c := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}, AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
	if k.cfg.Block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return c
}

// Pod is a pod on the node.
type Pod struct {
	kubelet *Kubelet
	pod     *corev1.Pod
	volumes []Volume
	mounts  []kubeletplugin.Mount
}

// CreatePod creates a pod with volumes. Nothing waits for the mounts.
func (k *Kubelet) CreatePod(name string, volumes ...Volume) *Pod {
	k.t.Helper()
	k.serial++
	p := &Pod{kubelet: k, volumes: volumes, pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("%s-%d", name, k.serial))},
	}}
	container := corev1.Container{Name: "main"}
	for _, v := range volumes {
		source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.Name, ReadOnly: v.ReadOnly}}
		if v.Inline {
			source = corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: k.driver, ReadOnly: &v.ReadOnly, VolumeAttributes: k.cfg.Inline}}
			if k.cfg.Secrets != nil {
				source.CSI.NodePublishSecretRef = &corev1.LocalObjectReference{Name: "secret"}
			}
			k.log.name(layout.InlineHandle(p.pod.UID, v.Name), name+"/"+v.Name)
		}
		p.pod.Spec.Volumes = append(p.pod.Spec.Volumes, corev1.Volume{Name: v.Name, VolumeSource: source})
		if k.cfg.Block && !v.Inline {
			container.VolumeDevices = append(container.VolumeDevices, corev1.VolumeDevice{Name: v.Name, DevicePath: "/dev/" + v.Name})
			continue
		}
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	p.pod.Spec.Containers = []corev1.Container{container}
	k.pods[p.pod.UID] = p
	return p
}

// StartPod creates a pod, and returns when its volumes are mounted.
func (k *Kubelet) StartPod(name string, volumes ...Volume) *Pod {
	k.t.Helper()
	p := k.CreatePod(name, volumes...)
	p.wait()
	return p
}

// wait waits for the pod's volumes.
func (p *Pod) wait() {
	p.kubelet.t.Helper()
	ctx, cancel := p.kubelet.deadline()
	defer cancel()
	mounts, err := p.kubelet.plugin.Mount(ctx, p.pod)
	if err != nil {
		p.kubelet.fatalf("waited for the volumes of pod %q: %v", p.pod.Name, err)
	}
	p.mounts, p.pod.Status.Phase = mounts, corev1.PodRunning
	for _, m := range mounts {
		if _, err := os.Stat(m.Path); err != nil {
			p.kubelet.t.Errorf("volume %q of pod %q is published, but: %v", m.Volume, p.pod.Name, err)
		}
	}
}

// Path is where a volume of the pod is mounted, or its device, by a link to it.
func (p *Pod) Path(v Volume) string {
	for _, m := range p.mounts {
		if m.Volume == v.Name {
			return m.Path
		}
	}
	p.kubelet.t.Fatalf("pod %q has no volume %q", p.pod.Name, v.Name)
	return ""
}

// StopPod deletes a pod, and returns when its volumes are unmounted, and detached if no other pod has them.
func (k *Kubelet) StopPod(p *Pod) {
	k.t.Helper()
	delete(k.pods, p.pod.UID)
	k.unmount(p.pod.UID)
}

// ForgetPod deletes a pod as a forced deletion does while the kubelet is down: the next Start finds its mounts, and no pod.
func (k *Kubelet) ForgetPod(p *Pod) { delete(k.pods, p.pod.UID) }

// mountUntilDeath asks for the volumes of a pod until the kubelet has died, or has them all.
func (k *Kubelet) mountUntilDeath(p *Pod) {
	ctx, cancel := k.untilDeath()
	defer cancel()
	_, _ = k.plugin.Mount(ctx, p.pod) // The point may not be on this way.
}

// stopUntilDeath releases the volumes of a pod until the kubelet has died, or nothing is left.
func (k *Kubelet) stopUntilDeath(p *Pod) {
	ctx, cancel := k.untilDeath()
	defer cancel()
	delete(k.pods, p.pod.UID)
	_ = k.plugin.Unmount(ctx, p.pod.UID)
}

// untilDeath is a context that ends when the kubelet dies.
func (k *Kubelet) untilDeath() (context.Context, context.CancelFunc) {
	ctx, cancel := k.deadline()
	struck := k.killer.struck
	go func() {
		defer cancel()
		select {
		case <-struck:
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func (k *Kubelet) unmount(uid types.UID) {
	k.t.Helper()
	ctx, cancel := k.deadline()
	defer cancel()
	if err := k.plugin.Unmount(ctx, uid); err != nil {
		k.fatalf("waited for the volumes to go: %v", err)
	}
}

// leftovers are what should not be there.
func (k *Kubelet) leftovers() []string {
	var left []string
	for _, p := range k.pods {
		left = append(left, fmt.Sprintf("pod %q exists", p.pod.Name))
	}
	devices := filepath.Join(k.root, "plugins", layout.Plugin, layout.BlockDir)
	for _, pattern := range []string{"pods/*", "plugins/kubernetes.io/csi/*/*", "plugins/kubernetes.io/csi/volumeDevices/*/*"} {
		paths, _ := filepath.Glob(filepath.Join(k.root, pattern))
		for _, path := range paths {
			if path == filepath.Join(devices, layout.DeviceStagingDir) || path == filepath.Join(devices, layout.DevicePublishDir) {
				continue // which all volumes share
			}
			left = append(left, "left behind: "+path)
		}
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(k.root))
	if err != nil {
		left = append(left, err.Error())
	}
	for _, m := range mounts {
		left = append(left, "left mounted: "+m.Mountpoint)
	}
	return append(left, k.attachments.leftovers()...)
}

// points are those that a pod's volumes pass on their way up, or down.
func points(up bool) []fault.Point {
	var all []fault.Point
	down := false
	for _, p := range fault.All() {
		down = down || p == fault.BeforeUnpublish
		unused := strings.Contains(string(p), "expand") || strings.Contains(string(p), "change-group") // No claim and no pod asks for that here.
		if up != down && !unused {
			all = append(all, p)
		}
	}
	return all
}

// mounted reports whether a path is, or leads to, a mount point of the kernel or a device.
func mounted(path string) bool {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeDevice != 0 {
		return true
	}
	found, err := mountinfo.Mounted(path)
	return err == nil && found
}
