package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/rights"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const selectedNode = "volume.kubernetes.io/selected-node"

// uses are scenes that together use every right of the components.
func uses() map[string]func(*story) {
	return map[string]func(*story){
		"Life":            (*story).lifeWithSecrets,
		"AttributesClass": (*story).attributesClass,
		"SecondPair":      (*story).secondPair,
		"GoneNode":        (*story).goneNode,
		"ForeignVolume":   (*story).foreignVolume,
		"StrayAttachment": (*story).strayAttachments,
		"Snapshots":       (*story).snapshots,
		"StrayContents":   (*story).strayContents,
		"Capacity":        (*story).capacity,
		"Killed":          (*story).killedProvisioner,
	}
}

// lifeWithSecrets is the life of a volume whose class names secrets for all of it.
func (s *story) lifeWithSecrets() {
	s.createSecret("keys")
	class := testbed.Class(s.Namespace+"-secrets", s.Driver, storagev1.VolumeBindingImmediate)
	class.Parameters = map[string]string{}
	for _, what := range []string{"provisioner", "controller-publish", "controller-expand"} {
		class.Parameters["csi.storage.k8s.io/"+what+"-secret-name"] = "keys"
		class.Parameters["csi.storage.k8s.io/"+what+"-secret-namespace"] = s.Namespace
	}
	s.AddClass(class)
	s.CreateClaim("data", class.Name)
	s.bound()
	s.createPod()
	s.running()
	s.deletePod()
	s.Grow("data", "32Mi")
	s.Retry("wait for the new size", func(ctx context.Context) error { return s.grown(ctx, "data", "32Mi") })
	s.deleteClaim()
	s.WaitNothingLeft()
}

// killedProvisioner is a volume that its provisioner was killed over, and whose claim is gone when the next one starts: before that deletes the volume, it asks what
// has become of the claim.
func (s *story) killedProvisioner() {
	l := &leakTest{
		story: s, form: alone, name: s.Namespace + ".killed.example.com", class: s.Namespace + "-killed", logs: filepath.Join(s.T.TempDir(), "log"),
		kubeconfig: s.Dev.KubeconfigOf("csi-provisioner"), address: filepath.Join(s.T.TempDir(), "csi.sock"), counts: map[string]int{},
	}
	l.driver = csitest.New(csitest.Options{Name: l.name})
	l.driver.ServeAt(s.T, l.address)
	l.driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Hang: true, Times: 1})
	s.AddClass(testbed.Class(l.class, l.name, storagev1.VolumeBindingImmediate))
	l.start()
	s.CreateClaim("data", l.class)
	s.Wait("the volume to be made", func(context.Context) (bool, error) { return len(l.driver.Volumes()) == 1, nil })
	l.kill("kill")
	s.deleteClaim()
	l.start()
	s.Wait("the volume to be deleted", func(context.Context) (bool, error) { return len(l.driver.Volumes()) == 0, nil })
	l.kill("term")
}

// goneNode is a claim whose pod was scheduled to a node that is no more: the claim goes back to the scheduler.
func (s *story) goneNode() {
	claim := testbed.Claim(s.Namespace, "data", s.LateClass())
	claim.Annotations = map[string]string{selectedNode: "no-such-node"}
	s.AddClaim(claim)
	s.Wait("the node to be taken from the claim", func(ctx context.Context) (bool, error) {
		c, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		return err == nil && c.Annotations[selectedNode] == "", err
	})
}

// foreignVolume is a claim whose volume cannot be saved: while the driver made it, somebody has taken its name.
func (s *story) foreignVolume() {
	s.Signal(controllerDriver, "STOP")
	s.createClaim()
	s.provisioning()
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(s.Claim("data").UID)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
		},
	}
	s.Retry("create volume "+volume.Name, func(ctx context.Context) error {
		_, err := s.Client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	s.Signal(controllerDriver, "CONT")
	s.WaitEvent("ProvisioningFailed", "exists already")
	s.deleteClaim()
	s.Retry("delete volume "+volume.Name, func(ctx context.Context) error {
		return testbed.IgnoreNotFound(s.Client.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, metav1.DeleteOptions{}))
	})
	s.WaitNothingLeft()
}

