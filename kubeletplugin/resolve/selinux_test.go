package resolve

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

func level(l string) *corev1.SELinuxOptions { return &corev1.SELinuxOptions{Level: l} }

// ofPod sets the SELinux options of the pod.
func ofPod(o *corev1.SELinuxOptions) func(*grouping) {
	return func(g *grouping) { g.pod.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: o} }
}

// another adds a container with options of its own that mounts the volume.
func another(o *corev1.SELinuxOptions) func(*grouping) {
	return func(g *grouping) {
		c := *g.pod.Spec.Containers[0].DeepCopy()
		c.SecurityContext = &corev1.SecurityContext{SELinuxOptions: o}
		g.pod.Spec.InitContainers = append(g.pod.Spec.InitContainers, c)
	}
}

func changePolicy(p corev1.PodSELinuxChangePolicy) func(*grouping) {
	return func(g *grouping) { g.pod.Spec.SecurityContext.SELinuxChangePolicy = &p }
}

// TestSELinuxContext is which volumes a kubelet of 1.36 mounts with a context.
func TestSELinuxContext(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	cases := map[string]struct {
		reason        string
		change        []func(*grouping)
		want, problem string
	}{
		"Pod":       {reason: "options of the pod", change: []func(*grouping){ofPod(level("s0:c1"))}, want: "label:s0:c1"},
		"Container": {reason: "those of the only container that mounts it", change: []func(*grouping){another(level("s0:c2")), func(g *grouping) { g.pod.Spec.Containers = nil }}, want: "label:s0:c2"},
		"Replaced":  {reason: "those of a container replace those of the pod", change: []func(*grouping){ofPod(level("s0:c1")), another(level("s0:c2"))}, problem: "multiple SELinux labels found: label:s0:c1,label:s0:c2"},
		"Equal":     {reason: "two containers with one label", change: []func(*grouping){ofPod(level("s0:c1")), another(level("s0:c1"))}, want: "label:s0:c1"},
		"NoOptions": {reason: "a container without options has any label", change: []func(*grouping){another(level("s0:c2"))}, want: "label:s0:c2"},
		"None":      {reason: "nobody has options"},
		"Recursive": {reason: "the pod wants its files relabeled", change: []func(*grouping){ofPod(level("s0:c1")), changePolicy(corev1.SELinuxChangePolicyRecursive)}},
		"Mount":     {reason: "the default by name", change: []func(*grouping){ofPod(level("s0:c1")), changePolicy(corev1.SELinuxChangePolicyMountOption)}, want: "label:s0:c1"},
		"Shared":    {reason: "any mode, since Kubernetes 1.37", change: []func(*grouping){ofPod(level("s0:c1")), modesOf(corev1.ReadWriteMany)}, want: "label:s0:c1"},
		"Modes":     {reason: "and one of several modes", change: []func(*grouping){ofPod(level("s0:c1")), modesOf(corev1.ReadWriteOncePod, corev1.ReadWriteOnce)}, want: "label:s0:c1"},
		"NoDriver":  {reason: "a driver without CSIDriver object", change: []func(*grouping){ofPod(level("s0:c1")), func(g *grouping) { g.driver = nil }}},
		"Driver":    {reason: "a driver that does not mount with a context, however many there are", change: []func(*grouping){ofPod(level("s0:c1")), another(level("s0:c2")), func(g *grouping) { g.driver.Spec.SELinuxMount = nil }}},
		"Block":     {reason: "a device has none", change: []func(*grouping){ofPod(level("s0:c1")), func(g *grouping) { g.pv.Spec.VolumeMode = &block; useDevice(g.pod) }}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			g := &grouping{driver: csiDriver(), pv: pv(), pod: pod(byClaim())}
			g.driver.Spec.SELinuxMount = ptr(true)
			modesOf(corev1.ReadWriteOncePod)(g)
			for _, change := range tc.change {
				change(g)
			}
			r := resolver(kubetest.New(claim(), g.pv), g.driver)
			if got, problems := r.Pod(t.Context(), g.pod); len(problems) > 0 || got[0].Volume.SELinuxContext != "" {
				t.Errorf("a host without SELinux: got %+v, problems %v", got, problems)
			}
			r.cfg.FileLabel = func(o *corev1.SELinuxOptions) string { return "label:" + o.Level }
			got, problems := r.Pod(t.Context(), g.pod)
			if tc.problem != "" {
				if len(problems) != 1 || !strings.Contains(problems[0].Err.Error(), tc.problem) {
					t.Errorf("%s: problems %v, want %q", tc.reason, problems, tc.problem)
				}
				return
			}
			if len(problems) > 0 || len(got) != 1 || got[0].Volume.SELinuxContext != tc.want {
				t.Errorf("%s: got %+v, problems %v, want the context %q", tc.reason, got, problems, tc.want)
			}
		})
	}
}

// useDevice has the container of a pod use its volume as a device.
func useDevice(p *corev1.Pod) {
	c := &p.Spec.Containers[0]
	for _, m := range c.VolumeMounts {
		c.VolumeDevices = append(c.VolumeDevices, corev1.VolumeDevice{Name: m.Name, DevicePath: m.MountPath})
	}
	c.VolumeMounts = nil
}

// TestSELinuxContextOfOneClaim: two volumes of a pod that name one claim are one mount, which has one context.
func TestSELinuxContextOfOneClaim(t *testing.T) {
	g := &grouping{driver: csiDriver(), pv: pv(), pod: pod(byClaim())}
	g.driver.Spec.SELinuxMount = ptr(true)
	modesOf(corev1.ReadWriteOncePod)(g)
	ofPod(level("s0:c1"))(g)
	second := *g.pod.Spec.Volumes[0].DeepCopy()
	second.Name = "second"
	g.pod.Spec.Volumes = append(g.pod.Spec.Volumes, second)
	g.pod.Spec.Containers = append(g.pod.Spec.Containers, corev1.Container{
		VolumeMounts:    []corev1.VolumeMount{{Name: "second"}},
		SecurityContext: &corev1.SecurityContext{SELinuxOptions: level("s0:c2")},
	})
	r := resolver(kubetest.New(claim(), g.pv), g.driver)
	r.cfg.FileLabel = func(o *corev1.SELinuxOptions) string { return "label:" + o.Level }
	_, problems := r.Pod(t.Context(), g.pod)
	if len(problems) != 1 || problems[0].Volume != "second" || !strings.Contains(problems[0].Err.Error(), "conflicting SELinux labels") {
		t.Errorf("problems %v, want one for the second volume", problems)
	}
}
