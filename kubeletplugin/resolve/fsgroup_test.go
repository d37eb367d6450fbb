package resolve

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// grouping has the objects that decide on a change of the group.
type grouping struct {
	driver *storagev1.CSIDriver
	pv     *corev1.PersistentVolume
	pod    *corev1.Pod
}

func policyOf(p storagev1.FSGroupPolicy) func(*grouping) {
	return func(g *grouping) { g.driver.Spec.FSGroupPolicy = &p }
}

func modesOf(m ...corev1.PersistentVolumeAccessMode) func(*grouping) {
	return func(g *grouping) { g.pv.Spec.AccessModes = m }
}

func noFSType(g *grouping) { g.pv.Spec.CSI.FSType = "" }

func inlineWith(fsType *string) func(*grouping) {
	return func(g *grouping) {
		g.pod.Spec.Volumes[0].VolumeSource = inline()
		g.pod.Spec.Volumes[0].CSI.FSType = fsType
	}
}

// TestChangeGroup is when a kubelet changes the group of the files, by CSIDriver.spec.fsGroupPolicy. That read-only volumes stay
// as they are is decided in package volume.
func TestChangeGroup(t *testing.T) {
	file, none, standard := policyOf(storagev1.FileFSGroupPolicy), policyOf(storagev1.NoneFSGroupPolicy), policyOf(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	cases := map[string]struct {
		reason string
		change []func(*grouping)
		want   bool
	}{
		"ReadWriteOnce":    {reason: "one node with a file system", change: []func(*grouping){modesOf(corev1.ReadWriteOnce)}, want: true},
		"ReadWriteOncePod": {reason: "one pod with a file system", change: []func(*grouping){modesOf(corev1.ReadWriteOncePod), standard}, want: true},
		"OneOfModes":       {reason: "any of the modes counts", change: []func(*grouping){modesOf(corev1.ReadWriteMany, corev1.ReadWriteOnce)}, want: true},
		"Shared":           {reason: "several nodes", change: []func(*grouping){modesOf(corev1.ReadWriteMany)}},
		"NoModes":          {reason: "no mode is none of one node", change: []func(*grouping){modesOf()}},
		"NoFSType":         {reason: "no file system type", change: []func(*grouping){noFSType}},
		"NoDriver":         {reason: "the default holds without a CSIDriver object", change: []func(*grouping){func(g *grouping) { g.driver = nil }}, want: true},
		"None":             {reason: "the driver's files stay", change: []func(*grouping){none}},
		"File":             {reason: "always", change: []func(*grouping){file, noFSType, modesOf(corev1.ReadWriteMany)}, want: true},
		"Inline":           {reason: "an inline volume belongs to one pod", change: []func(*grouping){inlineWith(ptr("ext4"))}, want: true},
		"InlineNoFSType":   {reason: "an inline volume without file system type", change: []func(*grouping){inlineWith(nil)}},
		"InlineFile":       {reason: "an inline volume of a driver that says File", change: []func(*grouping){inlineWith(nil), file}, want: true},
		"NoGroup":          {reason: "a pod without fsGroup", change: []func(*grouping){file, func(g *grouping) { g.pod.Spec.SecurityContext.FSGroup = nil }}},
		"NoContext":        {reason: "a pod without security context", change: []func(*grouping){file, func(g *grouping) { g.pod.Spec.SecurityContext = nil }}},
		"UnknownPolicy":    {reason: "a policy of a later API is not guessed at", change: []func(*grouping){policyOf("Sometimes")}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			g := &grouping{driver: csiDriver(), pv: pv(), pod: pod(byClaim())}
			for _, change := range tc.change {
				change(g)
			}
			got, problems := resolver(kubetest.New(claim(), g.pv), g.driver).Pod(t.Context(), g.pod)
			if len(problems) > 0 || len(got) != 1 || got[0].ChangeGroup != tc.want || got[0].OnRootMismatch {
				t.Errorf("%s: got %+v, problems %v, want a change of the group: %t", tc.reason, got, problems, tc.want)
			}
		})
	}
}

// TestChangePolicy: only OnRootMismatch lets a volume be skipped.
func TestChangePolicy(t *testing.T) {
	for policy, want := range map[corev1.PodFSGroupChangePolicy]bool{corev1.FSGroupChangeOnRootMismatch: true, corev1.FSGroupChangeAlways: false} {
		p := pod(byClaim())
		p.Spec.SecurityContext.FSGroupChangePolicy = &policy
		got, problems := resolver(kubetest.New(claim(), pv()), csiDriver()).Pod(t.Context(), p)
		if len(problems) > 0 || !got[0].ChangeGroup || got[0].OnRootMismatch != want {
			t.Errorf("%s: got %+v, problems %v, want OnRootMismatch %t", policy, got, problems, want)
		}
	}
}
