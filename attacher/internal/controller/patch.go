package controller

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// operation is one step of a JSON patch (RFC 6902). A "remove" must not carry a
// value, a null value is one, hence the pointer.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value *any   `json:"value,omitempty"`
}

func op(name, path string, value any) operation {
	return operation{Op: name, Path: path, Value: &value}
}

// jsonPatch renders operations that apply only to the object as it was read: a
// patch for one VolumeAttachment must not hit another that was created later under
// the same name.
func jsonPatch(obj metav1.Object, ops ...operation) ([]byte, error) {
	return json.Marshal(append([]operation{op("test", "/metadata/uid", obj.GetUID())}, ops...))
}

// addFinalizer returns the operations that add the finalizer, none when it is there.
// They apply only if nobody has changed the list meanwhile.
func addFinalizer(obj metav1.Object, finalizer string) []operation {
	old := obj.GetFinalizers()
	if slices.Contains(old, finalizer) {
		return nil
	}
	return replaceFinalizers(old, append(slices.Clone(old), finalizer))
}

// removeFinalizer returns the operations that remove the finalizer, none when it is not there.
func removeFinalizer(obj metav1.Object, finalizer string) []operation {
	old := obj.GetFinalizers()
	if !slices.Contains(old, finalizer) {
		return nil
	}
	return replaceFinalizers(old, slices.DeleteFunc(slices.Clone(old), func(f string) bool { return f == finalizer }))
}

func replaceFinalizers(old, list []string) []operation {
	const path = "/metadata/finalizers"
	switch {
	case len(old) == 0:
		return []operation{op("test", path, nil), op("add", path, list)}
	case len(list) == 0:
		return []operation{op("test", path, old), {Op: "remove", Path: path}}
	}
	return []operation{op("test", path, old), op("replace", path, list)}
}

// setAnnotations returns the operations that set the annotations that differ. An
// empty value removes the annotation.
func setAnnotations(obj metav1.Object, want map[string]string) []operation {
	const path = "/metadata/annotations"
	have := obj.GetAnnotations()
	changes := map[string]string{}
	for key, value := range want {
		if have[key] != value {
			changes[key] = value
		}
	}
	if len(changes) == 0 {
		return nil
	}
	if len(have) == 0 {
		maps.DeleteFunc(changes, func(_, value string) bool { return value == "" })
		return []operation{op("test", path, nil), op("add", path, changes)}
	}
	var ops []operation
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		member := path + "/" + escapePointer(key)
		if changes[key] == "" {
			ops = append(ops, operation{Op: "remove", Path: member})
			continue
		}
		ops = append(ops, op("add", member, changes[key]))
	}
	return ops
}

// escapePointer escapes a key for use in a JSON pointer (RFC 6901).
func escapePointer(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
}
