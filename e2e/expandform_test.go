package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestExpansionForms expands volumes of drivers that announce other forms of expansion than the usual one: by the controller alone, by
// the node alone, and only while no node uses the volume.
func TestExpansionForms(t *testing.T) {
	dev(t)
	driver := filepath.Join(t.TempDir(), "hostpathplugin")
	mustRun(t, exec.Command("go", "build", "-C", "../hostpathdriver", "-trimpath", "-o", driver, "./cmd/hostpathplugin"))
	for name, form := range map[string]struct {
		flags  string
		expand func(e *expansion, before uint64) // until the new size is in force, or will be soon
	}{
		"ControllerAlone": {flags: "--mode={mode} --disable-node-expansion", expand: expandInUse},
		// The resizer is told by the driver beside it what nodes can do.
		"NodeAlone": {flags: "--mode=all --enable-topology=false --disable-controller-expansion", expand: expandInUse},
		"Offline":   {flags: "--mode={mode} --volume-expansion-type=OFFLINE", expand: expandOffline},
	} {
		t.Run(name, func(t *testing.T) {
			flags := "--endpoint={endpoint} --statedir={statedir} --v={v} --nodeid={node} --enable-attach=true " + form.flags
			e := newExpansionOn(t, ownCluster(t, 1, "--driver="+driver, "--driver-flags="+flags))
			e.createPod()
			before := e.fileSystem("pod")
			form.expand(e, before)
			e.finished()
			e.waitLarge("pod", before)
			e.over()
		})
	}
}

// expandInUse expands the volume while the pod runs.
func expandInUse(e *expansion, _ uint64) { e.ask() }

// expandOffline asks while the pod runs, is told what the expansion waits for, and ends the pod.
func expandOffline(e *expansion, before uint64) {
	e.t.Helper()
	e.ask()
	e.story.waitEvent("VolumeResizeFailed", "while it is not in use")
	if now := e.fileSystem("pod"); now != before {
		e.t.Errorf("the file system in use has %d bytes, and had %d", now, before)
	}
	e.DeletePod("pod")
	e.WaitNoPod("pod")
	e.reached(corev1.PersistentVolumeClaimNodeResizePending)
	e.createPod()
}
