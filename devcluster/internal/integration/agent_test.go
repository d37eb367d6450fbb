package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/nodeagent"
	"github.com/longshore-csi/longshore/registrar"
)

// background runs a component until the test ends.
func background(t *testing.T, name string, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
}

// smallNode is a node of the server: a node agent, and a driver with its registrar.
type smallNode struct {
	t      *testing.T
	name   string
	client kubernetes.Interface
	driver *csitest.Driver
}

// newSmallNode starts a node whose registrar has the options that change makes. The CSIDriver object of its driver does not ask
// for pod information.
func newSmallNode(t *testing.T, name string, change func(*registrar.Options)) *smallNode {
	t.Helper()
	n := &smallNode{t: t, name: name, client: clientOf(t, admin(t)), driver: csitest.New(csitest.Options{
		Name: name + ".example.com", NodeID: name,
		Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}, // it does not attach
	})}
	n.createObject()
	root, err := os.MkdirTemp("", "node-") // the path of a socket is limited to 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	kubeconfig, err := server.plane.User(name, "system:node:"+name, "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	options := nodeagent.NewOptions()
	options.NodeName, options.RootDir, options.NodeIP, options.Kube.Kubeconfig = name, root, "10.0.0.1", kubeconfig
	t.Cleanup(n.remove)
	background(t, "node agent", func(ctx context.Context) error { return nodeagent.Run(ctx, options) })

	o := registrar.NewOptions()
	o.CSI.Address = n.driver.Serve(t)
	o.KubeletRegistrationPath = o.CSI.Address
	o.PluginRegistrationPath = filepath.Join(root, "plugins_registry")
	change(&o)
	if err := os.MkdirAll(o.PluginRegistrationPath, 0o755); err != nil { //nolint:gosec // as the kubelet's
		t.Fatal(err)
	}
	background(t, "registrar", func(ctx context.Context) error { return registrar.Run(ctx, o) })
	return n
}

func (n *smallNode) driverName() string { return n.name + ".example.com" }

func (n *smallNode) createObject() {
	n.t.Helper()
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: n.driverName()}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: new(bool),
	}}
	if _, err := n.client.StorageV1().CSIDrivers().Create(n.t.Context(), object, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = n.client.StorageV1().CSIDrivers().Delete(context.Background(), n.driverName(), metav1.DeleteOptions{})
	})
}

// remove removes what the agent has created.
func (n *smallNode) remove() {
	_ = n.client.CoreV1().Nodes().Delete(context.Background(), n.name, metav1.DeleteOptions{})
	_ = n.client.StorageV1().CSINodes().Delete(context.Background(), n.name, metav1.DeleteOptions{})
}

// createClaim makes a volume of the driver, with a claim that is bound to it.
func (n *smallNode) createClaim(namespace string) {
	n.t.Helper()
	n.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	storage := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: storage, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: n.name},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: n.driverName(), VolumeHandle: "vol-1", VolumeAttributes: map[string]string{"color": "blue"},
		}},
	}}
	if _, err := n.client.CoreV1().PersistentVolumes().Create(n.t.Context(), volume, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = n.client.CoreV1().PersistentVolumes().Delete(context.Background(), n.name, metav1.DeleteOptions{})
	})
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: storage}, StorageClassName: new(string), VolumeName: n.name,
	}}
	if _, err := n.client.CoreV1().PersistentVolumeClaims(namespace).Create(n.t.Context(), claim, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// runPod lets a pod with the claim come and go, and returns the volume context that the driver got for it.
func (n *smallNode) runPod(namespace string) (pod *corev1.Pod, volumeContext map[string]string) {
	n.t.Helper()
	return n.runPodOn(n.name, namespace)
}

// runPodOn is runPod on any node that has the driver.
func (n *smallNode) runPodOn(node, namespace string) (pod *corev1.Pod, volumeContext map[string]string) {
	n.t.Helper()
	pods := n.client.CoreV1().Pods(namespace)
	pod, err := pods.Create(n.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: n.podSpec(node)}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, "the pod runs", func(ctx context.Context) string {
		now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil || now.Status.Phase != corev1.PodRunning {
			return fmt.Sprintf("phase %s: %v", now.Status.Phase, err)
		}
		return ""
	})
	for _, call := range n.driver.Calls() {
		switch r := call.Request.(type) {
		case *csi.NodeStageVolumeRequest:
			if diff := cmp.Diff(map[string]string{"color": "blue"}, r.GetVolumeContext()); diff != "" {
				n.t.Errorf("NodeStageVolume is for all pods, and gets none of them (-want +got):\n%s", diff)
			}
		case *csi.NodePublishVolumeRequest:
			volumeContext = r.GetVolumeContext()
		}
	}
	if err := pods.Delete(n.t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, "the pod is gone", func(ctx context.Context) string {
		if _, err := pods.Get(ctx, pod.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprint(err)
		}
		return ""
	})
	return pod, volumeContext
}

