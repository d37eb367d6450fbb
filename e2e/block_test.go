package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// lastPlace is the last MiB of the devices of claims.
const lastPlace = testbed.ClaimMiB - 1

// TestRawBlockIsProvisioned needs no node: the device is made where, and when, a pod wants it.
func TestRawBlockIsProvisioned(t *testing.T) {
	beside(t)
	s := newScene(t)
	s.CreateBlockClaim("data", s.ImmediateClass())
	s.WaitBound("data")
	volume := s.Volume("data")
	checkBlock(t, volume)
	if bed.Dev != nil {
		disk, err := os.Stat(filepath.Join(bed.Dev.StateDir, "volumes", volume.Spec.CSI.VolumeHandle, "disk"))
		if err != nil || disk.Size() != testbed.ClaimMiB<<20 {
			t.Errorf("the driver's file is %+v, %v", disk, err)
		}
	}
	s.DeleteClaim("data")
	s.WaitNothingLeft()
}

func checkBlock(t *testing.T, v *corev1.PersistentVolume) {
	t.Helper()
	if mode := v.Spec.VolumeMode; mode == nil || *mode != corev1.PersistentVolumeBlock {
		t.Errorf("volume %s: mode %v", v.Name, mode)
	}
	if size := v.Spec.Capacity.Storage().Value(); size != testbed.ClaimMiB<<20 {
		t.Errorf("volume %s: %d bytes", v.Name, size)
	}
}

// TestRawBlockKeepsWhatIsWritten writes to both ends of a device, has it taken away from the node, and reads it there again.
func TestRawBlockKeepsWhatIsWritten(t *testing.T) {
	kubelet(t)
	beside(t)
	for name, class := range map[string]func(*scene) string{
		"Immediate":   (*scene).ImmediateClass,
		"LateBinding": (*scene).LateClass,
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			s := newScene(t)
			s.CreateBlockClaim("data", class(s))
			if name == "Immediate" {
				s.WaitBound("data")
			}
			writer := s.RunScript("writer", "data", fmt.Sprintf(`[ "$(size)" -ge %d ]; put 0 first; put %d last; has 0 first; has %d last`, testbed.ClaimMiB<<20, lastPlace, lastPlace))
			node, volume := writer.Spec.NodeName, s.Volume("data")
			s.DeletePod("writer")
			s.WaitNoPod("writer")
			s.checkDevices("away", node, volume, false)

			s.AddPod(Holder(s.Namespace, "reader", testbed.FromClaim("data"), fmt.Sprintf("has 0 first; has %d last", lastPlace)))
			if reader := s.WaitRunning("reader"); reader.Spec.NodeName != node {
				t.Errorf("the volume is on %s, the reader on %s", node, reader.Spec.NodeName)
			}
			checkVolume(t, s, volume, node)
			checkAttached(t, s, volume.Name, node)
			checkBlock(t, volume)
			s.checkDevices("here", node, volume, true)
			s.DeletePod("reader")
			s.DeleteClaim("data")
			s.waitNoPods()
			s.checkDevices("gone", node, volume, false)
			s.WaitNothingLeft()
		})
	}
}

// TestRawBlockIsSharedByPodsOfOneNode has two pods talk to each other by one device.
func TestRawBlockIsSharedByPodsOfOneNode(t *testing.T) {
	kubelet(t)
	beside(t)
	s := newScene(t)
	s.CreateBlockClaim("data", s.LateClass())
	s.AddPod(Script(s.Namespace, "first", testbed.FromClaim("data"), "put 0 question; until has 1 answer; do sleep 1; done; put 2 thanks"))
	node := s.WaitRunning("first").Spec.NodeName
	second := s.RunScript("second", "data", "until has 0 question; do sleep 1; done; put 1 answer; until has 2 thanks; do sleep 1; done")
	if second.Spec.NodeName != node {
		t.Errorf("the volume is on %s, the second pod on %s", node, second.Spec.NodeName)
	}
	s.WaitSucceeded("first")
	s.endRawBlock("data", node)
}

// TestReadOnlyRawBlockRefusesWrites has a pod that may only read while another one may write. The kubelet's own part is that the
// runtime opens the device for reading only, except in a privileged container; there, the device itself has to refuse.
func TestReadOnlyRawBlockRefusesWrites(t *testing.T) {
	kubelet(t)
	beside(t)
	for name, privileged := range map[string]bool{"Plain": false, "Privileged": true} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			s := newScene(t)
			s.CreateBlockClaim("data", s.LateClass())
			s.AddPod(Holder(s.Namespace, "writer", testbed.FromClaim("data"), "put 0 kept"))
			node := s.WaitRunning("writer").Spec.NodeName
			source := testbed.FromClaim("data")
			source.PersistentVolumeClaim.ReadOnly = true
			reader := Script(s.Namespace, "reader", source, "has 0 kept; locked; if put 0 lost; then exit 1; fi; has 0 kept")
			reader.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &privileged}
			s.AddPod(reader)
			s.WaitSucceeded("reader")
			s.DeletePod("reader")
			s.WaitNoPod("reader")
			s.RunScript("second-writer", "data", "has 0 kept; if locked; then exit 1; fi; put 1 more; has 1 more")
			s.endRawBlock("data", node)
		})
	}
}

