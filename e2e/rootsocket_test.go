package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// TestSidecarsReachASocketOfRoot runs the deployed images as the manifests of most drivers do: without a securityContext, so that the user
// is that of the image. The driver's socket belongs to root and has mode 0755.
func TestSidecarsReachASocketOfRoot(t *testing.T) {
	kubelet(t)
	beside(t)
	s := newScene(t)
	images := map[string]string{}
	for _, c := range findReplicas(t, s).deployment.Spec.Template.Spec.Containers {
		images[c.Name] = c.Image
	}
	for _, component := range []string{"provisioner", "attacher", "resizer"} {
		s.grant("longshore:csi-" + component)
	}
	sidecar := func(name, ready string, port int) corev1.Container {
		return corev1.Container{
			Name: name, Image: images[name],
			Args:           []string{"--csi-address=/csi/csi.sock", fmt.Sprintf("--http-endpoint=:%d", port)},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: ready, Port: intstr.FromInt(port)}}, PeriodSeconds: 1, TimeoutSeconds: 5},
		}
	}
	// The hostpath driver's own socket has mode 0660, and containerd gives a user that only the image names the group root. Most drivers do not
	// set a mode: 0755 lets root alone connect.
	pod := testbed.Pod(s.Namespace, "driver", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	socket := corev1.VolumeMount{Name: pod.Spec.Volumes[0].Name, MountPath: "/csi"}
	main := &pod.Spec.Containers[0]
	main.VolumeMounts = []corev1.VolumeMount{socket}
	main.Command = []string{"sh", "-ec", `until [ -S /csi/driver.sock ]; do sleep 1; done; chmod 755 /csi/driver.sock; mv /csi/driver.sock /csi/csi.sock; trap exit TERM; while :; do sleep 1; done`}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "state", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
		Name: "hostpath", Image: images["hostpath"],
		Args:         []string{"--drivername=" + s.Namespace + ".example.com", "--mode=controller", "--endpoint=unix:///csi/driver.sock", "--statedir=/state"},
		VolumeMounts: []corev1.VolumeMount{socket, {Name: "state", MountPath: "/state"}},
	}, sidecar("provisioner", "/readyz", 9811), sidecar("attacher", "/readyz", 9812), sidecar("resizer", "/readyz", 9815), sidecar("livenessprobe", "/healthz", 9808))
	for i := range pod.Spec.Containers[2:] {
		pod.Spec.Containers[2+i].VolumeMounts = []corev1.VolumeMount{socket}
	}
	s.AddPod(pod)
	var waiting []string
	s.Wait("provisioner, attacher, resizer and livenessprobe to reach the driver", func(ctx context.Context) (bool, error) {
		got, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		waiting = waiting[:0]
		for _, c := range got.Status.ContainerStatuses {
			if !c.Ready {
				waiting = append(waiting, c.Name)
			}
		}
		if len(waiting) > 0 {
			return false, fmt.Errorf("not ready: %q", waiting)
		}
		return len(got.Status.ContainerStatuses) == len(pod.Spec.Containers), nil
	})
}

// grant gives the scene's pods the rights of a ClusterRole until the test ends.
func (s *scene) grant(role string) {
	s.T.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace + ":" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "default", Namespace: s.Namespace}},
	}
	s.Retry("bind "+role, func(ctx context.Context) error {
		_, err := s.Client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	s.T.Cleanup(func() {
		err := testbed.Poll(context.Background(), func(ctx context.Context) (bool, error) {
			err := testbed.IgnoreNotFound(s.Client.RbacV1().ClusterRoleBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}))
			return err == nil, err
		})
		if err != nil {
			s.T.Errorf("delete the binding of %s: %v", role, err)
		}
	})
}
