// Package kubeapi is the client of the kinds that the provisioner uses: those of csikit/kube, snapshots by csikit/snapshotapi, and, of the
// same shape, those that it alone uses: ReferenceGrants, which are custom resources and may be absent from a cluster, and
// CSIStorageCapacity objects, which have a limit of requests of their own. The type of ReferenceGrants has the fields that are read.
package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// unlimited switches the rate limiter of client-go off.
const unlimited = -1

// Resources of the kinds in Client.
type (
	// ReferenceGrants reads ReferenceGrants.
	ReferenceGrants = kube.Resource[*ReferenceGrant, *ReferenceGrantList]
	// CSIStorageCapacities reads and writes CSIStorageCapacity objects.
	CSIStorageCapacities = kube.Resource[*storagev1.CSIStorageCapacity, *storagev1.CSIStorageCapacityList]
)

// Client gives access to all kinds that the provisioner touches. The namespace "" means all namespaces where lists and
// watches are concerned.
type Client interface {
	kube.Client
	snapshotapi.Client
	// ReferenceGrants are to be listed and watched.
	ReferenceGrants(namespace string) ReferenceGrants
	CSIStorageCapacities(namespace string) CSIStorageCapacities
	// Owner reads what an owner reference of an object in a namespace refers to, whatever its kind.
	Owner(ctx context.Context, namespace string, ref metav1.OwnerReference) (*metav1.PartialObjectMetadata, error)
}

// Config is what a Client is made of.
type Config struct {
	// REST says how the server is reached.
	REST *rest.Config
	// Others is the client of all other kinds.
	Others kube.Client
	// CapacityQPS limits the requests about CSIStorageCapacity objects per second, of which there may be very many, and
	// CapacityBurst says by how much they may exceed that for a moment. 0: no limit.
	CapacityQPS   float64
	CapacityBurst int
}

// core is the client of the kinds of csikit/kube.
type core = kube.Client

// client implements Client over one REST client per API group.
type client struct {
	core
	snapshotapi.Client
	// capacities has a limit of its own.
	capacities rest.Interface
	// grants and betaGrants are the clients of the versions of ReferenceGrants. grants also reads whatever has no types here.
	grants, betaGrants rest.Interface
	params             runtime.ParameterCodec
}

var _ Client = (*client)(nil)

// New returns a client. Nothing is sent yet.
func New(cfg Config) (Client, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{storagev1.AddToScheme, AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make a scheme: %w", err)
		}
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	of := func(version schema.GroupVersion) *rest.Config {
		c := rest.CopyConfig(cfg.REST)
		c.APIPath, c.GroupVersion, c.NegotiatedSerializer = "/apis", &version, codecs
		return c
	}
	custom := func(version schema.GroupVersion) *rest.Config { // custom resources have no protobuf
		c := of(version)
		c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
		return c
	}
	capacities := of(storagev1.SchemeGroupVersion)
	capacities.QPS, capacities.Burst = unlimited, 0
	if cfg.CapacityQPS > 0 {
		capacities.QPS, capacities.Burst = float32(cfg.CapacityQPS), cfg.CapacityBurst
	}
	c := &client{core: cfg.Others, params: runtime.NewParameterCodec(scheme)}
	v1, beta := GrantVersions()
	var errs [4]error
	c.Client, errs[0] = snapshotapi.New(cfg.REST)
	c.capacities, errs[1] = rest.RESTClientFor(capacities)
	c.grants, errs[2] = rest.RESTClientFor(custom(v1))
	c.betaGrants, errs[3] = rest.RESTClientFor(custom(beta))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("make clients for %q: %w", cfg.REST.Host, err)
	}
	return c, nil
}

// ReferenceGrants implements Client.
func (c *client) ReferenceGrants(namespace string) ReferenceGrants {
	return newGrants(c.grants, c.betaGrants, c.params, namespace)
}

// CSIStorageCapacities implements Client.
func (c *client) CSIStorageCapacities(namespace string) CSIStorageCapacities {
	return kube.NewResource[storagev1.CSIStorageCapacity, storagev1.CSIStorageCapacityList](c.capacities, c.params, "csistoragecapacities", namespace)
}

// Owner implements Client.
func (c *client) Owner(ctx context.Context, namespace string, ref metav1.OwnerReference) (*metav1.PartialObjectMetadata, error) {
	version, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("owner %s %q: %w", ref.Kind, ref.Name, err)
	}
	resource, _ := meta.UnsafeGuessKindToResource(version.WithKind(ref.Kind))
	root := "/apis/" + version.Group
	if version.Group == "" {
		root = "/api"
	}
	data, err := c.grants.Get().AbsPath(root, version.Version, "namespaces", namespace, resource.Resource, ref.Name).
		SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	owner := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(data, owner); err != nil {
		return nil, fmt.Errorf("read owner %s %q: %w", ref.Kind, ref.Name, err)
	}
	return owner, nil
}
