package snapshotcontroller

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/component"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/reconciletest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

// TestFlows plays the transcripts. The arguments of "start" are flags. The test plays csi-snapshotter by patching contents.
func TestFlows(t *testing.T) {
	kinds := reconciletest.Kinds{Install: snapshotapitest.Install, Related: related, Instant: 20 * time.Millisecond}
	reconciletest.RunWith(t, "testdata/flows", kinds, func(ctx context.Context, env *reconciletest.Env) error {
		o := NewOptions()
		fs := flag.NewFlagSet("start", flag.ContinueOnError)
		o.AddFlags(fs)
		for name, value := range env.Args {
			if err := fs.Set(name, value); err != nil {
				return fmt.Errorf("--%s=%s: %w", name, value, err)
			}
		}
		// Claims have a queue of their own: their writes come after those of snapshots that are made at the same time.
		env.Cluster.SetLatency("persistentvolumeclaims", time.Millisecond)
		return component.Run(ctx, o.component(inMemory(env.Kube, "host-1")))
	})
}

var errNotInMemory = errors.New("the client is not one of kubetest")

// inMemory returns the connections to an API server in memory, by a client of it.
func inMemory(client kube.Client, host string) connections {
	connection, ok := client.(kubetest.Connection)
	if !ok {
		panic(errNotInMemory)
	}
	return connections{kube: client, snapshots: snapshotapitest.New(connection), host: host}
}

// related joins a snapshot, its claim and its content, and a group with its content. The members of a group are worked on concurrently.
func related(obj kube.Object) []string {
	ref := func(kind, namespace, name string) string { return kind + " " + namespace + "/" + name }
	switch o := obj.(type) {
	case *snapshotv1.VolumeSnapshot:
		names := []string{"volumesnapshotcontent " + snapshotapi.ContentName(o.UID)}
		if claim := o.Spec.Source.PersistentVolumeClaimName; claim != nil {
			names = append(names, ref("claim", o.Namespace, *claim))
		}
		return names
	case *snapshotv1.VolumeSnapshotContent:
		return []string{ref("volumesnapshot", o.Spec.VolumeSnapshotRef.Namespace, o.Spec.VolumeSnapshotRef.Name)}
	case *groupv1.VolumeGroupSnapshotContent:
		return []string{ref("volumegroupsnapshot", o.Spec.VolumeGroupSnapshotRef.Namespace, o.Spec.VolumeGroupSnapshotRef.Name)}
	case *corev1.Event:
		return nil
	}
	return nil
}
