package kubeapi

import (
	"context"
	"slices"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// GatewayGroup is the API group of ReferenceGrants.
const GatewayGroup = "gateway.networking.k8s.io"

// GrantVersions returns the versions of ReferenceGrants, which have the same fields. Gateway API 1.5 introduced v1.
func GrantVersions() (v1, beta schema.GroupVersion) {
	return schema.GroupVersion{Group: GatewayGroup, Version: "v1"}, schema.GroupVersion{Group: GatewayGroup, Version: "v1beta1"}
}

// ReferenceGrant allows objects of other namespaces to refer to objects in its own.
type ReferenceGrant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec ReferenceGrantSpec `json:"spec"`
}

// ReferenceGrantSpec says that what matches any element of From may refer to what matches any element of To.
type ReferenceGrantSpec struct {
	From []ReferenceGrantFrom `json:"from"`
	To   []ReferenceGrantTo   `json:"to"`
}

// ReferenceGrantFrom matches the objects of a kind in a namespace.
type ReferenceGrantFrom struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
}

// ReferenceGrantTo matches the objects of a kind, or the one of that name.
type ReferenceGrantTo struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name,omitempty"`
}

// ReferenceGrantList is a list of ReferenceGrants.
type ReferenceGrantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []ReferenceGrant `json:"items"`
}

// DeepCopy returns a copy.
func (g *ReferenceGrant) DeepCopy() *ReferenceGrant {
	spec := ReferenceGrantSpec{From: slices.Clone(g.Spec.From), To: slices.Clone(g.Spec.To)}
	return &ReferenceGrant{TypeMeta: g.TypeMeta, ObjectMeta: *g.ObjectMeta.DeepCopy(), Spec: spec}
}

// DeepCopyObject implements runtime.Object.
func (g *ReferenceGrant) DeepCopyObject() runtime.Object {
	return g.DeepCopy()
}

// DeepCopyObject implements runtime.Object.
func (l *ReferenceGrantList) DeepCopyObject() runtime.Object {
	meta := l.ListMeta
	copied := &ReferenceGrantList{TypeMeta: l.TypeMeta, ListMeta: *meta.DeepCopy()}
	for i := range l.Items {
		copied.Items = append(copied.Items, *l.Items[i].DeepCopy())
	}
	return copied
}

// AddToScheme adds the types of ReferenceGrants to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	v1, beta := GrantVersions()
	for _, version := range []schema.GroupVersion{v1, beta} {
		scheme.AddKnownTypes(version, &ReferenceGrant{}, &ReferenceGrantList{})
		metav1.AddToGroupVersion(scheme, version)
	}
	return nil
}

// grants reads ReferenceGrants in the version that the server has.
type grants struct {
	ReferenceGrants                 // v1
	beta            ReferenceGrants // v1beta1
	// older says that the last list was in v1beta1.
	older atomic.Bool
}

// newGrants returns the resource for clients of v1 and of v1beta1.
func newGrants(v1, beta rest.Interface, params runtime.ParameterCodec, namespace string) *grants {
	return &grants{
		ReferenceGrants: kube.NewResource[ReferenceGrant, ReferenceGrantList](v1, params, "referencegrants", namespace),
		beta:            kube.NewResource[ReferenceGrant, ReferenceGrantList](beta, params, "referencegrants", namespace),
	}
}

// List implements kube.Resource.
func (g *grants) List(ctx context.Context, opts metav1.ListOptions) (*ReferenceGrantList, error) {
	list, err := g.ReferenceGrants.List(ctx, opts)
	older := snapshotapi.IsAbsent(err)
	g.older.Store(older)
	if older {
		return g.beta.List(ctx, opts)
	}
	return list, err
}

// Watch implements kube.Resource. The resourceVersions of a list are valid in all versions.
func (g *grants) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	if g.older.Load() {
		return g.beta.Watch(ctx, opts)
	}
	return g.ReferenceGrants.Watch(ctx, opts)
}