// podSpec is that of a pod with the claim.
func (n *smallNode) podSpec(node string) corev1.PodSpec {
	return corev1.PodSpec{
		NodeName:   node,
		Containers: []corev1.Container{{Name: "c", Image: "i", VolumeMounts: []corev1.VolumeMount{{Name: "vol", MountPath: "/data"}}}},
		Volumes: []corev1.Volume{{Name: "vol", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: n.name},
		}}},
	}
}

// createSpace creates a namespace in which pods can be created.
func createSpace(t *testing.T) string {
	t.Helper()
	client, name := clientOf(t, admin(t)), unique("agent")
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), space, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	eventually(t, "the service account of the namespace", func(ctx context.Context) string {
		if _, err := client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	return name
}

// TestRegistrarAsksForPodInformation is seed 002 as a whole: a registrar with --requires-publish-pod registers a driver with a
// node agent, and the driver gets the pod in NodePublishVolume, by the names of the seed. Without the flag it does not.
func TestRegistrarAsksForPodInformation(t *testing.T) {
	namespace := createSpace(t)
	cases := map[string]struct {
		reason string
		asks   bool
	}{
		"Asks":       {reason: "the driver needs the pod", asks: true},
		"DoesNotAsk": {reason: "the driver would refuse keys that it does not know"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			n := newSmallNode(t, "pod-information-"+strings.ToLower(name), func(o *registrar.Options) { o.RequiresPublishPod = tc.asks })
			n.createClaim(namespace)
			pod, got := n.runPod(namespace)
			want := map[string]string{"color": "blue"}
			if tc.asks {
				want["csi.kubernetes.io/pod.name"], want["csi.kubernetes.io/pod.namespace"] = pod.Name, namespace
				want["csi.kubernetes.io/pod.uid"], want["csi.kubernetes.io/serviceAccount.name"] = string(pod.UID), "default"
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: volume context (-want +got):\n%s", tc.reason, diff)
			}
			if !slices.ContainsFunc(n.driver.Calls(), func(c csitest.Call) bool { return c.Method == "NodeUnpublishVolume" }) {
				t.Errorf("the volume was not unpublished: %v", n.driver.Calls())
			}
		})
	}
}

// TestLifecycleModesAreValidated is test item T5 of seed 003: the API server takes only lifecycle modes that it knows, adds the
// default, and does not let them be changed.
func TestLifecycleModesAreValidated(t *testing.T) {
	drivers := clientOf(t, admin(t)).StorageV1().CSIDrivers()
	create := func(modes ...storagev1.VolumeLifecycleMode) (*storagev1.CSIDriver, error) {
		object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: unique("modes") + ".example.com"}}
		object.Spec.VolumeLifecycleModes = modes
		created, err := drivers.Create(t.Context(), object, metav1.CreateOptions{})
		t.Cleanup(func() { _ = drivers.Delete(context.Background(), object.Name, metav1.DeleteOptions{}) })
		return created, err
	}
	for _, mode := range []storagev1.VolumeLifecycleMode{"x", "ephemeral"} {
		if _, err := create(mode); !apierrors.IsInvalid(err) {
			t.Errorf("mode %q: got %v, want it to be refused", mode, err)
		}
	}
	created, err := create()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}, created.Spec.VolumeLifecycleModes); diff != "" {
		t.Errorf("default (-want +got):\n%s", diff)
	}
	created.Spec.VolumeLifecycleModes = append(created.Spec.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral)
	if _, err := drivers.Update(t.Context(), created, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("another list: got %v, want it to be refused", err)
	}
}

