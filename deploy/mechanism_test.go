package deploy

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	driverName = "hostpath.csi.k8s.io"
	driver     = "hostpath"
	// secondDriver is the driver of the controller side in a pod of the node side.
	secondDriver = "controller"
)

// TestMechanism compares with the seed 001, "Recommended Mechanism for Deploying CSI Drivers on Kubernetes".
func TestMechanism(t *testing.T) {
	for _, overlay := range overlays(t) {
		t.Run(overlay, func(t *testing.T) {
			sides := workloads(t, objects(t, overlay))
			checkNode(t, sides[nodeLabel])
			switch form := forms()[overlay]; {
			case form.distributed:
				checkOneDriver(t, sides[nodeLabel])
			case form.kind == "DaemonSet":
				checkController(t, sides[controllerLabel], secondDriver, "livenessprobe-controller")
			default:
				checkController(t, sides[controllerLabel], driver, "livenessprobe")
			}
		})
	}
}

// checkController: the driver and all that call it share the socket in an emptyDir.
func checkController(t *testing.T, w workload, driver, probe string) {
	t.Helper()
	if w.volume(t, "socket-dir").EmptyDir == nil {
		t.Error("the socket of the controller side does not lie in an emptyDir")
	}
	for _, name := range []string{driver, "provisioner", "attacher", "resizer", "snapshotter", probe} {
		c := w.container(t, name)
		checkMount(t, c, "socket-dir", "/csi", "")
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { _, ofNode := nodePaths()[m.Name]; return ofNode }) {
			t.Errorf("%s has directories of the kubelet, or the host's devices", name)
		}
	}
}

// checkOneDriver: where one process serves both sides it has one socket, the one that the kubelet needs.
func checkOneDriver(t *testing.T, w workload) {
	t.Helper()
	if args := w.container(t, driver).Args; !slices.Contains(args, "--mode=all") {
		t.Errorf("the driver runs with %q", args)
	}
	checkMount(t, w.container(t, "provisioner"), "plugin-dir", "/csi", "")
	checkMount(t, w.container(t, "snapshotter"), "plugin-dir", "/csi", "")
}

// nodePaths are the directories of a host that a pod of the node side has, by volume, each with the only container that may mount it;
// no name means any. Not in the seed is /dev: the device of a raw block volume is made when the volume is staged, and a container's own
// /dev, privileged or not, shows what there was when the container was started. The driver's directory differs by form, see TestDistributed.
func nodePaths() map[string]hostPath {
	return map[string]hostPath{
		"registration-dir": {"/var/lib/kubelet/plugins_registry", corev1.HostPathDirectory, "registrar"},
		"kubelet-dir":      {"/var/lib/kubelet", corev1.HostPathDirectory, driver},
		"plugin-dir":       {"/var/lib/kubelet/plugins/" + driverName, corev1.HostPathDirectoryOrCreate, ""},
		"dev-dir":          {"/dev", corev1.HostPathDirectory, driver},
	}
}

type hostPath struct {
	path string
	kind corev1.HostPathType
	only string
}

// checkNode: the registrar alone has plugins_registry; the driver alone has /dev, and the kubelet's directory, with mounts going both
// ways.
func checkNode(t *testing.T, w workload) {
	t.Helper()
	if w.kind != "DaemonSet" {
		t.Errorf("the node side is a %s", w.kind)
	}
	for name, want := range nodePaths() {
		checkHostPath(t, w, name, want.path, want.kind)
	}
	for _, v := range w.pod.Spec.Volumes {
		if _, known := nodePaths()[v.Name]; v.HostPath != nil && !known && v.Name != "state-dir" {
			t.Errorf("volume %s is %s of the host, for which there is no reason", v.Name, v.HostPath.Path)
		}
	}
	checkMount(t, w.container(t, "registrar"), "registration-dir", "/registration", "")
	checkMount(t, w.container(t, driver), "kubelet-dir", "/var/lib/kubelet", corev1.MountPropagationBidirectional)
	checkMount(t, w.container(t, driver), "plugin-dir", "/csi", "")
	checkMount(t, w.container(t, driver), "dev-dir", "/dev", "")
	for _, c := range w.pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			if only := nodePaths()[m.Name].only; only != "" && c.Name != only {
				t.Errorf("%s has %s, which is not for it", c.Name, m.Name)
			}
		}
	}
	// The runtime makes this file where the container mounts it: below /dev that would be on the host, for good.
	if path := w.container(t, driver).TerminationMessagePath; path == "" || strings.HasPrefix(path, "/dev/") {
		t.Errorf("the driver's last words go to %q, in the host's /dev", path)
	}
	if sc := w.container(t, driver).SecurityContext; sc == nil || sc.Privileged == nil || !*sc.Privileged {
		t.Error("the driver must be privileged to mount for the host")
	}
}

