package snapshotapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// Resources of the kinds in Client.
type (
	// VolumeSnapshots reads and writes VolumeSnapshots.
	VolumeSnapshots = kube.Resource[*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotList]
	// VolumeSnapshotContents reads and writes VolumeSnapshotContents.
	VolumeSnapshotContents = kube.Resource[*snapshotv1.VolumeSnapshotContent, *snapshotv1.VolumeSnapshotContentList]
	// VolumeSnapshotClasses reads and writes VolumeSnapshotClasses.
	VolumeSnapshotClasses = kube.Resource[*snapshotv1.VolumeSnapshotClass, *snapshotv1.VolumeSnapshotClassList]
	// VolumeGroupSnapshots reads and writes VolumeGroupSnapshots.
	VolumeGroupSnapshots = kube.Resource[*groupv1.VolumeGroupSnapshot, *groupv1.VolumeGroupSnapshotList]
	// VolumeGroupSnapshotContents reads and writes VolumeGroupSnapshotContents.
	VolumeGroupSnapshotContents = kube.Resource[*groupv1.VolumeGroupSnapshotContent, *groupv1.VolumeGroupSnapshotContentList]
	// VolumeGroupSnapshotClasses reads and writes VolumeGroupSnapshotClasses.
	VolumeGroupSnapshotClasses = kube.Resource[*groupv1.VolumeGroupSnapshotClass, *groupv1.VolumeGroupSnapshotClassList]
)

// Client gives access to snapshots and group snapshots. The namespace "" means all namespaces where lists and watches are
// concerned.
type Client interface {
	VolumeSnapshots(namespace string) VolumeSnapshots
	VolumeSnapshotContents() VolumeSnapshotContents
	VolumeSnapshotClasses() VolumeSnapshotClasses

	// The kinds of group snapshots are read and written in the version that Served has found, v1 at first.
	VolumeGroupSnapshots(namespace string) VolumeGroupSnapshots
	VolumeGroupSnapshotContents() VolumeGroupSnapshotContents
	VolumeGroupSnapshotClasses() VolumeGroupSnapshotClasses

	// Served asks the server which version of the three kinds of group snapshots it serves, the newest that this package knows,
	// and has all requests use it from now on. It is false without an error when the kinds are absent, which may change: ask again.
	Served(ctx context.Context) (version string, served bool, err error)
}

// IsAbsent reports whether the server has no such kind, as opposed to no such object: its CustomResourceDefinition is not
// installed. The path then leads nowhere, and the answer is no Status of the API.
func IsAbsent(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// AddToScheme adds the types of all kinds to a scheme. Those of group snapshots stand for all versions.
func AddToScheme(scheme *runtime.Scheme) error {
	for _, version := range groupVersions() {
		scheme.AddKnownTypes(schema.GroupVersion{Group: GroupSnapshotGroup, Version: version},
			&groupv1.VolumeGroupSnapshot{}, &groupv1.VolumeGroupSnapshotList{},
			&groupv1.VolumeGroupSnapshotContent{}, &groupv1.VolumeGroupSnapshotContentList{},
			&groupv1.VolumeGroupSnapshotClass{}, &groupv1.VolumeGroupSnapshotClassList{})
		metav1.AddToGroupVersion(scheme, schema.GroupVersion{Group: GroupSnapshotGroup, Version: version})
	}
	return snapshotv1.AddToScheme(scheme)
}

// client implements Client over one REST client per group and version.
type client struct {
	snapshots rest.Interface
	// groups are the clients of groupVersions; that at index current is in use.
	groups  []rest.Interface
	current atomic.Int32
	params  runtime.ParameterCodec
}

var _ Client = (*client)(nil)

// New returns a client for cfg, whose limit of requests is one for all kinds. Nothing is sent yet.
func New(cfg *rest.Config) (Client, error) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("make a scheme: %w", err)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath, cfg.NegotiatedSerializer = "/apis", newSerializers(scheme)
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON // custom resources have no protobuf
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a transport to %q: %w", cfg.Host, err)
	}
	of := func(group, version string) (*rest.RESTClient, error) {
		cfg, httpClient := rest.CopyConfig(cfg), &http.Client{Transport: transport, Timeout: cfg.Timeout}
		cfg.GroupVersion = &schema.GroupVersion{Group: group, Version: version}
		switch {
		case version == betaVersion:
			cfg.NegotiatedSerializer, httpClient.Transport = betaSerializer{cfg.NegotiatedSerializer}, betaTransport{transport}
		case group == GroupSnapshotGroup:
			cfg.NegotiatedSerializer = pairSerializer{cfg.NegotiatedSerializer}
		}
		return rest.RESTClientForConfigAndClient(cfg, httpClient)
	}
	c := &client{params: runtime.NewParameterCodec(scheme)}
	snapshots, err := of(Group, snapshotv1.SchemeGroupVersion.Version)
	errs := []error{err}
	if err == nil {
		c.snapshots, cfg.RateLimiter = snapshots, snapshots.GetRateLimiter()
	}
	for _, version := range groupVersions() {
		group, err := of(GroupSnapshotGroup, version)
		c.groups, errs = append(c.groups, group), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("make clients for %q: %w", cfg.Host, err)
	}
	return c, nil
}

// VolumeSnapshots implements Client.
func (c *client) VolumeSnapshots(namespace string) VolumeSnapshots {
	return kube.NewResource[snapshotv1.VolumeSnapshot, snapshotv1.VolumeSnapshotList](c.snapshots, c.params, "volumesnapshots", namespace)
}

// VolumeSnapshotContents implements Client.
func (c *client) VolumeSnapshotContents() VolumeSnapshotContents {
	return kube.NewResource[snapshotv1.VolumeSnapshotContent, snapshotv1.VolumeSnapshotContentList](c.snapshots, c.params, "volumesnapshotcontents", "")
}

// VolumeSnapshotClasses implements Client.
func (c *client) VolumeSnapshotClasses() VolumeSnapshotClasses {
	return kube.NewResource[snapshotv1.VolumeSnapshotClass, snapshotv1.VolumeSnapshotClassList](c.snapshots, c.params, "volumesnapshotclasses", "")
}

// VolumeGroupSnapshots implements Client.
func (c *client) VolumeGroupSnapshots(namespace string) VolumeGroupSnapshots {
	return kube.NewResource[groupv1.VolumeGroupSnapshot, groupv1.VolumeGroupSnapshotList](served{c}, c.params, groupSnapshots, namespace)
}

// VolumeGroupSnapshotContents implements Client.
func (c *client) VolumeGroupSnapshotContents() VolumeGroupSnapshotContents {
	return kube.NewResource[groupv1.VolumeGroupSnapshotContent, groupv1.VolumeGroupSnapshotContentList](served{c}, c.params, groupSnapshotContents, "")
}

// VolumeGroupSnapshotClasses implements Client.
func (c *client) VolumeGroupSnapshotClasses() VolumeGroupSnapshotClasses {
	return kube.NewResource[groupv1.VolumeGroupSnapshotClass, groupv1.VolumeGroupSnapshotClassList](served{c}, c.params, groupSnapshotClasses, "")
}
