package agent

import (
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// labeledPod is a pod with an SELinux level.
func labeledPod(name, level string) *corev1.Pod {
	p := podWith(name, claimSource())
	p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: level}}
	return p
}

// contexts lists the mount flags of the calls that mount.
func (c *cluster) contexts() []string {
	var all []string
	for _, call := range c.driver.Calls() {
		if r, ok := call.Request.(interface {
			GetVolumeCapability() *csi.VolumeCapability
		}); ok {
			all = append(all, r.GetVolumeCapability().GetMount().GetMountFlags()...)
		}
	}
	return all
}

// TestSELinuxMount: where SELinux is enabled, the volume of a driver with seLinuxMount is mounted with the context of the pod; the next pod, with another
// context, gets it after it was unstaged. Where it is not enabled, nothing of this happens.
func TestSELinuxMount(t *testing.T) {
	for name, enabled := range map[string]bool{"Enabled": true, "Disabled": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, csitest.Options{})
			if enabled {
				c.cfg.FileLabel = func(o *corev1.SELinuxOptions) string { return "u:r:t:" + o.Level }
			} else {
				c.cfg.FileLabel = func(*corev1.SELinuxOptions) string { return "" }
			}
			c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
			c.register()
			d, pv := csiDriver(false), persistentVolume()
			d.Spec.SELinuxMount = on(true)
			pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
			c.apply(d, claim(), pv)
			c.start()
			c.apply(labeledPod("a", "s0:c1"))
			c.eventually("pod a to run", c.running("a"))
			c.expectContexts(enabled, `context="u:r:t:s0:c1"`)
			c.halt()
			c.start()
			c.apply(labeledPod("b", "s0:c2"))
			c.expectEvent("FailedMount", "uid-b")
			c.deletePod("a", 30)
			c.eventually("pod b to run", c.running("b"))
			c.expectContexts(enabled, `context="u:r:t:s0:c2"`)
			c.deletePod("b", 30)
			c.eventually("pod b to be gone", c.gone("b"))
			c.expectClean()
		})
	}
}

// expectContexts checks that the last calls of a pod to be mounted have a context.
func (c *cluster) expectContexts(enabled bool, want string) {
	c.t.Helper()
	got := c.contexts()
	if enabled && (len(got) < 2 || !slices.Equal(got[len(got)-2:], []string{want, want})) || !enabled && len(got) > 0 {
		c.t.Errorf("mount flags %q, want %q for NodeStageVolume and NodePublishVolume: %t", got, want, enabled)
	}
}
