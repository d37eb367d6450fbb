// Package kubeapitest adds the kinds of package kubeapi to a Kubernetes API in memory, a kubetest.Cluster: snapshots, ReferenceGrants, CSIStorageCapacity
// objects, and the kinds that own pods.
package kubeapitest

import (
	"context"
	"errors"

	appsv1 "k8s.io/api/apps/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapi"
)

// NewCluster returns a cluster that has all kinds, and these objects.
func NewCluster(objs ...runtime.Object) *kubetest.Cluster {
	cluster := kubetest.New()
	Install(cluster)
	if err := cluster.Apply(objs...); err != nil {
		panic(err) // a mistake of the test
	}
	return cluster
}

// Install defines the kinds in a cluster, before all else that is done with them.
func Install(cluster *kubetest.Cluster) {
	snapshotapitest.Install(cluster)
	grants, _ := kubeapi.GrantVersions()
	err := errors.Join(
		cluster.Define(kubeapi.AddToScheme,
			kubetest.CustomKind{Resource: "referencegrants", Kind: "ReferenceGrant", GroupVersion: grants, Namespaced: true, New: func() kube.Object { return &kubeapi.ReferenceGrant{} }},
			kubetest.CustomKind{
				Resource: "csistoragecapacities", Kind: "CSIStorageCapacity", GroupVersion: storagev1.SchemeGroupVersion, Namespaced: true,
				New: func() kube.Object { return &storagev1.CSIStorageCapacity{} },
			},
		),
		cluster.Define(appsv1.AddToScheme,
			kubetest.CustomKind{Resource: "replicasets", Kind: "ReplicaSet", GroupVersion: appsv1.SchemeGroupVersion, Namespaced: true, New: func() kube.Object { return &appsv1.ReplicaSet{} }},
			kubetest.CustomKind{Resource: "deployments", Kind: "Deployment", GroupVersion: appsv1.SchemeGroupVersion, Namespaced: true, New: func() kube.Object { return &appsv1.Deployment{} }},
		),
	)
	if err != nil {
		panic(err) // the types are constants
	}
}

// New returns a client of all kinds, over a client of the kinds that csikit knows, which must be one of a cluster with Install.
func New(other kube.Client) kubeapi.Client {
	from, ok := other.(kubetest.Connection)
	if !ok {
		panic("the client is none of a kubetest.Cluster")
	}
	return client{core: other, Client: snapshotapitest.New(from), from: from}
}

type core = kube.Client

type client struct {
	core
	snapshotapi.Client

	from kubetest.Connection
}

// ReferenceGrants implements kubeapi.Client.
func (c client) ReferenceGrants(namespace string) kubeapi.ReferenceGrants {
	return kubetest.ResourceOf[*kubeapi.ReferenceGrant, kubeapi.ReferenceGrantList](c.from, "referencegrants", namespace)
}

// CSIStorageCapacities implements kubeapi.Client.
func (c client) CSIStorageCapacities(namespace string) kubeapi.CSIStorageCapacities {
	return kubetest.ResourceOf[*storagev1.CSIStorageCapacity, storagev1.CSIStorageCapacityList](c.from, "csistoragecapacities", namespace)
}

// Owner implements kubeapi.Client.
func (c client) Owner(ctx context.Context, namespace string, ref metav1.OwnerReference) (*metav1.PartialObjectMetadata, error) {
	var owner kube.Object
	var err error
	if ref.Kind == "ReplicaSet" {
		owner, err = kubetest.ResourceOf[*appsv1.ReplicaSet, appsv1.ReplicaSetList](c.from, "replicasets", namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	} else {
		owner, err = kubetest.ResourceOf[*appsv1.Deployment, appsv1.DeploymentList](c.from, "deployments", namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	}
	if err != nil {
		return nil, err
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owner.GetOwnerReferences()}}, nil
}
