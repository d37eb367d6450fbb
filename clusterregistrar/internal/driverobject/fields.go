package driverobject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fields are those of a spec that are set, by name, as JSON has them.
type fields map[string]any

const fieldModes = "volumeLifecycleModes"

// immutable reports whether the API server refuses changes of a field. (Before Kubernetes 1.29 it does so of two more, and answers with an error.)
func immutable(name string) bool { return name == "attachRequired" || name == fieldModes }

// fieldsOf returns the fields of a spec. Modes are a set, and sorted.
func fieldsOf(spec storagev1.CSIDriverSpec) fields {
	spec.VolumeLifecycleModes = slices.Sorted(slices.Values(spec.VolumeLifecycleModes))
	result := fields{}
	data, err := json.Marshal(spec)
	if err == nil {
		err = json.Unmarshal(data, &result)
	}
	if err != nil {
		panic(err) // strings, numbers and booleans can be encoded
	}
	return result
}

// text returns a value as JSON.
func text(value any) string {
	data, _ := json.Marshal(value) //nolint:errchkjson // it was decoded from JSON
	return string(data)
}

// owner is a field manager that has a field.
type owner struct {
	name string
	// applies: by server-side apply, else by creating or updating the object.
	applies bool
}

// us reports whether the owner is this component, or an administrator who has written a field in its name.
func (o owner) us() bool { return o.name == Manager }

func (o owner) String() string {
	if o.applies {
		return fmt.Sprintf("%q (Apply)", o.name)
	}
	return fmt.Sprintf("%q (Update)", o.name)
}

// owners are the field managers of each field of a spec.
type owners map[string][]owner

// beforeFirstApply is the manager that the API server makes the owner of all fields of an object without managedFields when it is applied.
const beforeFirstApply = "before-first-apply"

// ownersOf reads metadata.managedFields.
func ownersOf(live *storagev1.CSIDriver) owners {
	result := owners{}
	if len(live.ManagedFields) == 0 {
		for name := range fieldsOf(live.Spec) {
			result[name] = []owner{{name: beforeFirstApply}}
		}
	}
	for _, entry := range live.ManagedFields {
		var set struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &set) != nil {
			continue
		}
		for key := range set.Spec {
			if name, ok := strings.CutPrefix(key, "f:"); ok {
				result[name] = append(result[name], owner{name: entry.Manager, applies: entry.Operation == metav1.ManagedFieldsOperationApply})
			}
		}
	}
	return result
}

// ours reports whether this component has applied a field, which others may have as well.
func (o owners) ours(name string) bool {
	return slices.Contains(o[name], owner{name: Manager, applies: true})
}

// others returns the other owners of a field.
func (o owners) others(name string) []owner {
	return slices.DeleteFunc(slices.Clone(o[name]), owner.us)
}
