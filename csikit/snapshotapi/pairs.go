package snapshotapi

import (
	"bytes"
	"encoding/json"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A VolumeGroupSnapshotContent that was written as v1beta1 has its members in status.volumeSnapshotHandlePairList. CustomResourceDefinitions
// whose versions share their status fields keep that list when the object is read in a later version, whose Go type has no such field. The
// client moves it to the annotation AnnGroupSnapshotInfoList, which is where the conversion webhook of the external-snapshotter keeps members.
// The annotation is not written.

// InfoList returns the members of a group snapshot: those in its status, else those that an earlier version has left (see
// AnnGroupSnapshotInfoList). nil: none are known.
func InfoList(content *groupv1.VolumeGroupSnapshotContent) []groupv1.VolumeSnapshotInfo {
	if content.Status != nil && len(content.Status.VolumeSnapshotInfoList) > 0 {
		return content.Status.VolumeSnapshotInfoList
	}
	return ParseInfoList(content.Annotations[AnnGroupSnapshotInfoList])
}

// ParseInfoList returns the members in the value of AnnGroupSnapshotInfoList, nil if it has none, or is no JSON of a list of them.
func ParseInfoList(annotation string) []groupv1.VolumeSnapshotInfo {
	var list []groupv1.VolumeSnapshotInfo
	if json.Unmarshal([]byte(annotation), &list) != nil {
		return nil
	}
	return list
}

// pairSerializer decodes objects, lists and events, and moves handle pairs to the annotation.
type pairSerializer struct{ runtime.NegotiatedSerializer }

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (s pairSerializer) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return pairDecoder{s.NegotiatedSerializer.DecoderToVersion(d, gv)}
}

type pairDecoder struct{ runtime.Decoder }

// Decode implements runtime.Decoder.
func (d pairDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	return d.Decoder.Decode(annotatePairs(data), defaults, into)
}

// annotatePairs moves the handle pairs of an object, or of the items of a list. What is no JSON is returned as it is, for others to refuse.
func annotatePairs(data []byte) []byte {
	if !bytes.Contains(data, []byte(pairList)) || !json.Valid(data) {
		return data
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // times in nanoseconds have more digits than a float64
	var document map[string]any
	if decoder.Decode(&document) != nil {
		return data
	}
	annotatePairsOf(document)
	items, _ := document["items"].([]any)
	for _, item := range items {
		if object, ok := item.(map[string]any); ok {
			annotatePairsOf(object)
		}
	}
	annotated, err := json.Marshal(document)
	if err != nil {
		return data
	}
	return annotated
}

func annotatePairsOf(object map[string]any) {
	status, _ := object["status"].(map[string]any)
	pairs, ok := status[pairList].([]any)
	if infos, _ := status[infoList].([]any); !ok || len(pairs) == 0 || len(infos) > 0 {
		return
	}
	list, err := json.Marshal(pairs)
	metadata, ok := object["metadata"].(map[string]any)
	if err != nil || !ok {
		return
	}
	annotations, ok := metadata["annotations"].(map[string]any)
	if !ok {
		annotations = map[string]any{}
		metadata["annotations"] = annotations
	}
	if _, kept := annotations[AnnGroupSnapshotInfoList]; !kept {
		annotations[AnnGroupSnapshotInfoList] = string(list)
	}
}
