package kubetest

import (
	"encoding/json"
	"fmt"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// patchLocked applies a patch to an object or to its status. It returns the stored
// object and whether anything changed.
func (c *Cluster) patchLocked(k *kind, namespace, name string, pt types.PatchType, patch []byte, subresource string, owner fieldOwner) (kube.Object, bool, error) {
	if pt == types.ApplyPatchType && k.managed && subresource == "" {
		return c.serverSideApplyLocked(k, namespace, name, patch, owner)
	}
	before, err := c.getLocked(k, namespace, name)
	if err != nil {
		return nil, false, err
	}
	data, err := json.Marshal(before)
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	if data, err = applyPatch(k, pt, data, patch); err != nil {
		return nil, false, err
	}
	obj, err := decode(k, data)
	if err != nil {
		wrong := field.Invalid(field.NewPath("patch"), string(patch), err.Error())
		return nil, false, apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{wrong})
	}
	if obj.GetName() != name {
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", obj.GetName(), name))
	}
	if obj, err = normalize(k, obj); err != nil { // an empty list is no list
		return nil, false, err
	}
	if err := placeIn(k, namespace, obj); err != nil {
		return nil, false, err
	}
	if obj, err = k.track(before, obj, owner); err != nil {
		return nil, false, err
	}
	return c.writeLocked(k, before, obj, subresource)
}

// applyPatch returns the patched document, or the error the API server answers with.
func applyPatch(k *kind, pt types.PatchType, data, patch []byte) ([]byte, error) {
	var err error
	switch {
	case pt == types.JSONPatchType:
		return applyJSONPatch(data, patch)
	case pt == types.MergePatchType:
		data, err = jsonpatch.MergePatch(data, patch)
	case pt == types.StrategicMergePatchType && !k.custom:
		data, err = strategicpatch.StrategicMergePatch(data, patch, k.newObject())
	default:
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
			Message: fmt.Sprintf("the body of the request was in an unknown format: %s does not take %s", k.resource, pt),
		}}
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return data, nil
}

func applyJSONPatch(data, patch []byte) ([]byte, error) {
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	data, err = operations.Apply(data)
	if err != nil { // a failed "test" or a path that does not exist
		return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return data, nil
}
