package snapshotapi

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPairs reads contents of group snapshots that were stored by earlier versions, in v1 and v1beta2, as object, list and event.
func TestPairs(t *testing.T) {
	const pairs = `"volumeSnapshotHandlePairList":[{"volumeHandle":"v","snapshotHandle":"s"}]`
	const annotation = `"annotations":{"a":"b","groupsnapshot.storage.kubernetes.io/volume-snapshot-info-list":"[{\"volumeHandle\":\"v\",\"snapshotHandle\":\"w\"}]"}`
	info := func(handle string) []groupv1.VolumeSnapshotInfo {
		return []groupv1.VolumeSnapshotInfo{{VolumeHandle: "v", SnapshotHandle: handle}}
	}
	tests := map[string]struct {
		reason, object string
		want           []groupv1.VolumeSnapshotInfo
	}{
		"Pairs":      {"v1beta1 was stored", `{"metadata":{"name":"x"},"status":{` + pairs + `}}`, info("s")},
		"Annotation": {"the webhook has kept the list", `{"metadata":{"name":"x",` + annotation + `},"status":{` + pairs + `}}`, info("w")},
		"Infos":      {"what is in the status counts", `{"metadata":{"name":"x",` + annotation + `},"status":{` + pairs + `,"volumeSnapshotInfoList":[{"volumeHandle":"v","snapshotHandle":"n"}]}}`, info("n")},
		"None":       {"nothing is known", `{"metadata":{"name":"x"},"status":{"volumeSnapshotHandlePairList":[]}}`, nil},
		"Odd":        {"a list of something else is none", `{"metadata":{"name":"x","annotations":{"groupsnapshot.storage.kubernetes.io/volume-snapshot-info-list":"{"}},"status":{}}`, nil},
		"NoStatus":   {"a new object", `{"metadata":{"name":"x"}}`, nil},
	}
	for name, tt := range tests {
		for _, version := range []string{"v1", "v1beta2"} {
			t.Run(name+version, func(t *testing.T) {
				client, _ := newClient(t, func(w http.ResponseWriter, r *http.Request) {
					switch {
					case r.URL.Query().Get("watch") != "":
						fmt.Fprintf(w, `{"type":"ADDED","object":{"kind":"VolumeGroupSnapshotContent","apiVersion":"groupsnapshot.storage.k8s.io/%s",%s}`, version, tt.object[1:])
					case r.URL.Path == groupPath+"/"+version+"/volumegroupsnapshotcontents":
						fmt.Fprintf(w, `{"kind":"VolumeGroupSnapshotContentList","apiVersion":"groupsnapshot.storage.k8s.io/%s","metadata":{},"items":[%s]}`, version, tt.object)
					default:
						discovery(map[string]string{version: all}, tt.object)(w, r)
					}
				})
				if got, _, err := client.Served(t.Context()); got != version || err != nil {
					t.Fatalf("version %q, error %v", got, err)
				}
				contents := client.VolumeGroupSnapshotContents()
				object, err := contents.Get(t.Context(), "x", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				list, err := contents.List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				stream, err := contents.Watch(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer stream.Stop()
				event, ok := (<-stream.ResultChan()).Object.(*groupv1.VolumeGroupSnapshotContent)
				if !ok {
					t.Fatal("no event")
				}
				for way, read := range map[string]*groupv1.VolumeGroupSnapshotContent{"get": object, "list": &list.Items[0], "watch": event} {
					if diff := cmp.Diff(tt.want, InfoList(read)); diff != "" {
						t.Errorf("%s: %s (-want +got):\n%s", tt.reason, way, diff)
					}
				}
			})
		}
	}
}
