package snapshotter

import (
	"context"
	"flag"
	"fmt"
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/reconciletest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

// TestFlows plays the transcripts. The arguments of "start" are flags, and node, the name of the node.
func TestFlows(t *testing.T) {
	t.Setenv(EnvNodeName, "node-1")
	kinds := reconciletest.Kinds{Install: snapshotapitest.Install, Related: related}
	reconciletest.RunWith(t, "testdata/flows", kinds, func(ctx context.Context, env *reconciletest.Env) error {
		o := NewOptions()
		if node, ok := env.Args["node"]; ok {
			o.NodeName = node
			delete(env.Args, "node")
		}
		fs := flag.NewFlagSet("start", flag.ContinueOnError)
		o.AddFlags(fs)
		for name, value := range env.Args {
			if err := fs.Set(name, value); err != nil {
				return fmt.Errorf("--%s=%s: %w", name, value, err)
			}
		}
		config := o.sidecar(snapshotapitest.New(env.Session))
		config.Client, config.Host, config.CSI.Conn = env.Kube, "host-1", env.Conn
		return sidecar.Run(ctx, config)
	})
}

// related joins a content with the calls about its snapshot, which have the UID or the handle.
func related(obj kube.Object) []string {
	names := func(uid types.UID, handle *string) []string {
		list := []string{"snapshot " + string(uid)}
		if handle != nil {
			list = append(list, "snapshot "+*handle)
		}
		return list
	}
	switch o := obj.(type) {
	case *snapshotv1.VolumeSnapshotContent:
		return names(o.Spec.VolumeSnapshotRef.UID, o.Spec.Source.SnapshotHandle)
	case *groupv1.VolumeGroupSnapshotContent:
		if handles := o.Spec.Source.GroupSnapshotHandles; handles != nil {
			return names(o.Spec.VolumeGroupSnapshotRef.UID, &handles.VolumeGroupSnapshotHandle)
		}
		return names(o.Spec.VolumeGroupSnapshotRef.UID, nil)
	}
	return nil
}
