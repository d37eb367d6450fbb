package controller

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// operation is one step of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func op(name, path string, value any) operation {
	return operation{Op: name, Path: path, Value: value}
}

// jsonPatch renders operations that apply only to the object as it was read: a
// patch for one VolumeAttachment must not hit another that was created later under
// the same name.
func jsonPatch(obj metav1.Object, ops ...operation) ([]byte, error) {
	return json.Marshal(append([]operation{op("test", "/metadata/uid", obj.GetUID())}, ops...))
}

// change is an edit of an object's metadata, as a part of a strategic merge patch. It reports whether there is anything to do.
type change func(obj metav1.Object, metadata map[string]any) bool

// metadataPatch renders a strategic merge patch with those changes that the object needs, nil when it needs none. Such a
// patch edits single entries, so it neither fails if another client has changed other entries meanwhile nor undoes that. With its UID
// it applies only to the very object that was read.
func metadataPatch(obj metav1.Object, changes ...change) ([]byte, error) {
	metadata := map[string]any{"uid": obj.GetUID()}
	needed := false
	for _, c := range changes {
		needed = c(obj, metadata) || needed
	}
	if !needed {
		return nil, nil
	}
	return json.Marshal(map[string]any{"metadata": metadata})
}

func withFinalizer(finalizer string) change {
	return func(obj metav1.Object, metadata map[string]any) bool {
		if hasFinalizer(obj, finalizer) {
			return false
		}
		metadata["finalizers"] = []string{finalizer}
		return true
	}
}

func withoutFinalizer(finalizer string) change {
	return func(obj metav1.Object, metadata map[string]any) bool {
		if !hasFinalizer(obj, finalizer) {
			return false
		}
		metadata["$deleteFromPrimitiveList/finalizers"] = []string{finalizer}
		return true
	}
}

// withAnnotations sets the annotations that differ. An empty value removes the annotation.
func withAnnotations(want map[string]string) change {
	return func(obj metav1.Object, metadata map[string]any) bool {
		have, changes := obj.GetAnnotations(), map[string]any{}
		for key, value := range want {
			switch {
			case have[key] == value:
			case value == "":
				changes[key] = nil
			default:
				changes[key] = value
			}
		}
		if len(changes) == 0 {
			return false
		}
		metadata["annotations"] = changes
		return true
	}
}
