package snapshotapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
)

const groupPath = "/apis/groupsnapshot.storage.k8s.io"

// all is what a server with all kinds of group snapshots has, in one version.
const all = "volumegroupsnapshots volumegroupsnapshots/status volumegroupsnapshotcontents volumegroupsnapshotcontents/status volumegroupsnapshotclasses"

// discovery answers what resources a server has in each version of group snapshots, and objects for everything else.
func discovery(versions map[string]string, object string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		version, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, groupPath+"/"), "/")
		resources, ok := versions[version]
		switch {
		case resources == "forbidden", resources == "hidden" && path == "":
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
		case !ok:
			http.NotFound(w, r)
		case path != "":
			fmt.Fprint(w, object)
		default:
			fmt.Fprintf(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":%q,"resources":[`, Group+"/"+version)
			for i, name := range strings.Fields(resources) {
				fmt.Fprintf(w, `%s{"name":%q}`, strings.Repeat(",", min(i, 1)), name)
			}
			fmt.Fprint(w, `]}`)
		}
	}
}

// TestServed finds the version of group snapshots of each server, and uses it.
func TestServed(t *testing.T) {
	cases := map[string]struct {
		reason   string
		versions map[string]string
		want     string // "": absent
		fail     bool
		asked    []string
	}{
		"All":    {reason: "The newest is preferred.", versions: map[string]string{"v1": all, "v1beta2": all, "v1beta1": all}, want: "v1", asked: []string{"v1"}},
		"Two":    {reason: "external-snapshotter 8.3 has no v1.", versions: map[string]string{"v1beta2": all, "v1beta1": all}, want: "v1beta2", asked: []string{"v1", "v1beta2"}},
		"Oldest": {reason: "8.0 to 8.2 have but one.", versions: map[string]string{"v1beta1": all}, want: "v1beta1", asked: []string{"v1", "v1beta2", "v1beta1"}},
		"None":   {reason: "The kinds are not installed.", asked: []string{"v1", "v1beta2", "v1beta1"}},
		"Alpha":  {reason: "No version of before is known.", versions: map[string]string{"v1alpha1": all}, asked: []string{"v1", "v1beta2", "v1beta1"}},
		"Partly": {reason: "All three kinds are needed.", versions: map[string]string{"v1": "volumegroupsnapshots volumegroupsnapshotclasses", "v1beta2": all}, want: "v1beta2", asked: []string{"v1", "v1beta2"}},
		"Forbidden": {
			reason: "That is not known to be absent.", versions: map[string]string{"v1": "forbidden", "v1beta2": all}, fail: true,
			asked: []string{"v1", "v1/volumegroupsnapshots?limit=1"},
		},
		"Hidden": {
			reason: "Discovery is refused, lists are not.", versions: map[string]string{"v1beta2": "hidden"}, want: "v1beta2",
			asked: []string{"v1", "v1beta2", "v1beta2/volumegroupsnapshots?limit=1", "v1beta2/volumegroupsnapshotcontents?limit=1", "v1beta2/volumegroupsnapshotclasses?limit=1"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			client, s := newClient(t, discovery(tc.versions, `{"metadata":{"name":"x"}}`))
			groups := client.VolumeGroupSnapshots("team") // made before the version is known
			version, ok, err := client.Served(t.Context())
			if version != tc.want || ok != (tc.want != "") || (err != nil) != tc.fail {
				t.Errorf("%s\nversion %q, served %v, error %v", tc.reason, version, ok, err)
			}
			for i := range tc.asked {
				tc.asked[i] = "GET " + groupPath + "/" + tc.asked[i]
			}
			if diff := cmp.Diff(tc.asked, s.asked); diff != "" {
				t.Errorf("%s\nasked (-want +got):\n%s", tc.reason, diff)
			}
			if !ok {
				return
			}
			if _, err := groups.Get(t.Context(), "x", metav1.GetOptions{}); err != nil {
				t.Errorf("%s\nread in version %q: %v", tc.reason, version, err)
			}
		})
	}
}

