package snapshotapi

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/client-go/rest/watch"
)

// received is what one decoder of watch events has made of a stream.
type received struct {
	Types  []string
	Objs   []runtime.Object
	Failed bool
}

func receive(t *testing.T, s runtime.NegotiatedSerializer, stream string) (all received) {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(s.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		t.Fatal("no JSON")
	}
	frames := info.StreamSerializer.NewFrameReader(io.NopCloser(strings.NewReader(stream)))
	decoder := watch.NewDecoder(streaming.NewDecoder(frames, info.StreamSerializer.Serializer), s.DecoderToVersion(info.Serializer, snapshotv1.SchemeGroupVersion))
	defer decoder.Close()
	for {
		what, obj, err := decoder.Decode()
		if err != nil {
			all.Failed = !strings.Contains(err.Error(), "EOF")
			return all
		}
		all.Types, all.Objs = append(all.Types, string(what)), append(all.Objs, obj)
	}
}

// Whatever a server sends is decoded as the decoders of Kubernetes do.
func TestEventsAreDecodedAsEver(t *testing.T) {
	t.Parallel()
	const object = `{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","metadata":{"name":"a","annotations":{"k":"a \"quoted\" }{"}},"status":{"readyToUse":true}}`
	tests := map[string]struct {
		reason, stream string
		want           int // events
		failed         bool
	}{
		"AsWritten":      {"so does an API server write it", `{"type":"ADDED","object":` + object + "}\n" + `{"type":"MODIFIED","object":` + object + "}\n", 2, false},
		"OtherOrder":     {"JSON has no order", `{"object":` + object + `,"type":"ADDED"}`, 1, false},
		"KindFirst":      {"so do others write objects", `{"type":"ADDED","object":{"kind":"VolumeSnapshot","apiVersion":"snapshot.storage.k8s.io/v1","metadata":{"name":"a"}}}`, 1, false},
		"Spaces":         {"JSON may have spaces", "{ \"type\": \"ADDED\", \"object\":\n" + object + " }\n\n", 1, false},
		"SpacesWithin":   {"JSON may have spaces anywhere", `{"type":"ADDED" ,"object":` + object + " }\n", 1, false},
		"Escapes":        {"JSON may have escapes", `{"type":"\u0041DDED","object":{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"Volume\u0053napshot","metadata":{"name":"a"}}}`, 1, false},
		"Error":          {"an error has the kind Status", `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}}`, 1, false},
		"Bookmark":       {"a bookmark has a version only", `{"type":"BOOKMARK","object":{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","metadata":{"resourceVersion":"9","creationTimestamp":null}}}`, 1, false},
		"UnknownKind":    {"what nobody knows is an error", `{"type":"ADDED","object":{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"Snap"}}`, 0, true},
		"UnknownType":    {"so is an event", `{"type":"MOVED","object":` + object + `}`, 0, true},
		"BadVersion":     {"so is a version with two slashes", `{"type":"ADDED","object":{"apiVersion":"a/b/c","kind":"VolumeSnapshot"}}`, 0, true},
		"BrokenObject":   {"so is what is no JSON", `{"type":"ADDED","object":{"apiVersion":"snapshot.storage.k8s.io/v1","kind":"VolumeSnapshot","metadata":[}}`, 0, true},
		"ObjectIsNumber": {"so is a number", `{"type":"ADDED","object":7}`, 0, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scheme := runtime.NewScheme()
			if err := AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			got := receive(t, newSerializers(scheme), tc.stream)
			want := receive(t, serializer.NewCodecFactory(scheme).WithoutConversion(), tc.stream)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-Kubernetes +ours):\n%s", tc.reason, diff)
			}
			if len(got.Objs) != tc.want || got.Failed != tc.failed {
				t.Errorf("%s: %d events, failed %v; want %d, %v", tc.reason, len(got.Objs), got.Failed, tc.want, tc.failed)
			}
		})
	}
}

// What an API server sends is not read more often than it must be.
func TestEventsAreReadOnce(t *testing.T) {
	t.Parallel()
	event := &metav1.WatchEvent{}
	data := []byte(`{"type":"ADDED","object":{"apiVersion":"example.com/v1","kind":"A" and no JSON at all}}` + "\n")
	if _, _, err := (eventSerializer{}).Decode(data, nil, event); err != nil || event.Type != "ADDED" {
		t.Fatalf("%+v, %v", event, err)
	}
	if !bytes.HasPrefix(event.Object.Raw, []byte(`{"apiVersion"`)) || !bytes.HasSuffix(event.Object.Raw, []byte("at all}")) {
		t.Errorf("the object is %s", event.Object.Raw)
	}
	kind, err := (headerFactory{}).Interpret(event.Object.Raw)
	if err != nil || kind.String() != "example.com/v1, Kind=A" {
		t.Errorf("kind %v, %v", kind, err)
	}
}
