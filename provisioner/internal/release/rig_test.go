package release

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/measure"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

const driver = fixtures.Driver

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// rig is a controller whose caches are filled and whose queue stands still: a test takes the steps itself.
type rig struct {
	*Controller
	*fixtures.World
	// changed has the classes of volumes that are gone.
	changed []string
}

// onRig runs a test on a rig, in virtual time, with these objects in the cluster.
func onRig(t *testing.T, test func(*testing.T, *rig), objs ...runtime.Object) {
	t.Helper()
	onRigWith(t, csitest.Options{}, test, objs...)
}

// onRigWith is onRig with another driver.
func onRigWith(t *testing.T, options csitest.Options, test func(*testing.T, *rig), objs ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{World: fixtures.NewWorld(t, options, objs...)}
		client, err := csiclient.New(csiclient.Config{Conn: r.Driver.Conn()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Wait(fixtures.Quiet(t)); err != nil {
			t.Fatal(err)
		}
		api, all := kubeapitest.New(r.Cluster.Client()), func() capabilities.Set { return capabilities.Of(client.Info(), capabilities.Features{}) }
		known := view.New(view.Config{Kube: api, Driver: driver, Shape: view.Shape{Attachments: true}, Timeout: time.Minute})
		r.Controller, err = New(Config{
			Driver: driver, Capabilities: all, Backend: backend.New(client.Controller(), 10, 10*time.Second), Kube: api, View: known, Secrets: kube.NewSecretCache(api, nil),
			VolumeChanged: func(class string, _ *corev1.VolumeNodeAffinity) { r.changed = append(r.changed, class) },
			Events:        r.Events, Metrics: measure.NewOperation(r.Registry, "controller_persistentvolume_delete", measure.Help{}, "class"), Workers: 10, Retry: flagset.NewRetry(), KubeTimeout: time.Minute, Drain: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		known.Volumes.OnChange(r.Changed)
		known.Attachments.OnChange(r.AttachmentChanged)
		defer known.Start(fixtures.Quiet(t))()
		if err := known.WaitSynced(fixtures.Quiet(t)); err != nil {
			t.Fatal(err)
		}
		r.Driver.ResetCalls()
		test(t, r)
	})
}

// step takes one step for a volume.
func (r *rig) step(pv string) {
	r.T.Helper()
	if _, err := r.reconcile(fixtures.Quiet(r.T), pv); err != nil {
		r.T.Fatal(err)
	}
}

// deleteRequest returns the only request of DeleteVolume.
func (r *rig) deleteRequest() *csi.DeleteVolumeRequest {
	r.T.Helper()
	calls := r.Driver.Calls()
	if len(calls) != 1 || calls[0].Method != "DeleteVolume" {
		r.T.Fatalf("calls %v, want one of DeleteVolume", calls)
	}
	request, _ := calls[0].Request.(*csi.DeleteVolumeRequest)
	return request
}
