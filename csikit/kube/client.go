package kube

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// Object is a pointer to an API object, such as *corev1.Node.
type Object interface {
	runtime.Object
	metav1.Object
}

// Resource reads and writes the objects of one kind, in one namespace if the kind has
// namespaces. The zero options are right in most cases. Every call takes its deadline
// from the context; errors are those of k8s.io/apimachinery/pkg/api/errors.
type Resource[T Object, L runtime.Object] interface {
	// Create stores a new object and returns it as the server has stored it.
	Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error)
	// Update replaces an object, but not its status. A resourceVersion in obj that
	// is not the current one is a conflict.
	Update(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error)
	// UpdateStatus replaces the status of an object and nothing else.
	UpdateStatus(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error)
	// Delete asks for the object to go, which it does when it has no finalizer.
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	// Get reads one object from the server, not from a cache.
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	// List reads all objects that the selectors of opts match.
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	// Watch streams the changes that follow opts.ResourceVersion.
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
	// Patch changes parts of an object, or of a subresource such as "status".
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

// Resources of the kinds in Client.
type (
	// PersistentVolumes reads and writes PersistentVolumes.
	PersistentVolumes = Resource[*corev1.PersistentVolume, *corev1.PersistentVolumeList]
	// PersistentVolumeClaims reads and writes PersistentVolumeClaims.
	PersistentVolumeClaims = Resource[*corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaimList]
	// Nodes reads and writes Nodes.
	Nodes = Resource[*corev1.Node, *corev1.NodeList]
	// Pods reads and writes Pods.
	Pods = Resource[*corev1.Pod, *corev1.PodList]
	// Secrets reads and writes Secrets.
	Secrets = Resource[*corev1.Secret, *corev1.SecretList]
	// Events reads and writes core/v1 Events.
	Events = Resource[*corev1.Event, *corev1.EventList]
	// StorageClasses reads and writes StorageClasses.
	StorageClasses = Resource[*storagev1.StorageClass, *storagev1.StorageClassList]
	// VolumeAttachments reads and writes VolumeAttachments.
	VolumeAttachments = Resource[*storagev1.VolumeAttachment, *storagev1.VolumeAttachmentList]
	// CSINodes reads and writes CSINodes.
	CSINodes = Resource[*storagev1.CSINode, *storagev1.CSINodeList]
	// CSIDrivers reads and writes CSIDrivers.
	CSIDrivers = Resource[*storagev1.CSIDriver, *storagev1.CSIDriverList]
	// VolumeAttributesClasses reads and writes VolumeAttributesClasses.
	VolumeAttributesClasses = Resource[*storagev1.VolumeAttributesClass, *storagev1.VolumeAttributesClassList]
	// Leases reads and writes Leases.
	Leases = Resource[*coordinationv1.Lease, *coordinationv1.LeaseList]
)

// Client gives access to the kinds that the project touches. The namespace ""
// means all namespaces where lists and watches are concerned.
type Client interface {
	PersistentVolumes() PersistentVolumes
	PersistentVolumeClaims(namespace string) PersistentVolumeClaims
	Nodes() Nodes
	Pods(namespace string) Pods
	Secrets(namespace string) Secrets
	Events(namespace string) Events
	StorageClasses() StorageClasses
	VolumeAttachments() VolumeAttachments
	CSINodes() CSINodes
	CSIDrivers() CSIDrivers
	VolumeAttributesClasses() VolumeAttributesClasses
	Leases(namespace string) Leases
	// RequestToken makes a token of a service account, which is never stored: the result has it in its status.
	RequestToken(ctx context.Context, namespace, serviceAccount string, req *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
}

// Scheme returns a scheme with the kinds of Client and nothing else.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, storagev1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // two types of one name: cannot happen with the API packages as published
		}
	}
	return scheme
}

// encodings are what all clients encode and decode with. A scheme of its own takes each client a mebibyte, and some milliseconds.
var encodings = sync.OnceValues(func() (runtime.ParameterCodec, runtime.NegotiatedSerializer) {
	scheme := Scheme()
	return runtime.NewParameterCodec(scheme), serializer.NewCodecFactory(scheme).WithoutConversion()
})

// New returns a client for cfg. All kinds share one HTTP client and its connection, over which at most 64 requests are on
// their way at once, and the others wait; nothing is sent yet. client-go gives clients of an equal configuration the same transport: the first of them
// that New makes limits its buffers, so that no other client may have sent anything by then.
func New(cfg *rest.Config) (Client, error) { return NewConnection().Client(cfg) }

