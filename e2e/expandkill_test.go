package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// kill kills a process, and lets another one, which was frozen, go on.
func (e *expansion) kill(victim, frozen string) {
	e.T.Helper()
	e.Signal(victim, "KILL")
	if victim != frozen {
		e.Signal(frozen, "CONT")
	}
}

// TestExpandInUse expands a volume while a pod uses it: resizer, driver and node, in the order that users see.
func TestExpandInUse(t *testing.T) {
	e := newExpansion(t)
	e.story.createPod()
	before := e.FileSystemSize("pod")
	e.Request()
	e.WaitFinished()
	e.CheckGrown("pod", before)
	e.waitEvent("FileSystemResizeRequired", "PersistentVolumeClaim")
	e.waitEvent("FileSystemResizeSuccessful", "Pod", "PersistentVolumeClaim")
	e.End()
}

// TestExpandBeforeUse expands a volume that no pod uses: its file system grows before the next pod runs.
func TestExpandBeforeUse(t *testing.T) {
	e := newExpansion(t)
	e.story.createPod()
	before := e.FileSystemSize("pod")
	e.DeletePod("pod")
	e.WaitNoPod("pod")
	e.Request()
	e.WaitReached(corev1.PersistentVolumeClaimNodeResizePending)
	e.story.createPod()
	e.CheckGrown("pod", before)
	e.WaitFinished()
	e.End()
}

// TestExpansionKilledInTheMiddle kills processes while ControllerExpandVolume runs, and while NodeExpandVolume does. Whatever is killed
// comes back, and the expansion comes to its end.
func TestExpansionKilledInTheMiddle(t *testing.T) {
	dev(t)
	controller := func(*story) string { return controllerDriver }
	node := func(s *story) string { return "driver." + s.node }
	for _, phase := range []struct {
		name    string
		frozen  func(*story) string
		state   corev1.ClaimResourceStatus
		victims []string
	}{
		{"Controller", controller, corev1.PersistentVolumeClaimControllerResizeInProgress, []string{"csi-resizer", controllerDriver, "kube-apiserver"}},
		{"Node", node, corev1.PersistentVolumeClaimNodeResizeInProgress, []string{"csi-resizer", "csi-node-agent", "driver"}},
	} {
		for _, name := range phase.victims {
			t.Run(phase.name+"/"+name, func(t *testing.T) {
				e := newExpansion(t)
				e.story.createPod()
				before := e.FileSystemSize("pod")
				victim, frozen := name, phase.frozen(e.story)
				if name == "csi-node-agent" || name == "driver" {
					victim += "." + e.story.node
				}
				e.Signal(frozen, "STOP")
				e.Request()
				e.WaitReached(phase.state)
				e.kill(victim, frozen)
				e.WaitFinished()
				e.CheckGrown("pod", before)
				e.End()
			})
		}
	}
}

// TestModificationKilledInTheMiddle kills the resizer and the driver while ControllerModifyVolume runs, for a volume that a pod uses. In the
// end its device has the read-ahead of the class.
func TestModificationKilledInTheMiddle(t *testing.T) {
	dev(t)
	for _, victim := range []string{"csi-resizer", controllerDriver} {
		t.Run(victim, func(t *testing.T) {
			e := newExpansion(t)
			class := e.Namespace + "-far"
			e.story.addAttributesClass(AttributesClass(class, e.Driver, map[string]string{"readAheadKiB": "6144"}))
			e.story.createPod()
			e.WaitRunning("pod")
			e.Signal(controllerDriver, "STOP")
			e.story.moveTo("data", class)
			e.Wait("the modification to be in progress", func(context.Context) (bool, error) {
				status := e.Claim("data").Status.ModifyVolumeStatus
				return status != nil && status.Status == corev1.PersistentVolumeClaimModifyVolumeInProgress, nil
			})
			e.kill(victim, controllerDriver)
			e.story.waitModified("data", class)
			e.Wait("the device of the volume to have the read-ahead of its class", func(context.Context) (bool, error) {
				if now := e.readAhead("pod"); now != "6144" {
					return false, fmt.Errorf("it has %s KiB", now)
				}
				return true, nil
			})
			e.End()
		})
	}
}

// readAhead is the read-ahead in KiB of the device whose file system a pod sees.
func (e *expansion) readAhead(pod string) string {
	e.T.Helper()
	path := e.MountPath(pod, "data")
	var stat syscall.Stat_t
	if err := syscall.Stat(path, &stat); err != nil {
		e.T.Fatalf("%s: %v", path, err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/queue/read_ahead_kb", unix.Major(stat.Dev), unix.Minor(stat.Dev)))
	if err != nil {
		e.T.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}
