package provisioner

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// TestMigratedLabel verifies that calls for volumes of an in-tree plugin are measured apart, with no other call than usual.
func TestMigratedLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "ebs.csi.aws.com"
		class, old, claim, migrated, unwanted := newClass(), newClass(), newClaim("a"), newClaim("b"), newClaim("c")
		class.Provisioner, old.Provisioner, old.Name = name, "kubernetes.io/aws-ebs", "old"
		for _, c := range []*corev1.PersistentVolumeClaim{claim, migrated, unwanted} {
			c.Annotations["volume.kubernetes.io/storage-provisioner"] = name
			if c != claim {
				c.Spec.StorageClassName = &old.Name
			}
		}
		cluster, driver := kubeapitest.NewCluster(class, old), csitest.New(csitest.Options{Name: name})
		p := launch(t, "only", cluster, driver, NewOptions())
		apply(t, cluster, claim, migrated)
		pass(10 * time.Second)
		// The claim of the third volume is deleted before the driver confirms the volume.
		driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Hang: true, Times: 1})
		apply(t, cluster, unwanted)
		pass(time.Second)
		if err := cluster.Remove("persistentvolumeclaims", "team", "c"); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if n := len(driver.Volumes()); n != 2 {
			t.Fatalf("the driver has %d volumes, want 2", n)
		}
		// The claims go first: one that exists without its volume gets another one.
		if err := errors.Join(cluster.Remove("persistentvolumeclaims", "team", "a"), cluster.Remove("persistentvolumeclaims", "team", "b")); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		for _, obj := range cluster.Objects("persistentvolumes") {
			pv, _ := obj.(*corev1.PersistentVolume)
			if pv.Spec.CSI == nil {
				pv.Annotations[volume.AnnMigratedTo] = name // as the controller manager does
			}
			pv.Status.Phase = corev1.VolumeReleased
			apply(t, cluster, pv)
		}
		pass(10 * time.Second)
		got := callsByLabel(t, p.env.Registerer)
		want := map[string]uint64{
			"/csi.v1.Controller/CreateVolume true": 3, "/csi.v1.Controller/CreateVolume false": 1,
			"/csi.v1.Controller/DeleteVolume true": 2, "/csi.v1.Controller/DeleteVolume false": 1,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("calls by method and label (-want +got):\n%s", diff)
		}
		p.stop(t)
	})
}

// callsByLabel counts the calls of CreateVolume and DeleteVolume that were measured, by method and the label migrated.
func callsByLabel(t *testing.T, registerer prometheus.Registerer) map[string]uint64 {
	t.Helper()
	registry, _ := registerer.(prometheus.Gatherer)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]uint64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if method := labels[metrics.LabelMethod]; family.GetName() == metrics.SidecarOperations && strings.HasSuffix(method, "eVolume") {
				calls[method+" "+labels[metrics.LabelMigrated]] += metric.GetHistogram().GetSampleCount()
			}
		}
	}
	return calls
}