// TestInstalledLater asks again, before and after the kinds are installed, and after an update that has dropped a version.
func TestInstalledLater(t *testing.T) {
	versions := map[string]string{}
	client, _ := newClient(t, discovery(versions, `{"metadata":{"name":"x"}}`))
	check := func(reason string, wantVersion string) {
		t.Helper()
		version, ok, err := client.Served(t.Context())
		if version != wantVersion || ok != (wantVersion != "") || err != nil {
			t.Errorf("%s: version %q, served %v, error %v", reason, version, ok, err)
		}
		if _, err := client.VolumeGroupSnapshotClasses().Get(t.Context(), "x", metav1.GetOptions{}); IsAbsent(err) == ok {
			t.Errorf("%s: read a class: %v", reason, err)
		}
	}
	check("nothing yet", "")
	versions["v1beta1"] = all
	check("installed", "v1beta1")
	versions["v1"] = all
	check("updated", "v1")
	delete(versions, "v1")
	check("set back", "v1beta1")
	clear(versions)
	check("removed", "")
}

const (
	// pairs and infos are the list of members in v1beta1, and in all later versions. What v1beta1 has no field for is null there.
	pairs = `"volumeSnapshotHandlePairList":[{"snapshotHandle":"snap-1","volumeHandle":"vol-1"}]`
	infos = `"volumeSnapshotInfoList":[{"volumeHandle":"vol-1","snapshotHandle":"snap-1"}]`
)

// contentStatus is that of a group content, whose list has the fields that only the later versions know.
func contentStatus() *groupv1.VolumeGroupSnapshotContentStatus {
	ready, at, size := true, int64(1_700_000_000_123_456_789), int64(1<<30)
	return &groupv1.VolumeGroupSnapshotContentStatus{
		ReadyToUse:             &ready,
		VolumeSnapshotInfoList: []groupv1.VolumeSnapshotInfo{{VolumeHandle: "vol-1", SnapshotHandle: "snap-1", CreationTime: &at, ReadyToUse: &ready, RestoreSize: &size}},
	}
}

// TestBetaAnswers reads a content of a group snapshot in v1beta1 in every way.
func TestBetaAnswers(t *testing.T) {
	object := `{"kind":"VolumeGroupSnapshotContent","apiVersion":"groupsnapshot.storage.k8s.io/v1beta1","metadata":{"name":"g"},"status":{"readyToUse":true,` + pairs + `}}`
	client, _ := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/v1beta1"):
			discovery(map[string]string{"v1beta1": all}, "")(w, r)
		case !strings.Contains(r.URL.Path, "/v1beta1/"):
			http.NotFound(w, r)
		case r.URL.Query().Get("watch") != "":
			fmt.Fprintf(w, `{"type":"ADDED","object":%s}`, object)
		case strings.HasSuffix(r.URL.Path, "/g"):
			fmt.Fprint(w, object)
		default:
			fmt.Fprintf(w, `{"kind":"VolumeGroupSnapshotContentList","apiVersion":"groupsnapshot.storage.k8s.io/v1beta1","metadata":{},"items":[%s]}`, object)
		}
	})
	if version, ok, err := client.Served(t.Context()); version != "v1beta1" || !ok || err != nil {
		t.Fatalf("version %q, served %v, error %v", version, ok, err)
	}
	contents := client.VolumeGroupSnapshotContents()
	got, err := contents.Get(t.Context(), "g", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, err := contents.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("listed %v, error %v", list, err)
	}
	stream, err := contents.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Stop()
	watched, _ := (<-stream.ResultChan()).Object.(*groupv1.VolumeGroupSnapshotContent)
	for how, content := range map[string]*groupv1.VolumeGroupSnapshotContent{"read": got, "listed": &list.Items[0], "watched": watched} {
		if content == nil || content.Status == nil {
			t.Fatalf("%s: %v", how, content)
		}
		if diff := cmp.Diff([]groupv1.VolumeSnapshotInfo{{VolumeHandle: "vol-1", SnapshotHandle: "snap-1"}}, content.Status.VolumeSnapshotInfoList); diff != "" {
			t.Errorf("%s (-want +got):\n%s", how, diff)
		}
	}
}