func checkHostPath(t *testing.T, w workload, name, path string, kind corev1.HostPathType) {
	t.Helper()
	h := w.volume(t, name).HostPath
	if h == nil || h.Path != path || h.Type == nil || *h.Type != kind {
		t.Errorf("volume %s is %+v, want %s of type %s", name, h, path, kind)
	}
}

func checkMount(t *testing.T, c corev1.Container, volume, path string, propagation corev1.MountPropagationMode) {
	t.Helper()
	for _, m := range c.VolumeMounts {
		if m.Name != volume {
			continue
		}
		var got corev1.MountPropagationMode
		if m.MountPropagation != nil {
			got = *m.MountPropagation
		}
		if m.MountPath != path || got != propagation {
			t.Errorf("%s mounts %s at %s with propagation %q, want %s with %q", c.Name, volume, m.MountPath, got, path, propagation)
		}
		return
	}
	t.Errorf("%s does not mount %s", c.Name, volume)
}

// TestLeastPrivilege: what a container does not need, it does not get.
func TestLeastPrivilege(t *testing.T) {
	for _, overlay := range directories(t) {
		t.Run(overlay, func(t *testing.T) {
			for _, w := range allWorkloads(objects(t, overlay)) {
				if p := w.pod.Spec.SecurityContext; p == nil || p.SeccompProfile == nil || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
					t.Errorf("%s: no seccomp profile", w.GetName())
				}
				for _, c := range w.pod.Spec.Containers {
					checkPrivileges(t, w, c)
				}
			}
		})
	}
}

// checkPrivileges: who may be root, and why, is in the README.
func checkPrivileges(t *testing.T, w workload, c corev1.Container) {
	t.Helper()
	onNode := w.GetLabels()[nodeLabel] != ""
	sc := c.SecurityContext
	if sc == nil || sc.ReadOnlyRootFilesystem == nil || !*sc.ReadOnlyRootFilesystem {
		t.Errorf("%s: %s can write to its root file system", w.GetName(), c.Name)
		return
	}
	if onNode && c.Name == driver {
		return // privileged, see checkNode
	}
	if sc.Capabilities == nil || !slices.Contains(sc.Capabilities.Drop, "ALL") || sc.AllowPrivilegeEscalation == nil || *sc.AllowPrivilegeEscalation {
		t.Errorf("%s: %s keeps privileges: %+v", w.GetName(), c.Name, sc)
	}
	root := c.Name == driver || c.Name == secondDriver || onNode && (c.Name == "registrar" || c.Name == "livenessprobe")
	if nonRoot := sc.RunAsNonRoot != nil && *sc.RunAsNonRoot; nonRoot == root {
		t.Errorf("%s: %s is root: %v", w.GetName(), c.Name, !nonRoot)
	}
}

// TestPodsAreComplete: requests and a limit, a probe for whatever can hang, a version, and a selector that finds the pods.
func TestPodsAreComplete(t *testing.T) {
	for _, overlay := range directories(t) {
		t.Run(overlay, func(t *testing.T) {
			for _, w := range allWorkloads(objects(t, overlay)) {
				if w.pod.Spec.PriorityClassName == "" || w.pod.Spec.ServiceAccountName == "" {
					t.Errorf("%s: no priority or no service account", w.GetName())
				}
				if selector := labels.SelectorFromSet(w.selector.MatchLabels); selector.Empty() || !selector.Matches(labels.Set(w.pod.Labels)) {
					t.Errorf("%s: selector %v, labels %v", w.GetName(), selector, w.pod.Labels)
				}
				for _, c := range w.pod.Spec.Containers {
					if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
						t.Errorf("%s: %s lacks a request of CPU or memory, or a limit of memory", w.GetName(), c.Name)
					}
					if c.LivenessProbe == nil && !strings.HasPrefix(c.Name, "livenessprobe") {
						t.Errorf("%s: nobody restarts %s when it hangs", w.GetName(), c.Name)
					}
					if !slices.ContainsFunc(c.Args, func(a string) bool { return strings.HasPrefix(a, "--http-endpoint=") }) {
						t.Errorf("%s: %s serves no metrics", w.GetName(), c.Name)
					}
				}
			}
		})
	}
}

// TestPodsRunOnLinux: the images are for Linux, and the pods of the node side tolerate the taints of all nodes.
func TestPodsRunOnLinux(t *testing.T) {
	for _, overlay := range directories(t) {
		for _, w := range allWorkloads(objects(t, overlay)) {
			if w.pod.Spec.NodeSelector[corev1.LabelOSStable] != "linux" {
				t.Errorf("%s: %s may come to a node that does not run Linux: selector %v", overlay, w.GetName(), w.pod.Spec.NodeSelector)
			}
		}
	}
}

