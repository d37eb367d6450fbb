package clusters

import (
	"context"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// TestExpansionForms expands volumes of drivers that announce other forms of expansion than the usual one: by the controller alone, by
// the node alone, and only while no node uses the volume.
func TestExpansionForms(t *testing.T) {
	dev(t)
	driver := filepath.Join(t.TempDir(), "hostpathplugin")
	testbed.Build(t, driver, "hostpathdriver", "./cmd/hostpathplugin")
	for name, form := range map[string]struct {
		flags  string
		expand func(e *testbed.Expansion, before uint64) // until the new size is in force, or will be soon
	}{
		"ControllerAlone": {flags: "--mode={mode} --disable-node-expansion", expand: expandInUse},
		// The driver beside the resizer reports what nodes can do.
		"NodeAlone": {flags: "--mode=all --enable-topology=false --disable-controller-expansion", expand: expandInUse},
		"Offline":   {flags: "--mode={mode} --volume-expansion-type=OFFLINE", expand: expandOffline},
	} {
		t.Run(name, func(t *testing.T) {
			flags := "--endpoint={endpoint} --statedir={statedir} --v={v} --nodeid={node} --enable-attach=true " + form.flags
			e := testbed.NewExpansion(t, newCluster(t, 1, "--driver="+driver, "--driver-flags="+flags))
			e.CreatePod("pod", testbed.FromClaim("data"))
			before := e.FileSystemSize("pod")
			form.expand(e, before)
			e.WaitFinished()
			waitLarge(e, "pod", before)
			e.End()
		})
	}
}

// expandInUse expands the volume while the pod runs.
func expandInUse(e *testbed.Expansion, _ uint64) { e.Request() }

// expandOffline asks while the pod runs, sees what the expansion waits for, and ends the pod.
func expandOffline(e *testbed.Expansion, before uint64) {
	e.T.Helper()
	e.Request()
	e.WaitEvent("VolumeResizeFailed", "while it is not in use")
	if now := e.FileSystemSize("pod"); now != before {
		e.T.Errorf("the file system in use has %d bytes, and had %d", now, before)
	}
	e.DeletePod("pod")
	e.WaitNoPod("pod")
	e.WaitReached(corev1.PersistentVolumeClaimNodeResizePending)
	e.CreatePod("pod", testbed.FromClaim("data"))
}

// waitLarge waits until the file system has grown: a node may expand it without being called.
func waitLarge(e *testbed.Expansion, pod string, before uint64) {
	e.T.Helper()
	e.Wait("the file system of pod "+pod+" to grow", func(context.Context) (bool, error) { return e.FileSystemSize(pod) > before, nil })
	e.CheckGrown(pod, before)
}