// TestBetaRequests writes a content of a group snapshot in every way, and looks at what a server with each version gets.
func TestBetaRequests(t *testing.T) {
	content := &groupv1.VolumeGroupSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Status: contentStatus()}
	patch := func(pt types.PatchType, data string) func(context.Context, VolumeGroupSnapshotContents) (kube.Object, error) {
		return func(ctx context.Context, r VolumeGroupSnapshotContents) (kube.Object, error) {
			return r.Patch(ctx, "g", pt, []byte(data), metav1.PatchOptions{}, "status")
		}
	}
	cases := map[string]struct {
		write func(context.Context, VolumeGroupSnapshotContents) (kube.Object, error)
		beta  string
		later string // what stays in all other versions
	}{
		"Create": {
			write: func(ctx context.Context, r VolumeGroupSnapshotContents) (kube.Object, error) {
				return r.Create(ctx, content, metav1.CreateOptions{})
			},
			beta: pairs, later: `"creationTime":1700000000123456789`,
		},
		"UpdateStatus": {
			write: func(ctx context.Context, r VolumeGroupSnapshotContents) (kube.Object, error) {
				return r.UpdateStatus(ctx, content, metav1.UpdateOptions{})
			},
			beta: pairs, later: `"restoreSize":1073741824`,
		},
		"Merge": {write: patch(types.MergePatchType, `{"status":{`+infos+`}}`), beta: `{"status":{` + pairs + `}}`, later: infos},
		"JSON": {
			write: patch(types.JSONPatchType, `[{"op":"test","path":"/metadata/uid","value":"u"},{"op":"add","path":"/status/volumeSnapshotInfoList","value":[{"volumeHandle":"vol-1","readyToUse":true}]}]`),
			beta:  `{"op":"add","path":"/status/volumeSnapshotHandlePairList","value":[{"volumeHandle":"vol-1"}]}`, later: `"path":"/status/volumeSnapshotInfoList"`,
		},
		"JSONStatus": {write: patch(types.JSONPatchType, `[{"op":"add","path":"/status","value":{`+infos+`}}]`), beta: `"value":{` + pairs + `}`, later: infos},
	}
	for name, tc := range cases {
		for version, want := range map[string]string{"v1": tc.later, "v1beta2": tc.later, "v1beta1": tc.beta} {
			t.Run(name+"/"+version, func(t *testing.T) {
				client, s := newClient(t, discovery(map[string]string{version: all}, `{"metadata":{"name":"g"}}`))
				if got, ok, err := client.Served(t.Context()); got != version || !ok || err != nil {
					t.Fatalf("version %q, served %v, error %v", got, ok, err)
				}
				if obj, err := tc.write(t.Context(), client.VolumeGroupSnapshotContents()); err != nil || obj.GetName() != "g" {
					t.Fatalf("answer %v, error %v", obj, err)
				}
				if !strings.Contains(s.body, want) {
					t.Errorf("sent %s\nwant %s", s.body, want)
				}
				if strings.Contains(s.body, "apiVersion") && !strings.Contains(s.body, `"apiVersion":"groupsnapshot.storage.k8s.io/`+version+`"`) {
					t.Errorf("sent %s\nwant version %s", s.body, version)
				}
			})
		}
	}
}

// FuzzRenameList converts documents of all kinds: what is no JSON stays as it is, and nothing but the name of the list changes.
func FuzzRenameList(f *testing.F) {
	for _, seed := range []string{
		"", "{", "volumeSnapshotHandlePairList", `{"status":{` + pairs + `}}`, `{"items":[{"status":{` + pairs + `}},7,null]}`,
		`{"status":["volumeSnapshotHandlePairList"],"metadata":{"labels":{"volumeSnapshotHandlePairList":"x"}}}`,
		`[{"path":"/status/volumeSnapshotHandlePairList/0","value":7}]`, `{"status":{"volumeSnapshotHandlePairList":null,"n":12345678901234567890}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, document string) {
		there := renameList([]byte(document), pairList, infoList)
		if (!strings.Contains(document, pairList) || !json.Valid([]byte(document))) && string(there) != document {
			t.Errorf("%q becomes %q, although it has no such list, or is no JSON", document, there)
		}
		if again := renameList(there, pairList, infoList); string(again) != string(there) {
			t.Errorf("%q becomes %q, and again %q", document, there, again)
		}
	})
}
