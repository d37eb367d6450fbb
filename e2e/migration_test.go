package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	migratedDriver = "ebs.csi.aws.com"
	inTreePlugin   = "kubernetes.io/aws-ebs"
	annMigratedTo  = "pv.kubernetes.io/migrated-to"
	// migratedNode is the node's ID in the driver.
	migratedNode = "i-0123456789"
)

// migrationTest is a driver that replaces an in-tree plugin, beside the one that is installed.
type migrationTest struct {
	*story
	driver *csitest.Driver
	// metrics is the address of the provisioner's metrics.
	metrics string
}

// TestMigration lets volumes of an in-tree plugin be made, attached, detached and deleted by the driver that replaces it. The controller manager decides
// which those are.
func TestMigration(t *testing.T) {
	dev(t)
	s := newStory(t)
	m := &migrationTest{story: s, driver: csitest.New(csitest.Options{Name: migratedDriver, NodeID: migratedNode}), metrics: testbed.FreeAddress(t)}
	class := testbed.Class(s.Namespace+"-in-tree", inTreePlugin, storagev1.VolumeBindingImmediate)
	class.Parameters = map[string]string{"type": "gp3", "fsType": "xfs"}
	s.AddClass(class)
	address := m.driver.Serve(t)
	s.Run("csi-attacher", "--csi-address="+address, "--kubeconfig="+s.Dev.KubeconfigOf("csi-attacher"))
	s.Run("csi-provisioner", "--csi-address="+address, "--kubeconfig="+s.Dev.KubeconfigOf("csi-provisioner"), "--http-endpoint="+m.metrics,
		"--leader-election", "--leader-election-namespace="+devcluster.Namespace)

	s.CreateClaim("data", class.Name)
	s.WaitBound("data")
	pv := m.waitMigrated(s.Volume("data").Name)
	if source := pv.Spec.AWSElasticBlockStore; source == nil || source.FSType != "xfs" || !strings.HasPrefix(source.VolumeID, "vol-") {
		t.Errorf("the volume has the source %+v, want that of the in-tree plugin, with the file system of its class", pv.Spec.PersistentVolumeSource)
	}
	if by := pv.Annotations["pv.kubernetes.io/provisioned-by"]; by != inTreePlugin {
		t.Errorf("the volume was provisioned by %q, want %q", by, inTreePlugin)
	}
	m.attach(pv.Name)
	s.DeleteClaim("data")
	m.waitDeleted(pv.Name, "vol-"+pv.Name)

	m.deleteOld()
	m.checkMetrics()
}

// waitMigrated waits until the controller manager has marked a volume as migrated.
func (m *migrationTest) waitMigrated(name string) (pv *corev1.PersistentVolume) {
	m.T.Helper()
	m.Wait("volume "+name+" to be migrated", func(ctx context.Context) (bool, error) {
		var err error
		pv, err = m.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		return err == nil && pv.Annotations[annMigratedTo] == migratedDriver, err
	})
	return pv
}

// waitDeleted waits until a PersistentVolume is gone, and with it its volume in the driver.
func (m *migrationTest) waitDeleted(name, handle string) {
	m.T.Helper()
	m.Wait("volume "+name+" to be deleted", func(ctx context.Context) (bool, error) {
		_, err := m.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), testbed.IgnoreNotFound(err)
	})
	if slices.ContainsFunc(m.driver.Volumes(), func(v csitest.Volume) bool { return v.ID == handle }) {
		m.T.Errorf("the driver still has volume %s, whose PersistentVolume is gone", handle)
	}
}

// attach has the attacher attach a volume in in-tree form to a node, and detach it again. Of the node only its registration exists.
func (m *migrationTest) attach(name string) {
	m.T.Helper()
	node := m.Namespace + "-node"
	registration := &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: migratedDriver, NodeID: migratedNode}}},
	}
	m.Retry("register the driver on "+node, func(ctx context.Context) error {
		_, err := m.Client.StorageV1().CSINodes().Create(ctx, registration, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	m.T.Cleanup(func() { _ = m.Client.StorageV1().CSINodes().Delete(context.Background(), node, metav1.DeleteOptions{}) })
	attachment := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: migratedDriver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}},
	}
	client := m.Client.StorageV1().VolumeAttachments()
	m.Retry("attach "+name, func(ctx context.Context) error {
		_, err := client.Create(ctx, attachment, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	m.Wait("volume "+name+" to be attached", func(ctx context.Context) (bool, error) {
		got, err := client.Get(ctx, node, metav1.GetOptions{})
		return err == nil && got.Status.Attached, err
	})
	if nodes := m.nodesOf("vol-" + name); !slices.Equal(nodes, []string{migratedNode}) {
		m.T.Errorf("the driver has attached the volume to %q, want %q", nodes, migratedNode)
	}
	m.Retry("detach "+name, func(ctx context.Context) error {
		return testbed.IgnoreNotFound(client.Delete(ctx, node, metav1.DeleteOptions{}))
	})
	m.Wait("volume "+name+" to be detached", func(ctx context.Context) (bool, error) {
		_, err := client.Get(ctx, node, metav1.GetOptions{})
		return apierrors.IsNotFound(err), testbed.IgnoreNotFound(err)
	})
	if nodes := m.nodesOf("vol-" + name); len(nodes) > 0 {
		m.T.Errorf("the driver still has the volume attached to %q", nodes)
	}
}

// nodesOf returns the IDs of the nodes that the driver has attached a volume to.
func (m *migrationTest) nodesOf(handle string) []string {
	for _, v := range m.driver.Volumes() {
		if v.ID == handle {
			return v.Nodes
		}
	}
	return nil
}

// deleteOld lets the driver delete a volume that the in-tree plugin has made, with a volume ID of the form that it used. The claim of
// the volume is gone.
func (m *migrationTest) deleteOld() {
	m.T.Helper()
	m.driver.AddVolume(csitest.Volume{ID: "vol-old", Name: "old", Capacity: 16 << 20})
	name := m.Namespace + "-old"
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": inTreePlugin, annMigratedTo: migratedDriver}},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")},
			ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: m.Namespace, Name: "gone", UID: "gone"},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-east-1a/vol-old"}},
		},
	}
	m.Retry("create volume "+name, func(ctx context.Context) error {
		_, err := m.Client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	m.waitDeleted(name, "vol-old")
}

// checkMetrics verifies that the calls for these volumes are measured apart.
func (m *migrationTest) checkMetrics() {
	m.T.Helper()
	want := []string{
		`csi_sidecar_operations_seconds_count{driver_name="ebs.csi.aws.com",grpc_status_code="OK",method_name="/csi.v1.Controller/CreateVolume",migrated="true"} 1`,
		`csi_sidecar_operations_seconds_count{driver_name="ebs.csi.aws.com",grpc_status_code="OK",method_name="/csi.v1.Controller/DeleteVolume",migrated="true"} 2`,
	}
	m.Wait(fmt.Sprintf("the metrics %q", want), func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.metrics+"/metrics", nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, err
		}
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		lines := strings.Split(string(text), "\n")
		return !slices.ContainsFunc(want, func(line string) bool { return !slices.Contains(lines, line) }), err
	})
}
