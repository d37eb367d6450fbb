package capacity

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/params"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/topology"
)

// Labels of the objects, by which their instance knows them again.
const (
	// LabelDriver names the driver.
	LabelDriver = "csi.storage.k8s.io/drivername"
	// LabelManagedBy names the instance.
	LabelManagedBy = "csi.storage.k8s.io/managed-by"
)

// manager is the value of LabelManagedBy of an instance for the whole cluster.
const manager = "external-provisioner"

// ManagedBy returns the value of LabelManagedBy: the same for all instances of which one leads, and another one for each
// node where there is an instance on each. Names of nodes that are too long for a label are abbreviated as they have always been.
func ManagedBy(node string) string {
	const limit = validation.LabelValueMaxLength
	if node == "" {
		return manager
	}
	name := manager + "-" + node
	left := limit - len(node) - len("-12345678-")
	switch {
	case len(name) <= limit:
		return name
	case left > 0:
		return manager[:left] + "-" + short(manager) + "-" + node
	}
	return manager + "-" + short(name)
}

// short returns a hash of eight digits.
func short(text string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // never fails
	return fmt.Sprintf("%08x", h.Sum32())
}

// item is what one object is about: the capacity of a segment for the volumes of a class.
type item struct {
	segment topology.Segment
	class   string
}

// String identifies the item.
func (i item) String() string {
	return i.class + " at " + i.segment.String()
}

// compare orders items by class, then by segment.
func (i item) compare(other item) int {
	return cmp.Or(cmp.Compare(i.class, other.class), i.segment.Compare(other.segment))
}

// itemOf returns the item of an object; the empty one for an object that is not of the form that this package writes.
func itemOf(object *storagev1.CSIStorageCapacity) item {
	selector := object.NodeTopology
	if selector == nil || len(selector.MatchExpressions) > 0 {
		return item{}
	}
	segment, err := topology.NewSegment(selector.MatchLabels)
	if err != nil {
		return item{}
	}
	return item{segment: segment, class: object.StorageClassName}
}

// goalOf returns the items that are to be published, with the versions of their classes: none while the driver does not report its capacity.
func goalOf(info *csiclient.Info, immediate bool, source Source) map[item]string {
	goal := map[item]string{}
	if !capabilities.Of(info, capabilities.Features{}).Capacity {
		return goal
	}
	segments := source.Segments()
	for _, class := range source.AllClasses() {
		if !publishable(class, info.Name, immediate) {
			continue
		}
		for _, segment := range segments {
			// Of a driver without topology, which allowedTopologies do not restrict, the segment is empty.
			if segment.IsEmpty() || topology.Permitted(class.AllowedTopologies, segment) {
				goal[item{segment: segment, class: class.Name}] = string(class.UID) + "/" + class.ResourceVersion
			}
		}
	}
	return goal
}

// publishable reports whether anything is to be published for a class. Nothing can be made of one whose parameters are malformed.
func publishable(class *storagev1.StorageClass, driver string, immediate bool) bool {
	_, err := params.Parse(class.Parameters)
	return class.Provisioner == driver && (immediate || view.WaitsForConsumer(class)) && err == nil
}

// request is what the driver is asked: with the parameters that CreateVolume gets from the class.
func request(class *storagev1.StorageClass, segment topology.Segment) (*csi.GetCapacityRequest, error) {
	parsed, err := params.Parse(class.Parameters)
	if err != nil {
		return nil, fmt.Errorf("storage class %q: %w", class.Name, err)
	}
	ask := &csi.GetCapacityRequest{Parameters: parsed.Driver}
	if !segment.IsEmpty() {
		ask.AccessibleTopology = segment.Topology()
	}
	return ask, nil
}

// object returns the object for an answer of GetCapacity. Its name is always the same for the same item, so that an object whose
// creation was not heard to its end is found again.
func (c *Controller) object(i item, answer *csi.GetCapacityResponse) *storagev1.CSIStorageCapacity {
	identity := sha256.Sum256([]byte(c.driver + "\n" + c.cfg.Settings.ManagedBy + "\n" + i.String()))
	object := &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{Name: "csisc-" + hex.EncodeToString(identity[:10]), Namespace: c.cfg.Settings.Namespace, Labels: c.labels()},
		NodeTopology:     &metav1.LabelSelector{MatchLabels: i.segment.Map()},
		StorageClassName: i.class,
		Capacity:         resource.NewQuantity(answer.GetAvailableCapacity(), resource.BinarySI),
	}
	if most := answer.GetMaximumVolumeSize(); most != nil {
		object.MaximumVolumeSize = resource.NewQuantity(most.GetValue(), resource.BinarySI)
	}
	if owner := c.cfg.Settings.Owner; owner != nil {
		object.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return object
}

// renew returns an object as it is to be, nil if it is so already. What others have added stays, and so does a former owner:
// the garbage collector drops those that are gone.
func renew(is, want *storagev1.CSIStorageCapacity) *storagev1.CSIStorageCapacity {
	next := is.DeepCopy()
	next.Capacity, next.MaximumVolumeSize = want.Capacity, want.MaximumVolumeSize
	if next.Labels == nil {
		next.Labels = map[string]string{}
	}
	maps.Copy(next.Labels, want.Labels)
	for _, owner := range want.OwnerReferences {
		if !slices.ContainsFunc(next.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == owner.UID }) {
			next.OwnerReferences = append(next.OwnerReferences, owner)
		}
	}
	if equality.Semantic.DeepEqual(is, next) {
		return nil
	}
	return next
}