// TestManyNodes runs three nodes in one process, which impersonates them: a claim's pod runs on each of them in turn. The driver of the first has a registrar,
// those of the others are in the process.
func TestManyNodes(t *testing.T) {
	root, err := os.MkdirTemp("", "nodes-") // the path of a socket is limited to 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	kubeconfig, err := server.plane.User("csi-node-agent", "longshore:csi-node-agent")
	if err != nil {
		t.Fatal(err)
	}
	first := &smallNode{t: t, name: "many-5", client: clientOf(t, admin(t)), driver: csitest.New(csitest.Options{
		Name: "many-5.example.com", NodeID: "many-5",
		Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}, // it does not attach
	})}
	first.createObject()
	o := nodeagent.NewOptions()
	o.Nodes, o.NodePrefix, o.FirstNode, o.RootDir, o.NodeIP, o.Kube.Kubeconfig = 3, "many", 5, root, "10.0.0.1", kubeconfig
	o.Drivers = func(node, _ string) []nodeagent.Driver {
		if node == first.name {
			return nil
		}
		return []nodeagent.Driver{{Name: first.driverName(), Conn: first.driver.OnNode(node, nil).Conn()}}
	}
	nodes := []string{"many-5", "many-6", "many-7"}
	t.Cleanup(func() {
		for _, node := range nodes {
			(&smallNode{name: node, client: first.client}).remove()
		}
	})
	background(t, "node agent", func(ctx context.Context) error { return nodeagent.Run(ctx, o) })
	namespace := createSpace(t)
	first.createClaim(namespace)
	r := registrar.NewOptions()
	r.CSI.Address = first.driver.Serve(t)
	r.KubeletRegistrationPath, r.PluginRegistrationPath = r.CSI.Address, filepath.Join(root, first.name, "plugins_registry")
	if err := os.MkdirAll(r.PluginRegistrationPath, 0o755); err != nil { //nolint:gosec // as the kubelet's
		t.Fatal(err)
	}
	background(t, "registrar", func(ctx context.Context) error { return registrar.Run(ctx, r) })
	for _, node := range nodes {
		first.runPodOn(node, namespace)
	}
}

// TestJobCompletes on a node without containers, by the annotation of its pod, and its volume is unpublished then.
func TestJobCompletes(t *testing.T) {
	namespace := createSpace(t)
	n := newSmallNode(t, "job", func(*registrar.Options) {})
	n.createClaim(namespace)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"csi.longshore.dev/exit-after": "1s"}}, Spec: n.podSpec(n.name),
	}}}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	jobs := n.client.BatchV1().Jobs(namespace)
	if _, err := jobs.Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Job is complete", func(ctx context.Context) string {
		now, err := jobs.Get(ctx, job.Name, metav1.GetOptions{})
		if err != nil || now.Status.Succeeded != 1 || now.Status.CompletionTime == nil {
			return fmt.Sprintf("status %+v: %v", now.Status, err)
		}
		return ""
	})
	eventually(t, "the volume is unpublished", func(context.Context) string {
		calls := n.driver.Calls()
		if !slices.ContainsFunc(calls, func(c csitest.Call) bool { return c.Method == "NodeUnpublishVolume" }) {
			return fmt.Sprint(calls)
		}
		return ""
	})
}
