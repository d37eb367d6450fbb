// Package kubeapi is the client of kinds that the provisioner alone uses, of the shape that csikit/kube gives all others:
// snapshots, which are custom resources and may be absent from a cluster.
//
// Only the types are upstream's: its clientset links all of client-go's, 17 MiB in place of 32 KiB.
package kubeapi

import (
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// Resources of the kinds in Client.
type (
	// VolumeSnapshots reads and writes VolumeSnapshots.
	VolumeSnapshots = kube.Resource[*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotList]
	// VolumeSnapshotContents reads and writes VolumeSnapshotContents.
	VolumeSnapshotContents = kube.Resource[*snapshotv1.VolumeSnapshotContent, *snapshotv1.VolumeSnapshotContentList]
)

// Client gives access to all kinds that the provisioner touches. The namespace "" means all namespaces where lists and
// watches are concerned.
type Client interface {
	kube.Client
	VolumeSnapshots(namespace string) VolumeSnapshots
	VolumeSnapshotContents() VolumeSnapshotContents
}

// IsAbsent tells whether the server has no such kind, as opposed to no such object: its CustomResourceDefinition is not
// installed. The path then leads nowhere, and the answer is no Status of the API.
func IsAbsent(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// client implements Client over one REST client per API group.
type client struct {
	kube.Client
	snapshots rest.Interface
	params    runtime.ParameterCodec
}

var _ Client = (*client)(nil)

// New returns a client for cfg that leaves all other kinds to others. Nothing is sent yet.
func New(cfg *rest.Config, others kube.Client) (Client, error) {
	scheme := runtime.NewScheme()
	if err := snapshotv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("make a scheme of %s: %w", snapshotv1.SchemeGroupVersion, err)
	}
	c := &client{Client: others, params: runtime.NewParameterCodec(scheme)}
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath, cfg.GroupVersion = "/apis", &snapshotv1.SchemeGroupVersion
	cfg.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	// Custom resources have no protobuf.
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	snapshots, err := rest.RESTClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s for %q: %w", snapshotv1.SchemeGroupVersion, cfg.Host, err)
	}
	c.snapshots = snapshots
	return c, nil
}

// VolumeSnapshots implements Client.
func (c *client) VolumeSnapshots(namespace string) VolumeSnapshots {
	return typed[snapshotv1.VolumeSnapshot, snapshotv1.VolumeSnapshotList](c.snapshots, c.params, "volumesnapshots", namespace)
}

// VolumeSnapshotContents implements Client.
func (c *client) VolumeSnapshotContents() VolumeSnapshotContents {
	return typed[snapshotv1.VolumeSnapshotContent, snapshotv1.VolumeSnapshotContentList](c.snapshots, c.params, "volumesnapshotcontents", "")
}
