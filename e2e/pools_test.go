package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikittest/logtest"
	"github.com/longshore-csi/longshore/e2e/testbed"
	"github.com/longshore-csi/longshore/hostpathdriver"
	"github.com/longshore-csi/longshore/provisioner"
)

// poolScene is a scene with a driver of its own, with pools of storage, and a provisioner that publishes their capacity. Both run in this
// process, next to the driver that is installed, and on no node: pods get a node, and there they wait.
type poolScene struct {
	*scene
	driver string
	// end stops both; so does the end of the test.
	end func()
}

// newPools makes a poolScene in a scene of its own.
func newPools(t *testing.T, pools map[string]int64) *poolScene {
	t.Helper()
	return newScene(t).newPools(pools, nil)
}

// newPools makes a poolScene in a scene. The objects are owned by the owner of the owner of a pod, if one is given.
func (s *scene) newPools(pools map[string]int64, owned *corev1.Pod) *poolScene {
	s.T.Helper()
	dir, err := os.MkdirTemp("", "pools-") // sockets have short paths
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &poolScene{scene: s, driver: s.Namespace + ".example"}
	s.createDriver(&storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: r.driver},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: new(false), StorageCapacity: new(true)},
	})
	d := hostpathdriver.NewOptions()
	d.DriverName, d.Endpoint, d.StateDir = r.driver, "unix://"+filepath.Join(dir, "csi.sock"), filepath.Join(dir, "state")
	d.Mode, d.Topology, d.Capacity = hostpathdriver.ModeController, false, pools
	p := provisioner.NewOptions()
	p.CSI.Address, p.Kube.Kubeconfig = d.Endpoint, s.Kubeconfig
	p.Capacity.Enabled, p.Capacity.Namespace, p.Capacity.OwnerLevel = true, s.Namespace, -1
	if owned != nil {
		p.Capacity.Pod, p.Capacity.OwnerLevel = owned.Name, 2
	}
	r.start(d, p)
	return r
}

// start runs driver and provisioner.
func (r *poolScene) start(d hostpathdriver.Options, p provisioner.Options) {
	r.T.Helper()
	if err := errors.Join(d.Validate(), p.Validate()); err != nil {
		r.T.Fatal(err)
	}
	var log logtest.Log
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log), textlogger.Verbosity(4)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	var running errgroup.Group
	running.Go(func() error { return hostpathdriver.Run(ctx, d) })
	running.Go(func() error { return provisioner.Run(ctx, p) })
	r.end = sync.OnceFunc(func() {
		cancel()
		if err := running.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			r.T.Errorf("driver and provisioner of the pools ended with %v", err)
		}
		if r.T.Failed() {
			r.T.Logf("log of driver and provisioner:\n%s", log.String())
		}
	})
	r.T.Cleanup(r.end)
}

// createDriver makes a CSIDriver, which is removed with the scene.
func (s *scene) createDriver(driver *storagev1.CSIDriver) {
	s.T.Helper()
	s.Retry("create CSIDriver "+driver.Name, func(ctx context.Context) error {
		_, err := s.Client.StorageV1().CSIDrivers().Create(ctx, driver, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	s.T.Cleanup(func() {
		err := testbed.Poll(context.Background(), func(ctx context.Context) (bool, error) {
			err := testbed.IgnoreNotFound(s.Client.StorageV1().CSIDrivers().Delete(ctx, driver.Name, metav1.DeleteOptions{}))
			return err == nil, err
		})
		if err != nil {
			s.T.Errorf("delete CSIDriver %s: %v", driver.Name, err)
		}
	})
}

// class makes a class of the scene's driver, for a pool or any.
func (r *poolScene) class(name string, mode storagev1.VolumeBindingMode, pool string) string {
	r.T.Helper()
	class := testbed.Class(r.Namespace+"-pools-"+name, r.driver, mode)
	if pool != "" {
		class.Parameters = map[string]string{"kind": pool}
	}
	r.AddClass(class)
	return class.Name
}

// createWorkload makes a Deployment of one pod that does nothing, which is removed with the test.
func (s *scene) createWorkload(namespace, name string) {
	s.T.Helper()
	pod := testbed.Pod(namespace, name, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}}, Spec: pod.Spec},
		},
	}
	s.Retry("create deployment "+name, func(ctx context.Context) error {
		_, err := s.Client.AppsV1().Deployments(namespace).Create(ctx, deployment, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	s.T.Cleanup(func() { s.deleteWorkload(namespace, name) })
}

// deleteWorkload deletes a Deployment, and leaves the rest to the garbage collector.
func (s *scene) deleteWorkload(namespace, name string) {
	s.T.Helper()
	background := metav1.DeletePropagationBackground
	err := testbed.Poll(context.Background(), func(ctx context.Context) (bool, error) {
		err := testbed.IgnoreNotFound(s.Client.AppsV1().Deployments(namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background}))
		return err == nil, err
	})
	if err != nil {
		s.T.Errorf("delete deployment %s: %v", name, err)
	}
}

// podOf waits until a Deployment has a pod.
func (s *scene) podOf(namespace, name string) (pod *corev1.Pod) {
	s.T.Helper()
	s.Wait("a pod of deployment "+name, func(ctx context.Context) (bool, error) {
		pods, err := s.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil || len(pods.Items) == 0 {
			return false, err
		}
		pod = &pods.Items[0]
		return true, nil
	})
	return pod
}
