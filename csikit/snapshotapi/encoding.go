package snapshotapi

import (
	"encoding/json"
	"strings"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// Encoding keeps objects of the kinds in Client in a cache as JSON, in which words that most objects have are single bytes: a fourth of the memory
// that the fields of an object take. Name and namespace are left out.
func Encoding[T kube.Object]() *kube.Encoding[T] {
	words := commonWords()
	short, long := make([]string, 0, 2*len(words)), make([]string, 0, 2*len(words))
	for i, word := range words {
		code := string(rune(1 + i)) // JSON has no control characters
		short, long = append(short, word, code), append(long, code, word)
	}
	shorten, lengthen := strings.NewReplacer(short...), strings.NewReplacer(long...)
	return &kube.Encoding[T]{
		Encode: func(obj T) ([]byte, error) {
			namespace, name := obj.GetNamespace(), obj.GetName()
			obj.SetNamespace("")
			obj.SetName("")
			data, err := json.Marshal(obj)
			obj.SetNamespace(namespace)
			obj.SetName(name)
			if err != nil {
				return nil, err
			}
			return []byte(shorten.Replace(string(data))), nil
		},
		Decode: func(data []byte, obj T) error {
			return json.Unmarshal([]byte(lengthen.Replace(string(data))), obj)
		},
	}
}

// commonWords are at most 31 texts that are frequent in the JSON of objects. Of two that begin at the same place, the one that comes first
// counts.
func commonWords() []string {
	return []string{
		`"metadata":{"uid":"`, `","resourceVersion":"`, `"creationTimestamp":null`, `"finalizers":["`, `"annotations":{"`, `"ownerReferences":[{"`,
		FinalizerContent, FinalizerAsSource, FinalizerBound, FinalizerInGroup,
		`"spec":{"source":{"persistentVolumeClaimName":"`, `"spec":{"volumeSnapshotRef":{"`, `"volumeSnapshotClassName":"`,
		`"deletionPolicy":"Delete","driver":"`, `"source":{"volumeHandle":"`, `"namespace":"`, `"name":"`, `"uid":"`,
		`"status":{"boundVolumeSnapshotContentName":"` + contentNamePrefix, `"status":{"snapshotHandle":"`, `"creationTime":`, `"readyToUse":true`, `"readyToUse":false`,
		`"restoreSize":`, `"error":{"`, `"message":"`, `"time":"`, prefix, groupPrefix, `"VolumeSnapshot"`,
	}
}
