package kubetest

import (
	"cmp"
	"encoding/json"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/managedfields/managedfieldstest"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// HandManager is the field manager of changes by the test's hand, as Apply and Merge make them.
const HandManager = "kubectl-edit"

// fieldOwner is who writes, for kinds with managedFields.
type fieldOwner struct {
	// manager is the name of the field manager. Empty: a name that the server makes up.
	manager string
	// force lets a server-side apply take over fields of other managers.
	force bool
}

// fieldManager does what the API server does for managedFields, with its library. It knows no schema: a list is a value as a whole.
func (k *kind) fieldManager() *managedfields.FieldManager {
	return managedfieldstest.NewFakeFieldManager(managedfields.NewDeducedTypeConverter(), k.groupVersion.WithKind(k.name))
}

// track returns obj, which an update or a creation makes of before, with managedFields: what differs is the manager's. before is nil for a new object.
func (k *kind) track(before, obj kube.Object, owner fieldOwner) (kube.Object, error) {
	if !k.managed {
		return obj, nil
	}
	live, err := k.generic(before)
	if err != nil {
		return nil, err
	}
	changed, err := k.generic(obj)
	if err != nil {
		return nil, err
	}
	return k.specific(k.fieldManager().UpdateNoErrors(live, changed, cmp.Or(owner.manager, "unknown")))
}

// serverSideApplyLocked applies a configuration to an object, which it creates if there is none.
func (c *Cluster) serverSideApplyLocked(k *kind, namespace, name string, patch []byte, owner fieldOwner) (kube.Object, bool, error) {
	if owner.manager == "" {
		missing := field.Required(field.NewPath("fieldManager"), "is required for apply patch")
		return nil, false, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "PatchOptions"}, "", field.ErrorList{missing})
	}
	configuration := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(patch, &configuration.Object); err != nil {
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("error decoding YAML: %v", err))
	}
	if configuration.GetName() == "" {
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", name))
	}
	before := c.stores[k.resource].objects[keyOf(namespace, name)]
	if uid := configuration.GetUID(); before == nil && uid != "" {
		return nil, false, apierrors.NewConflict(k.groupResource(), name,
			fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
	}
	live, err := k.generic(before)
	if err != nil {
		return nil, false, err
	}
	applied, err := k.fieldManager().Apply(live, configuration, owner.manager, owner.force)
	if err != nil {
		return nil, false, err
	}
	obj, err := k.specific(applied)
	if err != nil {
		return nil, false, err
	}
	if before == nil {
		stored, err := c.insertLocked(k, namespace, obj)
		return stored, true, err
	}
	return c.writeLocked(k, before, obj, "")
}

// generic returns an object as the field manager takes it; nil is an object without contents.
func (k *kind) generic(obj kube.Object) (*unstructured.Unstructured, error) {
	result := &unstructured.Unstructured{Object: map[string]any{}}
	if obj != nil {
		data, err := json.Marshal(obj)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		if err := utiljson.Unmarshal(data, &result.Object); err != nil { // whole numbers stay such
			return nil, apierrors.NewInternalError(err)
		}
	}
	result.SetGroupVersionKind(k.groupVersion.WithKind(k.name))
	return result, nil
}

// specific is the opposite of generic.
func (k *kind) specific(obj runtime.Object) (kube.Object, error) {
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return decode(k, data)
}

// defaultCSIDriver sets the fields that a client may leave out.
func defaultCSIDriver(driver *storagev1.CSIDriver) {
	spec := &driver.Spec
	for field, value := range map[**bool]bool{
		&spec.AttachRequired: true, &spec.PodInfoOnMount: false, &spec.StorageCapacity: false, &spec.RequiresRepublish: false, &spec.SELinuxMount: false,
	} {
		if *field == nil {
			*field = &value
		}
	}
	if spec.FSGroupPolicy == nil {
		spec.FSGroupPolicy = new(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	}
	if len(spec.VolumeLifecycleModes) == 0 {
		spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
}

// csiDriverRules are those of the API server for fields that must not change.
func csiDriverRules(obj, before map[string]any) (errs field.ErrorList) {
	if before == nil {
		return nil
	}
	for _, names := range [][2]string{{"attachRequired", "attachedRequired"}, {"volumeLifecycleModes", "volumeLifecycleModes"}} { // the server misspells one
		name, reported := names[0], names[1]
		was, _ := json.Marshal(before["spec"].(map[string]any)[name]) //nolint:errcheck // it was decoded from JSON
		is, _ := json.Marshal(obj["spec"].(map[string]any)[name])     //nolint:errcheck // it was decoded from JSON
		if string(was) != string(is) {
			errs = append(errs, field.Invalid(field.NewPath("spec", reported), string(is), "field is immutable"))
		}
	}
	return errs
}
