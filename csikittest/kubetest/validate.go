package kubetest

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// validateCreate applies the server's own rules for the metadata of all kinds, and those of custom kinds.
func validateCreate(k *kind, obj kube.Object) error {
	created := clone(obj)
	created.SetManagedFields(nil) // the server writes them itself
	errs := validation.ValidateObjectMetaAccessor(created, k.namespaced, validation.NameIsDNSSubdomain, metadata())
	return invalid(k, obj.GetName(), append(errs, k.rules(obj, nil)...))
}

// validateUpdate applies the server's own rules for the metadata of all kinds, among them: no new finalizers on an
// object that is being deleted, and no other UID; and those of custom kinds.
func validateUpdate(k *kind, before, obj kube.Object) error {
	after := clone(obj)
	after.SetManagedFields(nil) // the server writes them itself
	errs := validation.ValidateObjectMetaAccessor(after, k.namespaced, validation.NameIsDNSSubdomain, metadata())
	errs = append(errs, validation.ValidateObjectMetaAccessorUpdate(after, before, metadata())...)
	return invalid(k, obj.GetName(), append(errs, k.rules(obj, before)...))
}

func metadata() *field.Path { return field.NewPath("metadata") }

// invalid returns nil if there are no errors.
func invalid(k *kind, name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(k.groupKind(), name, errs)
}
