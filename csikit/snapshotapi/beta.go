package snapshotapi

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// betaVersion is the version whose VolumeGroupSnapshotContents have status.volumeSnapshotHandlePairList, elements of which have
// two of the five fields of status.volumeSnapshotInfoList: nothing else differs. The types are those of v1, so the JSON is
// converted on its way: that of answers by betaSerializer, that of requests by betaTransport.
const betaVersion = "v1beta1"

const (
	infoList = "volumeSnapshotInfoList"
	pairList = "volumeSnapshotHandlePairList"
)

// betaSerializer decodes objects, lists and events of v1beta1 into the types of v1.
type betaSerializer struct{ runtime.NegotiatedSerializer }

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (s betaSerializer) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return betaDecoder{s.NegotiatedSerializer.DecoderToVersion(d, gv)}
}

type betaDecoder struct{ runtime.Decoder }

// Decode implements runtime.Decoder.
func (d betaDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	return d.Decoder.Decode(renameList(data, pairList, infoList), defaults, into)
}

// betaTransport converts what is sent, patches included, to v1beta1.
type betaTransport struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t betaTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body == nil {
		return t.RoundTripper.RoundTrip(req)
	}
	data, err := io.ReadAll(req.Body)
	_ = req.Body.Close() // as a RoundTripper must
	if err != nil {
		return nil, err
	}
	data = renameList(data, infoList, pairList)
	req = req.Clone(req.Context())
	req.ContentLength = int64(len(data))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	req.Body, _ = req.GetBody()
	return t.RoundTripper.RoundTrip(req)
}

// renameList renames the list in the status of an object, of a merge patch or of the items of a list, and in the paths of a
// JSON patch. What is no JSON is returned as it is, for others to refuse.
func renameList(data []byte, from, to string) []byte {
	if !bytes.Contains(data, []byte(from)) || !json.Valid(data) {
		return data
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // times in nanoseconds have more digits than a float64
	var document any
	if decoder.Decode(&document) != nil {
		return data
	}
	renameIn(document, from, to)
	renamed, err := json.Marshal(document)
	if err != nil {
		return data
	}
	return renamed
}

func renameIn(value any, from, to string) {
	switch value := value.(type) {
	case []any: // items, or operations of a JSON patch
		for _, element := range value {
			renameIn(element, from, to)
		}
	case map[string]any:
		renameIn(value["items"], from, to)
		renameKey(value["status"], from, to)
		path, _ := value["path"].(string)
		if path == "/status" {
			renameKey(value["value"], from, to)
		}
		if rest, ok := strings.CutPrefix(path, "/status/"+from); ok {
			value["path"] = "/status/" + to + rest
			cut(value["value"], to)
		}
	}
}

func renameKey(status any, from, to string) {
	fields, _ := status.(map[string]any)
	if list, ok := fields[from]; ok {
		delete(fields, from)
		fields[to] = list
		cut(list, to)
	}
}

// cut removes what elements of a pairList have not, of which the server would warn.
func cut(list any, name string) {
	elements, _ := list.([]any)
	for _, element := range elements {
		if fields, ok := element.(map[string]any); ok && name == pairList {
			maps.DeleteFunc(fields, func(key string, _ any) bool { return key != "volumeHandle" && key != "snapshotHandle" })
		}
	}
}
