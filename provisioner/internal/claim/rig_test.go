package claim

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/migration"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/nodemode"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// rig is a controller whose caches are filled and whose queues stand still: a test takes the steps itself.
type rig struct {
	*Controller
	*fixtures.World
}

// onRig runs a test on a rig, in virtual time, with these objects in the cluster.
func onRig(t *testing.T, test func(*testing.T, *rig), objs ...runtime.Object) {
	t.Helper()
	onRigWith(t, csitest.Options{}, rigSettings(), test, objs...)
}

// onRigWith is onRig with another driver and other settings.
func onRigWith(t *testing.T, options csitest.Options, settings Settings, test func(*testing.T, *rig), objs ...runtime.Object) {
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
		api := kubeapitest.New(r.Cluster.Client())
		var competition Competition
		if settings.Node.Alone() {
			competition = newCompetition(settings.Node.Name, 20*time.Second, api, r.Events)
		}
		r.Controller, err = New(Config{
			Competition: competition,
			Info:        client.Info, Driver: client.Controller(), Kube: api, View: viewOf(api, client.Info(), settings), Plugin: migration.Of(client.Info().Name), Events: r.Events,
			Journal: journal.New(), Secrets: kube.NewSecretCache(api, nil), Metrics: NewMetrics(r.Registry), Settings: settings,
		})
		if err != nil {
			t.Fatal(err)
		}
		stop := r.view.Start(fixtures.Quiet(t))
		defer stop()
		if err := r.view.WaitSynced(fixtures.Quiet(t)); err != nil {
			t.Fatal(err)
		}
		r.Driver.ResetCalls()
		test(t, r)
	})
}

// newCompetition returns the competition of an instance with the defaults of the binary, but for the pauses.
func newCompetition(node string, base time.Duration, api kubeapi.Client, recorder events.Recorder) Competition {
	return nodemode.New(nodemode.Config{Node: node, BaseDelay: base, MaxDelay: 3 * base, Nodes: api.Nodes(), Timeout: 30 * time.Second, Warn: WarnOfFailure(recorder)})
}

// newNode returns the node of an instance on each.
func newNode() view.Node {
	return view.Node{Name: "n1", Segments: map[string]string{"node": "n1"}}
}

// viewOf returns a view for a controller with these settings.
func viewOf(api kubeapi.Client, info *csiclient.Info, settings Settings) *view.View {
	return view.New(view.Config{
		Kube: api, Driver: info.Name, Plugin: migration.Of(info.Name), Shape: capabilities.ShapeOf(info, settings.Features), Node: settings.Node, Naming: settings.Naming,
		SnapshotSweep: 5 * time.Minute, Timeout: settings.KubeTimeout,
	})
}

// saveOn runs the queue of unsaved volumes for some time.
func (r *rig) saveOn(d time.Duration, meanwhile func()) {
	r.T.Helper()
	ctx, stop := context.WithCancel(fixtures.Quiet(r.T))
	ended := make(chan error, 1)
	go func() { ended <- r.unsaved.Run(ctx) }()
	time.Sleep(d)
	meanwhile()
	stop()
	if err := <-ended; err != nil {
		r.T.Error(err)
	}
}

// rigSettings are the defaults of the binary.
func rigSettings() Settings {
	return Settings{
		Naming: volume.Naming{Prefix: "pvc", UUIDLength: -1}, Timeout: 10 * time.Second, Workers: 10,
		Retry: flagset.NewRetry(), Topology: topology.DefaultPolicy(), Identity: "me",
		Features: capabilities.Features{Topology: true, AttributesClass: true}, Drain: 15 * time.Second, KubeTimeout: 30 * time.Second,
	}
}

// deleteRequest returns the only request of DeleteVolume.
func (r *rig) deleteRequest() *csi.DeleteVolumeRequest {
	r.T.Helper()
	var found []proto.Message
	for _, call := range r.Driver.Calls() {
		if call.Method == "DeleteVolume" {
			found = append(found, call.Request)
		}
	}
	if len(found) != 1 {
		r.T.Fatalf("%d calls of DeleteVolume, want 1", len(found))
	}
	request, _ := found[0].(*csi.DeleteVolumeRequest)
	return request
}

// waiting returns the lengths of the queues of claims and of volumes.
func (r *rig) waiting() [2]int {
	return [2]int{r.claims.State().Waiting, r.release.State().Waiting}
}
