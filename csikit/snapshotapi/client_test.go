package snapshotapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// server answers requests and remembers what was asked.
type server struct {
	asked []string
	reply func(w http.ResponseWriter, r *http.Request)
	// body is that of the last request.
	body string
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.body = strings.TrimSpace(string(body))
	line := r.Method + " " + r.URL.RequestURI()
	if strings.Contains(s.body, `"monday"`) {
		line += " monday as " + r.Header.Get("Content-Type")
	}
	s.asked = append(s.asked, line)
	w.Header().Set("Content-Type", "application/json")
	s.reply(w, r)
}

// newClient returns a client of a server.
func newClient(t *testing.T, reply func(http.ResponseWriter, *http.Request)) (Client, *server) {
	t.Helper()
	s := &server{reply: reply}
	listening := httptest.NewServer(s)
	t.Cleanup(listening.Close)
	// Protobuf is what the client of all other kinds is set to.
	cfg := &rest.Config{Host: listening.URL}
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client, s
}

// snapshotReply answers a snapshot, or a list or stream of it.
func snapshotReply(w http.ResponseWriter, r *http.Request) {
	snapshot := `{"kind":"VolumeSnapshot","apiVersion":"snapshot.storage.k8s.io/v1","metadata":{"name":"monday","resourceVersion":"7"}}`
	switch {
	case r.URL.Query().Get("watch") != "":
		fmt.Fprintf(w, `{"type":"ADDED","object":%s}`, snapshot)
	case r.Method == http.MethodGet && !strings.Contains(r.URL.Path, "monday"):
		fmt.Fprintf(w, `{"kind":"VolumeSnapshotList","apiVersion":"snapshot.storage.k8s.io/v1","metadata":{"resourceVersion":"7"},"items":[%s]}`, snapshot)
	default:
		fmt.Fprint(w, snapshot)
	}
}

// TestRequests makes each request, and looks at what the server is asked.
func TestRequests(t *testing.T) {
	const path = "/apis/snapshot.storage.k8s.io/v1/namespaces/team/volumesnapshots"
	monday := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "monday"}}
	seconds := int64(3)
	cases := map[string]struct {
		ask  func(ctx context.Context, r VolumeSnapshots) (*snapshotv1.VolumeSnapshot, error)
		want string
	}{
		"Create": {
			ask: func(ctx context.Context, r VolumeSnapshots) (*snapshotv1.VolumeSnapshot, error) {
				return r.Create(ctx, monday, metav1.CreateOptions{})
			},
			want: "POST " + path + " monday as application/json",
		},
		"Update": {
			ask: func(ctx context.Context, r VolumeSnapshots) (*snapshotv1.VolumeSnapshot, error) {
				return r.Update(ctx, monday, metav1.UpdateOptions{})
			},
			want: "PUT " + path + "/monday monday as application/json",
		},
		"UpdateStatus": {
			ask: func(ctx context.Context, r VolumeSnapshots) (*snapshotv1.VolumeSnapshot, error) {
				return r.UpdateStatus(ctx, monday, metav1.UpdateOptions{})
			},
			want: "PUT " + path + "/monday/status monday as application/json",
		},
		"Get": {
			ask: func(ctx context.Context, r VolumeSnapshots) (*snapshotv1.VolumeSnapshot, error) {
				return r.Get(ctx, "monday", metav1.GetOptions{})
			},
			want: "GET " + path + "/monday",
		},
		"Delete": {
			ask: func(ctx context.Context, r VolumeSnapshots) (*snapshotv1.VolumeSnapshot, error) {
				return monday, r.Delete(ctx, "monday", metav1.DeleteOptions{})
			},
			want: "DELETE " + path + "/monday",
		},
		"Patch": {
			ask: func(ctx context.Context, r VolumeSnapshots) (*snapshotv1.VolumeSnapshot, error) {
				return r.Patch(ctx, "monday", types.MergePatchType, []byte(`{"metadata":{"name":"monday"}}`), metav1.PatchOptions{})
			},
			want: "PATCH " + path + "/monday monday as application/merge-patch+json",
		},
		"List": {
			ask: func(ctx context.Context, r VolumeSnapshots) (*snapshotv1.VolumeSnapshot, error) {
				list, err := r.List(ctx, metav1.ListOptions{Limit: 1})
				if err != nil {
					return nil, err
				}
				return &list.Items[0], nil
			},
			want: "GET " + path + "?limit=1",
		},
		"Watch": {
			ask: func(ctx context.Context, r VolumeSnapshots) (*snapshotv1.VolumeSnapshot, error) {
				stream, err := r.Watch(ctx, metav1.ListOptions{ResourceVersion: "7", TimeoutSeconds: &seconds})
				if err != nil {
					return nil, err
				}
				defer stream.Stop()
				event := <-stream.ResultChan()
				snapshot, _ := event.Object.(*snapshotv1.VolumeSnapshot)
				return snapshot, nil
			},
			want: "GET " + path + "?resourceVersion=7&timeout=3s&timeoutSeconds=3&watch=true",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			client, s := newClient(t, snapshotReply)
			got, err := tc.ask(t.Context(), client.VolumeSnapshots("team"))
			if err != nil || got == nil || got.Name != "monday" {
				t.Fatalf("snapshot %v, error %v", got, err)
			}
			if len(s.asked) != 1 || s.asked[0] != tc.want {
				t.Errorf("asked %q, want %q", s.asked, tc.want)
			}
		})
	}
}

