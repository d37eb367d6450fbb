package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// Shell makes a pod that mounts a volume at /data, runs a script, and ends with the first command that fails.
func Shell(namespace, name string, source corev1.VolumeSource, script string) *corev1.Pod {
	pod := testbed.Pod(namespace, name, source)
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Containers[0].Command = []string{"sh", "-exc", "cd /data; " + script}
	pod.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	return pod
}

// filled says that a volume takes what fits, and no more.
const filled = `if dd if=/dev/zero of=large bs=1M count=%d; then exit 1; fi; rm large; `

// TestImagesHaveTheirOwnFileSystem makes volumes of each type, fills them, and has them taken away from the node and brought back.
func TestImagesHaveTheirOwnFileSystem(t *testing.T) {
	kubelet(t)
	beside(t)
	for fsType, mebibytes := range map[string]int{"ext3": 32, "ext4": 32, "xfs": 320} {
		t.Run(fsType, func(t *testing.T) {
			beside(t)
			s := newScene(t)
			class := s.createClass(fsType, func(c *storagev1.StorageClass) {
				c.Parameters = map[string]string{"csi.storage.k8s.io/fstype": fsType, "mode": "1777"}
				c.MountOptions = []string{"noatime"}
			})
			claim := testbed.Claim(s.Namespace, "data", class)
			claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(fmt.Sprintf("%dMi", mebibytes))
			s.AddClaim(claim)
			s.AddPod(Shell(s.Namespace, "writer", testbed.FromClaim("data"), fmt.Sprintf(
				`grep " /data %s [^ ]*noatime" /proc/mounts; [ "$(stat -c %%a .)" = 1777 ]; `+filled+`echo text >file; sync`, fsType, mebibytes)))
			writer := s.WaitSucceeded("writer")
			node, volume := writer.Spec.NodeName, s.Volume("data")
			if volume.Spec.CSI.FSType != fsType {
				t.Errorf("the volume has type %q", volume.Spec.CSI.FSType)
			}
			s.DeletePod("writer")
			s.WaitNoPod("writer")
			s.checkDevices("away", node, volume, false)
			s.AddPod(Shell(s.Namespace, "reader", testbed.FromClaim("data"), `[ "$(cat file)" = text ]`))
			s.WaitSucceeded("reader")
			s.endRawBlock("data", node)
		})
	}
}

// TestInlineVolumesWithEveryAttribute has the driver make what the pod describes: twice, and not one for both.
func TestInlineVolumesWithEveryAttribute(t *testing.T) {
	kubelet(t)
	beside(t)
	s := newScene(t)
	source := testbed.Inline(bed.Driver)
	source.CSI.FSType = new("ext4")
	source.CSI.VolumeAttributes = map[string]string{"size": "24Mi", "mode": "2750", "uid": "1234", "gid": "5678"}
	for _, name := range []string{"first", "second"} {
		s.AddPod(Shell(s.Namespace, name, source, `grep " /data ext4 " /proc/mounts; [ "$(stat -c '%a %u %g' .)" = "2750 1234 5678" ]; [ ! -e file ]; `+
			fmt.Sprintf(filled, 24)+`echo `+name+` >file`))
	}
	directory := testbed.Inline(bed.Driver)
	directory.CSI.VolumeAttributes = map[string]string{"size": "24Mi", "mode": "0711", "uid": "1", "gid": "2", "backend": "directory"}
	s.AddPod(Shell(s.Namespace, "directory", directory, `[ "$(stat -c '%a %u %g' .)" = "711 1 2" ]`))
	for _, name := range []string{"first", "second", "directory"} {
		s.WaitSucceeded(name)
		s.DeletePod(name)
	}
	s.waitNoPods()
	s.WaitNothingLeft()
}

// createClass makes a class that binds late and has parameters, which is removed with the scene.
func (s *scene) createClass(name string, change func(*storagev1.StorageClass)) string {
	s.T.Helper()
	class := testbed.Class(s.Namespace+"-"+name, s.Driver, storagev1.VolumeBindingWaitForFirstConsumer)
	change(class)
	s.AddClass(class)
	return class.Name
}