// TestProvisionerMayDrain: it ends a call that is in progress within its timeout, at least 25 s, writes what it knows, and releases the
// lease. A pod that is killed before keeps the next provisioner waiting.
func TestProvisionerMayDrain(t *testing.T) {
	for _, overlay := range overlays(t) {
		w := workloads(t, objects(t, overlay))[controllerLabel]
		if grace := w.pod.Spec.TerminationGracePeriodSeconds; grace == nil || *grace < 60 {
			t.Errorf("%s: the pods of %s are killed before the provisioner has ended", overlay, w.GetName())
		}
	}
}

// TestRegistrarIsReadyOnceRegistered: while the registrar waits for the driver or the kubelet, restarting it helps nothing, and its node
// is not ready for volumes.
func TestRegistrarIsReadyOnceRegistered(t *testing.T) {
	for _, overlay := range overlays(t) {
		c := workloads(t, objects(t, overlay))[nodeLabel].container(t, "registrar")
		if path := pathOf(c.LivenessProbe); path != "/livez" {
			t.Errorf("%s: the registrar is restarted by the answer of %q, want /livez", overlay, path)
		}
		if path := pathOf(c.ReadinessProbe); path != "/readyz" {
			t.Errorf("%s: a node is ready by the answer of %q, want /readyz", overlay, path)
		}
	}
}

func pathOf(p *corev1.Probe) string {
	if p == nil || p.HTTPGet == nil {
		return ""
	}
	return p.HTTPGet.Path
}

// TestObjectsOfTheDriver: one namespace that admits the pods, one CSIDriver, and classes of that driver in both binding modes.
func TestObjectsOfTheDriver(t *testing.T) {
	for _, overlay := range overlays(t) {
		t.Run(overlay, func(t *testing.T) {
			list := objects(t, overlay)
			namespace := one[*corev1.Namespace](t, list)
			if namespace.Labels["pod-security.kubernetes.io/enforce"] != "privileged" {
				t.Errorf("namespace %s does not admit the driver's pods: %v", namespace.Name, namespace.Labels)
			}
			object := one[*storagev1.CSIDriver](t, list)
			if object.Name != driverName || !slices.Contains(object.Spec.VolumeLifecycleModes, storagev1.VolumeLifecyclePersistent) {
				t.Errorf("CSIDriver %+v", object)
			}
			modes := map[storagev1.VolumeBindingMode]bool{}
			for _, class := range find[*storagev1.StorageClass](list) {
				modes[*class.VolumeBindingMode] = class.Provisioner == driverName
			}
			if !modes[storagev1.VolumeBindingImmediate] || !modes[storagev1.VolumeBindingWaitForFirstConsumer] {
				t.Errorf("classes: %v", modes)
			}
		})
	}
}

// TestExpansion: classes allow expansion where a resizer runs, and the driver that modifies volumes has the flag for it.
func TestExpansion(t *testing.T) {
	for _, overlay := range overlays(t) {
		t.Run(overlay, func(t *testing.T) {
			list := objects(t, overlay)
			controller := workloads(t, list)[controllerLabel]
			resizes := slices.ContainsFunc(controller.pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "resizer" })
			if resizes == forms()[overlay].distributed {
				t.Errorf("has a resizer: %t, and a driver on each node with volumes of its own: %t", resizes, forms()[overlay].distributed)
			}
			for _, class := range find[*storagev1.StorageClass](list) {
				if allowed := class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion; allowed != resizes {
					t.Errorf("class %s allows expansion: %t, there is a resizer: %t", class.Name, allowed, resizes)
				}
			}
			if !slices.ContainsFunc(controller.pod.Spec.Containers, func(c corev1.Container) bool {
				return slices.Contains(c.Args, "--enable-controller-modify-volume")
			}) {
				t.Error("no driver accepts the parameters of VolumeAttributesClasses")
			}
		})
	}
}

// TestVolumeAttributesClass: the example is the driver's, and in no overlay, as older clusters do not know the kind.
func TestVolumeAttributesClass(t *testing.T) {
	class := one[*storagev1.VolumeAttributesClass](t, objects(t, "../components/volume-attributes-class"))
	if class.DriverName != driverName || class.Namespace != "" || len(class.Parameters) == 0 {
		t.Errorf("VolumeAttributesClass %+v", class)
	}
	for _, overlay := range overlays(t) {
		if found := find[*storagev1.VolumeAttributesClass](objects(t, overlay)); len(found) > 0 {
			t.Errorf("%s has VolumeAttributesClass %s", overlay, found[0].Name)
		}
	}
}