// Client returns a client that shares the connection with the other clients of c. Their configurations must differ in nothing but Impersonate and
// what Wrap adds. It must be called before any of them has sent anything.
func (c *Connection) Client(cfg *rest.Config) (Client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.WrapTransport = transport.Wrappers(limitBuffers, cfg.WrapTransport, c.limit)
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make an HTTP client for %q: %w", cfg.Host, err)
	}
	params, codecs := encodings()
	all := &client{params: params}
	groups := []struct {
		to *rest.Interface
		gv schema.GroupVersion
	}{
		{&all.core, corev1.SchemeGroupVersion},
		{&all.storage, storagev1.SchemeGroupVersion},
		{&all.coordination, coordinationv1.SchemeGroupVersion},
	}
	for _, g := range groups {
		*g.to, err = groupClient(cfg, httpClient, codecs, g.gv)
		if err != nil {
			return nil, fmt.Errorf("make a client of %s for %q: %w", g.gv, cfg.Host, err)
		}
	}
	return all, nil
}

func groupClient(cfg *rest.Config, httpClient *http.Client, codecs runtime.NegotiatedSerializer, gv schema.GroupVersion) (*rest.RESTClient, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion = &gv
	cfg.NegotiatedSerializer = codecs
	cfg.APIPath = "/apis"
	if gv.Group == "" {
		cfg.APIPath = "/api"
	}
	return rest.RESTClientForConfigAndClient(cfg, httpClient)
}

// client implements Client over one REST client per API group.
type client struct {
	core, storage, coordination rest.Interface
	params                      runtime.ParameterCodec
}

var _ Client = (*client)(nil)

// PersistentVolumes implements Client.
func (c *client) PersistentVolumes() PersistentVolumes {
	return NewResource[corev1.PersistentVolume, corev1.PersistentVolumeList](c.core, c.params, "persistentvolumes", "")
}

// PersistentVolumeClaims implements Client.
func (c *client) PersistentVolumeClaims(namespace string) PersistentVolumeClaims {
	return NewResource[corev1.PersistentVolumeClaim, corev1.PersistentVolumeClaimList](c.core, c.params, "persistentvolumeclaims", namespace)
}

// Nodes implements Client.
func (c *client) Nodes() Nodes {
	return NewResource[corev1.Node, corev1.NodeList](c.core, c.params, "nodes", "")
}

// Pods implements Client.
func (c *client) Pods(namespace string) Pods {
	return NewResource[corev1.Pod, corev1.PodList](c.core, c.params, "pods", namespace)
}

// Secrets implements Client.
func (c *client) Secrets(namespace string) Secrets {
	return NewResource[corev1.Secret, corev1.SecretList](c.core, c.params, "secrets", namespace)
}

// Events implements Client.
func (c *client) Events(namespace string) Events {
	return NewResource[corev1.Event, corev1.EventList](c.core, c.params, "events", namespace)
}

// StorageClasses implements Client.
func (c *client) StorageClasses() StorageClasses {
	return NewResource[storagev1.StorageClass, storagev1.StorageClassList](c.storage, c.params, "storageclasses", "")
}

// VolumeAttachments implements Client.
func (c *client) VolumeAttachments() VolumeAttachments {
	return NewResource[storagev1.VolumeAttachment, storagev1.VolumeAttachmentList](c.storage, c.params, "volumeattachments", "")
}

// CSINodes implements Client.
func (c *client) CSINodes() CSINodes {
	return NewResource[storagev1.CSINode, storagev1.CSINodeList](c.storage, c.params, "csinodes", "")
}

// CSIDrivers implements Client.
func (c *client) CSIDrivers() CSIDrivers {
	return NewResource[storagev1.CSIDriver, storagev1.CSIDriverList](c.storage, c.params, "csidrivers", "")
}

// VolumeAttributesClasses implements Client.
func (c *client) VolumeAttributesClasses() VolumeAttributesClasses {
	return NewResource[storagev1.VolumeAttributesClass, storagev1.VolumeAttributesClassList](c.storage, c.params, "volumeattributesclasses", "")
}

// Leases implements Client.
func (c *client) Leases(namespace string) Leases {
	return NewResource[coordinationv1.Lease, coordinationv1.LeaseList](c.coordination, c.params, "leases", namespace)
}
