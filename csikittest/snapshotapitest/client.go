// Package snapshotapitest adds the kinds of package snapshotapi to a Kubernetes API in memory, a kubetest.Cluster:
//
//	cluster := kubetest.New(claim)
//	snapshotapitest.Install(cluster)
//	err := controller.Run(ctx, cluster.Client(), snapshotapitest.New(cluster))
//
// They have their status subresources, the rules of their CustomResourceDefinitions in v1, with the messages of these, and what
// else distinguishes custom resources: no strategic patches, and no change of metadata by way of the status.
//
// Cluster.SetServed takes the kinds of a group away, and brings them back, as somebody who installs CustomResourceDefinitions.
package snapshotapitest

import (
	"context"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// Install defines the six kinds in a cluster, before all else that is done with them.
func Install(cluster *kubetest.Cluster) {
	snapshots, groups := snapshotv1.SchemeGroupVersion, groupv1.SchemeGroupVersion
	err := cluster.Define(snapshotapi.AddToScheme,
		kubetest.CustomKind{
			Resource: "volumesnapshots", Kind: "VolumeSnapshot", GroupVersion: snapshots, Namespaced: true, Status: true,
			New: func() kube.Object { return &snapshotv1.VolumeSnapshot{} }, Validate: snapshotRules().validate,
		},
		kubetest.CustomKind{
			Resource: "volumesnapshotcontents", Kind: "VolumeSnapshotContent", GroupVersion: snapshots, Status: true,
			New: func() kube.Object { return &snapshotv1.VolumeSnapshotContent{} }, Validate: contentRules().validate,
		},
		kubetest.CustomKind{
			Resource: "volumesnapshotclasses", Kind: "VolumeSnapshotClass", GroupVersion: snapshots,
			New: func() kube.Object { return &snapshotv1.VolumeSnapshotClass{} }, Validate: classRules().validate,
		},
		kubetest.CustomKind{
			Resource: "volumegroupsnapshots", Kind: "VolumeGroupSnapshot", GroupVersion: groups, Namespaced: true, Status: true,
			New: func() kube.Object { return &groupv1.VolumeGroupSnapshot{} }, Validate: groupRules().validate,
		},
		kubetest.CustomKind{
			Resource: "volumegroupsnapshotcontents", Kind: "VolumeGroupSnapshotContent", GroupVersion: groups, Status: true,
			New: func() kube.Object { return &groupv1.VolumeGroupSnapshotContent{} }, Validate: groupContentRules().validate,
		},
		kubetest.CustomKind{
			Resource: "volumegroupsnapshotclasses", Kind: "VolumeGroupSnapshotClass", GroupVersion: groups,
			New: func() kube.Object { return &groupv1.VolumeGroupSnapshotClass{} }, Validate: groupClassRules().validate,
		},
	)
	if err != nil {
		panic(err) // the types are constants
	}
}

// New returns a client of the kinds, which Install has added to the cluster.
func New(from kubetest.Connection) snapshotapi.Client { return client{from} }

type client struct{ from kubetest.Connection }

// VolumeSnapshots implements snapshotapi.Client.
func (c client) VolumeSnapshots(namespace string) snapshotapi.VolumeSnapshots {
	return kubetest.ResourceOf[*snapshotv1.VolumeSnapshot, snapshotv1.VolumeSnapshotList](c.from, "volumesnapshots", namespace)
}

// VolumeSnapshotContents implements snapshotapi.Client.
func (c client) VolumeSnapshotContents() snapshotapi.VolumeSnapshotContents {
	return kubetest.ResourceOf[*snapshotv1.VolumeSnapshotContent, snapshotv1.VolumeSnapshotContentList](c.from, "volumesnapshotcontents", "")
}

// VolumeSnapshotClasses implements snapshotapi.Client.
func (c client) VolumeSnapshotClasses() snapshotapi.VolumeSnapshotClasses {
	return kubetest.ResourceOf[*snapshotv1.VolumeSnapshotClass, snapshotv1.VolumeSnapshotClassList](c.from, "volumesnapshotclasses", "")
}

// VolumeGroupSnapshots implements snapshotapi.Client.
func (c client) VolumeGroupSnapshots(namespace string) snapshotapi.VolumeGroupSnapshots {
	return kubetest.ResourceOf[*groupv1.VolumeGroupSnapshot, groupv1.VolumeGroupSnapshotList](c.from, "volumegroupsnapshots", namespace)
}

// VolumeGroupSnapshotContents implements snapshotapi.Client.
func (c client) VolumeGroupSnapshotContents() snapshotapi.VolumeGroupSnapshotContents {
	return kubetest.ResourceOf[*groupv1.VolumeGroupSnapshotContent, groupv1.VolumeGroupSnapshotContentList](c.from, "volumegroupsnapshotcontents", "")
}

// VolumeGroupSnapshotClasses implements snapshotapi.Client.
func (c client) VolumeGroupSnapshotClasses() snapshotapi.VolumeGroupSnapshotClasses {
	return kubetest.ResourceOf[*groupv1.VolumeGroupSnapshotClass, groupv1.VolumeGroupSnapshotClassList](c.from, "volumegroupsnapshotclasses", "")
}

// Served implements snapshotapi.Client. The version is v1.
func (c client) Served(ctx context.Context) (version string, served bool, err error) {
	served, err = kubetest.IsServed(ctx, c.from, snapshotapi.GroupSnapshotGroup)
	if !served || err != nil {
		return "", false, err
	}
	return groupv1.SchemeGroupVersion.Version, true, nil
}