// TestRawBlockSurvivesItsDriver kills the driver twice while a pod writes to its device: the pod goes on, others can join it, and when the
// pod ends while there is no driver, the next driver takes the device away. Of another device, which goes through the same, the kubelet
// learns how large it is.
func TestRawBlockSurvivesItsDriver(t *testing.T) {
	kubelet(t)
	s, measured := newScene(t), newScene(t)
	s.CreateBlockClaim("data", s.LateClass())
	s.AddPod(Script(s.Namespace, "writer", testbed.FromClaim("data"), "trap exit TERM; n=0; while :; do n=$((n + 1)); put 0 $n; has 0 $n; sleep 1; done"))
	node := s.WaitRunning("writer").Spec.NodeName
	measured.CreateBlockClaim("data", measured.LateClass())
	holder := Holder(measured.Namespace, "holder", testbed.FromClaim("data"), "put 0 kept")
	holder.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	measured.AddPod(holder)
	measured.WaitRunning("holder")
	killed := s.killDriver(node)
	s.waitDriver(node, killed)
	s.RunScript("witness", "data", `was=$(sum 0); while [ "$(sum 0)" = "$was" ]; do sleep 1; done`)
	if writer := s.WaitRunning("writer"); writer.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the writer was disturbed: %+v", writer.Status.ContainerStatuses)
	}
	killed = s.killDriver(node)
	s.endRawBlock("data", node)
	s.waitDriver(node, killed)
	beside(t) // by default the kubelet looks once a minute
	measured.waitMeasured(node, "data")
	measured.endRawBlock("data", node)
}

// endRawBlock deletes everything in the scene, and wants nothing to be left of it, neither in the cluster nor on the node.
func (s *scene) endRawBlock(claim, node string) {
	s.T.Helper()
	volume := s.Volume(claim)
	s.Retry("delete all pods", func(ctx context.Context) error {
		return s.Client.CoreV1().Pods(s.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
	s.DeleteClaim(claim)
	s.waitNoPods()
	s.checkDevices("gone", node, volume, false)
	s.WaitNothingLeft()
}

func (s *scene) waitNoPods() {
	s.T.Helper()
	s.Wait("all pods to go", func(ctx context.Context) (bool, error) {
		pods, err := s.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(pods.Items) == 0, err
	})
}

// checkDevices has a pod look whether the node has loop devices for a volume: the driver's shows a file in a directory that is called
// as the volume, and the kubelet's, which keeps the other one busy, a path with the name of the PersistentVolume. What is to be gone
// may take a moment.
func (s *scene) checkDevices(pod, node string, volume *corev1.PersistentVolume, want bool) {
	s.T.Helper()
	// The file of another test's device may go between the pattern and its opening, for which grep alone would fail.
	look := fmt.Sprintf("cat /sys/block/loop*/loop/backing_file 2>/dev/null | grep -E '%s|%s'", volume.Spec.CSI.VolumeHandle, volume.Name)
	script := "while " + look + "; do sleep 1; done"
	if want {
		script = look
	}
	p := Script(s.Namespace, pod, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, script)
	p.Spec.Containers[0].VolumeDevices = nil
	p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	s.AddPod(p)
	s.WaitSucceeded(pod)
	s.DeletePod(pod)
	s.WaitNoPod(pod)
}

// waitMeasured waits until the kubelet tells how large the volume of a claim is. It asks the driver now and then, by default once a minute, at
// a path of its own.
func (s *scene) waitMeasured(node, claim string) {
	s.T.Helper()
	s.Wait("the kubelet of "+node+" to measure claim "+claim, func(ctx context.Context) (bool, error) {
		raw, err := s.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("stats", "summary").DoRaw(ctx)
		if err != nil {
			return false, err
		}
		var summary struct {
			Pods []struct {
				Volume []struct {
					CapacityBytes int64
					PVCRef        struct{ Name, Namespace string }
				}
			}
		}
		if err := json.Unmarshal(raw, &summary); err != nil {
			return false, err
		}
		for _, pod := range summary.Pods {
			for _, v := range pod.Volume {
				if v.PVCRef.Namespace == s.Namespace && v.PVCRef.Name == claim && v.CapacityBytes == testbed.ClaimMiB<<20 {
					return true, nil
				}
			}
		}
		return false, nil
	})
}

// killDriver ends the pod with the driver of a node at once, and says which it was.
func (s *scene) killDriver(node string) types.UID {
	s.T.Helper()
	pod := s.waitDriver(node, "")
	s.Retry("kill "+pod.Name, func(ctx context.Context) error {
		zero := int64(0)
		return testbed.IgnoreNotFound(s.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero}))
	})
	return pod.UID
}

// waitDriver waits until a node has a driver that is ready, and not the one that was killed.
func (s *scene) waitDriver(node string, killed types.UID) (pod *corev1.Pod) {
	s.T.Helper()
	s.Wait("the driver of "+node+" to be ready", func(ctx context.Context) (bool, error) {
		pods, err := s.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: nodeSelector, FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return false, err
		}
		for i := range pods.Items {
			if pod = &pods.Items[i]; pod.UID != killed && pod.DeletionTimestamp == nil && podReady(pod) {
				return true, nil
			}
		}
		return false, nil
	})
	return pod
}
