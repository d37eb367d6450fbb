package resolve

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Objects are what Kubernetes knows of the volumes of pods.
type Objects interface {
	// Claim returns a claim, or an error of package apierrors: NotFound, Forbidden while the node may not read it.
	Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	// Volume returns a PersistentVolume, with errors as for Claim.
	Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error)
	// Driver returns a CSIDriver object, nil if there is none.
	Driver(name string) *storagev1.CSIDriver
	// Node returns this node's object, whose labels the affinity of volumes is about; nil if it is not known.
	Node() *corev1.Node
}

// Static are Objects without an API server. The zero value has none. It is safe for concurrent use.
type Static struct {
	mu      sync.RWMutex
	claims  map[types.NamespacedName]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	drivers map[string]*storagev1.CSIDriver
	node    *corev1.Node
}

// AddVolume adds a PersistentVolume, which must have a name, and a claim that is bound to it. It replaces those of the same names.
func (s *Static) AddVolume(v *corev1.PersistentVolume, namespace, claim string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pvc := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: claim, UID: types.UID(namespace + "/" + claim)},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: v.Name, AccessModes: v.Spec.AccessModes, VolumeMode: v.Spec.VolumeMode},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: v.Spec.Capacity},
	}
	v = v.DeepCopy()
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: claim, UID: pvc.UID}
	if s.claims == nil {
		s.claims, s.volumes = map[types.NamespacedName]*corev1.PersistentVolumeClaim{}, map[string]*corev1.PersistentVolume{}
	}
	s.claims[types.NamespacedName{Namespace: namespace, Name: claim}], s.volumes[v.Name] = pvc, v
}

// AddDriver adds or replaces a CSIDriver object. Without one a driver has the defaults of Kubernetes: persistent volumes only, which are attached before they
// are used.
func (s *Static) AddDriver(d *storagev1.CSIDriver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drivers == nil {
		s.drivers = map[string]*storagev1.CSIDriver{}
	}
	s.drivers[d.Name] = d.DeepCopy()
}

// SetNode sets this node's object.
func (s *Static) SetNode(n *corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node = n.DeepCopy()
}

// Claim implements Objects.
func (s *Static) Claim(_ context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if c := s.claims[types.NamespacedName{Namespace: namespace, Name: name}]; c != nil {
		return c.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), fmt.Sprintf("%s/%s", namespace, name))
}

// Volume implements Objects.
func (s *Static) Volume(_ context.Context, name string) (*corev1.PersistentVolume, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if v := s.volumes[name]; v != nil {
		return v.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumes"), name)
}

// Driver implements Objects.
func (s *Static) Driver(name string) *storagev1.CSIDriver {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.drivers[name].DeepCopy()
}

// Node implements Objects.
func (s *Static) Node() *corev1.Node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.node.DeepCopy()
}