// strayAttachments ask for a volume on a node that is not there, and for a volume that is not there.
func (s *story) strayAttachments() {
	s.createClaim()
	s.bound()
	for name, spec := range map[string]storagev1.VolumeAttachmentSpec{
		"node":   {NodeName: "no-such-node", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new(s.Volume("data").Name)}},
		"volume": {NodeName: s.node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("no-such-volume")}},
	} {
		spec.Attacher = s.Driver
		a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace + "-" + name}, Spec: spec}
		s.failAttachment(a)
		s.deleteAttachment(a)
	}
	s.deleteClaim()
	s.WaitNothingLeft()
}

// failAttachment asks for a volume on a node, and waits until that has failed.
func (s *story) failAttachment(a *storagev1.VolumeAttachment) {
	client := s.Client.StorageV1().VolumeAttachments()
	s.Retry("create attachment "+a.Name, func(ctx context.Context) error {
		_, err := client.Create(ctx, a, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	s.Wait("attachment "+a.Name+" to fail", func(ctx context.Context) (bool, error) {
		got, err := client.Get(ctx, a.Name, metav1.GetOptions{})
		return err == nil && got.Status.AttachError != nil, err
	})
}

func (s *story) deleteAttachment(a *storagev1.VolumeAttachment) {
	s.Retry("delete attachment "+a.Name, func(ctx context.Context) error {
		return testbed.IgnoreNotFound(s.Client.StorageV1().VolumeAttachments().Delete(ctx, a.Name, metav1.DeleteOptions{}))
	})
}

// secondPair is another pair of sidecars, for a driver of another name, with leader election, and with lists in place of
// streams, as for API servers of old. What the resizer lists only when a claim needs it is listed before.
func (s *story) secondPair() {
	s.expansion()
	driver := csitest.New(csitest.Options{
		Name: "second.example.com", Topology: map[string]string{"second.example.com/zone": "a"},
		Controller:      append(csitest.AllController(), csitest.AllSnapshots()...),
		GroupController: csitest.AllGroupController(),
	})
	address := driver.Serve(s.T)
	var ends []func()
	start := func(component string) {
		args := []string{"--kubeconfig=" + s.Dev.KubeconfigOf(component), "--leader-election", "--leader-election-namespace=" + devcluster.Namespace}
		switch component {
		case "snapshot-controller":
			args = append(args, "--enable-distributed-snapshotting")
		case "csi-provisioner":
			args = append(args, "--enable-capacity", "--capacity-ownerref-level=-1", "--csi-address="+address)
		default:
			args = append(args, "--csi-address="+address)
		}
		ends = append(ends, s.RunWith([]string{"NAMESPACE=" + devcluster.Namespace, fmt.Sprint("POD_NAME=second-", len(ends))}, component, args...))
	}
	leases := []string{
		"second-example-com", "external-attacher-leader-second-example-com", "external-resizer-second-example-com",
		"external-snapshotter-leader-second-example-com", "snapshot-controller-leader",
	}
	for _, component := range rights.Components() {
		start(component)
	}
	s.waitHolders(leases, true)
	s.waitAsked("list")
	for _, component := range rights.Components() {
		start(component) // it waits for the Lease
	}
	s.waitAsked("watch leases")
	for _, end := range ends {
		end()
	}
	s.waitHolders(leases, false) // a holder that ends in peace gives the lease back
}

// waitAsked waits until all rights that begin so have been used: a verb, or a verb and a resource.
func (s *story) waitAsked(begin string) {
	rules, err := rights.Granted()
	if err != nil {
		s.T.Fatal(err)
	}
	s.Wait("all requests that begin with "+begin, func(context.Context) (bool, error) {
		calls, err := rights.Asked(s.Dev)
		return !slices.ContainsFunc(rules.Without(calls), func(right string) bool { return strings.Contains(right, ": "+begin) }), err
	})
}

// attributesClass is a claim that names a VolumeAttributesClass which is not there. Its driver takes mutable parameters, and is
// reached from everywhere.
func (s *story) attributesClass() {
	driver := csitest.New(csitest.Options{Name: "modifying.example.com"})
	class := testbed.Class(s.Namespace+"-modifying", "modifying.example.com", storagev1.VolumeBindingImmediate)
	s.AddClass(class)
	s.Run("csi-provisioner", "--csi-address="+driver.Serve(s.T), "--kubeconfig="+s.Dev.KubeconfigOf("csi-provisioner"))
	claim := testbed.Claim(s.Namespace, "data", class.Name)
	claim.Spec.VolumeAttributesClassName = new("no-such-class")
	s.AddClaim(claim)
	s.WaitEvent("ProvisioningFailed", `get VolumeAttributesClass "no-such-class"`)
}

// expansion is a claim that names a VolumeAttributesClass, and grows while a pod uses its volume, which the driver expands only while it is
// not in use: the resizer looks at attachments and pods. The pod fits on no node, so that the volume is not attached.
func (s *story) expansion() {
	const name = "offline.example.com"
	driver := csitest.New(csitest.Options{Name: name, OfflineExpansion: true, Node: []csi.NodeServiceCapability_RPC_Type{}})
	address := driver.Serve(s.T)
	class := testbed.Class(s.Namespace+"-offline", name, storagev1.VolumeBindingImmediate)
	s.AddClass(class)
	s.addAttributesClass(AttributesClass(s.Namespace, name, map[string]string{"iops": "1000"}))
	for _, component := range []string{"csi-provisioner", "csi-resizer"} {
		s.Run(component, "--csi-address="+address, "--kubeconfig="+s.Dev.KubeconfigOf(component))
	}
	s.CreateClaim("data", class.Name)
	s.WaitBound("data")
	s.CreatePodOn("no-such-node", "pod", testbed.FromClaim("data"))
	s.moveTo("data", s.Namespace)
	s.waitModified("data", s.Namespace)
	s.Grow("data", "32Mi")
	s.WaitEvent("VolumeResizeFailed", `volume is used by pod "pod"`)
	s.deletePod()
	s.Retry("wait for the new size", func(ctx context.Context) error { return s.grown(ctx, "data", "32Mi") })
	s.deleteClaim()
	s.WaitNothingLeft()
}

// capacity is a provisioner in a pod of a Deployment, which owns the CSIStorageCapacity objects of a driver. A user removes a label by which the
// provisioner knows its objects: it finds that one of this name is there already.
func (s *story) capacity() {
	const name, namespace = "capacity", devcluster.Namespace
	driver := csitest.New(csitest.Options{Name: "capacity.example.com"})
	s.createWorkload(namespace, name)
	pod := s.podOf(namespace, name)
	class := testbed.Class(s.Namespace+"-capacity", "capacity.example.com", storagev1.VolumeBindingWaitForFirstConsumer)
	s.AddClass(class)
	s.RunWith([]string{"NAMESPACE=" + namespace, "POD_NAME=" + pod.Name}, "csi-provisioner", "--csi-address="+driver.Serve(s.T),
		"--kubeconfig="+s.Dev.KubeconfigOf("csi-provisioner"), "--enable-capacity", "--capacity-ownerref-level=2")
	want := map[string]published{"": {Capacity: "1Ti", Largest: "1Ti", Manager: manager, Owner: "Deployment/" + name}}
	s.waitPublished("capacity.example.com", class.Name, want)
	s.Retry("take off the label", func(ctx context.Context) error {
		objects, err := s.Client.StorageV1().CSIStorageCapacities(namespace).List(ctx, metav1.ListOptions{LabelSelector: driverLabel + "=capacity.example.com"})
		for _, o := range objects.Items {
			patch := []byte(`{"metadata":{"labels":{"` + managerLabel + `":null}}}`)
			_, err = s.Client.StorageV1().CSIStorageCapacities(namespace).Patch(ctx, o.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return err
	})
	s.waitPublished("capacity.example.com", class.Name, want)
	s.Retry("delete the class", func(ctx context.Context) error {
		return testbed.IgnoreNotFound(s.Client.StorageV1().StorageClasses().Delete(ctx, class.Name, metav1.DeleteOptions{}))
	})
	s.waitPublished("capacity.example.com", class.Name, map[string]published{})
}

func (s *story) waitHolders(leases []string, want bool) {
	for _, name := range leases {
		s.Wait(fmt.Sprintf("lease %s to have a holder: %t", name, want), func(ctx context.Context) (bool, error) {
			lease, err := s.Client.CoordinationV1().Leases(devcluster.Namespace).Get(ctx, name, metav1.GetOptions{})
			return err == nil && (lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "") == want, err
		})
	}
}