// TestPaths reads an object of each kind.
func TestPaths(t *testing.T) {
	client, s := newClient(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"metadata":{"name":"x"}}`) })
	ctx, opts := t.Context(), metav1.GetOptions{}
	const snapshots, groups = "GET /apis/snapshot.storage.k8s.io/v1/", "GET /apis/groupsnapshot.storage.k8s.io/v1/"
	for want, get := range map[string]func() (kube.Object, error){
		snapshots + "namespaces/team/volumesnapshots/x":   func() (kube.Object, error) { return client.VolumeSnapshots("team").Get(ctx, "x", opts) },
		snapshots + "volumesnapshotcontents/x":            func() (kube.Object, error) { return client.VolumeSnapshotContents().Get(ctx, "x", opts) },
		snapshots + "volumesnapshotclasses/x":             func() (kube.Object, error) { return client.VolumeSnapshotClasses().Get(ctx, "x", opts) },
		groups + "namespaces/team/volumegroupsnapshots/x": func() (kube.Object, error) { return client.VolumeGroupSnapshots("team").Get(ctx, "x", opts) },
		groups + "volumegroupsnapshotcontents/x":          func() (kube.Object, error) { return client.VolumeGroupSnapshotContents().Get(ctx, "x", opts) },
		groups + "volumegroupsnapshotclasses/x":           func() (kube.Object, error) { return client.VolumeGroupSnapshotClasses().Get(ctx, "x", opts) },
	} {
		s.asked = nil
		obj, err := get()
		if err != nil || obj.GetName() != "x" {
			t.Errorf("object %v, error %v", obj, err)
		}
		if diff := cmp.Diff([]string{want}, s.asked); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
	}
}

// TestNew refuses what no client can be made of, and has one limit of requests for all kinds.
func TestNew(t *testing.T) {
	if _, err := New(&rest.Config{Host: "http://[::1"}); err == nil {
		t.Error("a host that is no host: want an error")
	}
	if _, err := New(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: "/no/such/file"}}); err == nil {
		t.Error("no certificate authority: want an error")
	}
	made, err := New(&rest.Config{Host: "http://localhost", QPS: 7, Burst: 8})
	if err != nil {
		t.Fatal(err)
	}
	c, ok := made.(*client)
	if !ok {
		t.Fatalf("a %T", made)
	}
	limit := c.snapshots.GetRateLimiter()
	if limit.QPS() != 7 {
		t.Errorf("limit of %v requests per second", limit.QPS())
	}
	for _, group := range append(c.groups, served{c}) {
		if group.GetRateLimiter() != limit {
			t.Errorf("%v has a limit of its own", group.APIVersion())
		}
	}
}

// TestNames has one example of each name that is made.
func TestNames(t *testing.T) {
	const uid, hash = "0e5c", "9968a290a6d5489788f2e7670fd7383bd3c18c7968dccd245b3ae96422481dce"
	got := []string{ContentName(uid), GroupContentName(uid), MemberSnapshotName(uid, "vol-1"), MemberContentName(uid, "vol-1")}
	want := []string{"snapcontent-0e5c", "groupsnapcontent-0e5c", "snapshot-" + hash, "snapcontent-" + hash}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// TestIsAbsent distinguishes a cluster without snapshots, whose server does not know the path, from one without that snapshot.
func TestIsAbsent(t *testing.T) {
	status := func(w http.ResponseWriter, err *apierrors.StatusError) {
		w.WriteHeader(int(err.ErrStatus.Code))
		err.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		_ = json.NewEncoder(w).Encode(err.ErrStatus)
	}
	cases := map[string]struct {
		reason string
		reply  func(http.ResponseWriter, *http.Request)
		absent bool
	}{
		"NoKind": {reason: "The path leads nowhere.", reply: http.NotFound, absent: true},
		"NoObject": {reason: "There is no such snapshot.", reply: func(w http.ResponseWriter, _ *http.Request) {
			status(w, apierrors.NewNotFound(snapshotv1.Resource("volumesnapshots"), "monday"))
		}},
		"Forbidden": {reason: "Nobody knows.", reply: func(w http.ResponseWriter, _ *http.Request) {
			status(w, apierrors.NewForbidden(snapshotv1.Resource("volumesnapshots"), "monday", nil))
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			client, _ := newClient(t, tc.reply)
			_, err := client.VolumeSnapshots("team").Get(t.Context(), "monday", metav1.GetOptions{})
			if err == nil || IsAbsent(err) != tc.absent {
				t.Errorf("%s\nabsent: %v, want %v: %v", tc.reason, IsAbsent(err), tc.absent, err)
			}
		})
	}
}
