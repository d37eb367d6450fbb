package kubeapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// server answers with one object and remembers what was asked.
type server struct {
	asked []string
	reply func(w http.ResponseWriter, r *http.Request)
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked = append(s.asked, r.Method+" "+r.URL.RequestURI())
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
	client, err := New(Config{REST: cfg})
	if err != nil {
		t.Fatal(err)
	}
	return client, s
}

// TestSnapshots reads snapshots and their contents.
func TestSnapshots(t *testing.T) {
	client, s := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"metadata":{"name":"monday"}}`)
	})
	snapshot, err := client.VolumeSnapshots("team").Get(t.Context(), "monday", metav1.GetOptions{})
	if err != nil || snapshot.Name != "monday" {
		t.Errorf("snapshot %v, error %v", snapshot, err)
	}
	content, err := client.VolumeSnapshotContents().Get(t.Context(), "monday", metav1.GetOptions{})
	if err != nil || content.Name != "monday" {
		t.Errorf("content %v, error %v", content, err)
	}
	const path = "GET /apis/snapshot.storage.k8s.io/v1/"
	if diff := cmp.Diff([]string{path + "namespaces/team/volumesnapshots/monday", path + "volumesnapshotcontents/monday"}, s.asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// TestReferenceGrants lists and watches ReferenceGrants of servers with different versions of them.
func TestReferenceGrants(t *testing.T) {
	const path = "/apis/gateway.networking.k8s.io/"
	want := ReferenceGrantSpec{
		From: []ReferenceGrantFrom{{Kind: "PersistentVolumeClaim", Namespace: "team"}},
		To:   []ReferenceGrantTo{{Group: "snapshot.storage.k8s.io", Kind: "VolumeSnapshot", Name: "monday"}, {Kind: "PersistentVolumeClaim"}},
	}
	cases := map[string]struct {
		reason string
		served []string
		// want is what the server is asked; absent says that the list finds no such kind.
		want   []string
		absent bool
	}{
		"Both":  {reason: "v1 is preferred.", served: []string{"v1", "v1beta1"}, want: []string{"v1/referencegrants", "v1/referencegrants?watch=true"}},
		"New":   {reason: "v1 suffices.", served: []string{"v1"}, want: []string{"v1/referencegrants", "v1/referencegrants?watch=true"}},
		"Older": {reason: "Gateway API before 1.5 has no v1.", served: []string{"v1beta1"}, want: []string{"v1/referencegrants", "v1beta1/referencegrants", "v1beta1/referencegrants?watch=true"}},
		"None":  {reason: "They are not installed.", want: []string{"v1/referencegrants", "v1beta1/referencegrants"}, absent: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			client, s := newClient(t, func(w http.ResponseWriter, r *http.Request) {
				version := strings.Split(strings.TrimPrefix(r.URL.Path, path), "/")[0]
				if !slices.Contains(tc.served, version) {
					http.NotFound(w, r)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				grant := fmt.Sprintf(`{"kind":"ReferenceGrant","apiVersion":"gateway.networking.k8s.io/%s","metadata":{"namespace":"store","name":"teams"},"spec":{`, version) +
					`"from":[{"group":"","kind":"PersistentVolumeClaim","namespace":"team"}],"to":[{"group":"snapshot.storage.k8s.io","kind":"VolumeSnapshot","name":"monday"},{"group":"","kind":"PersistentVolumeClaim"}]}}`
				if r.URL.Query().Get("watch") != "" {
					fmt.Fprintf(w, `{"type":"ADDED","object":%s}`, grant)
					return
				}
				fmt.Fprintf(w, `{"kind":"ReferenceGrantList","apiVersion":"gateway.networking.k8s.io/%s","metadata":{"resourceVersion":"7"},"items":[%s]}`, version, grant)
			})
			grants := client.ReferenceGrants(metav1.NamespaceAll)
			list, err := grants.List(t.Context(), metav1.ListOptions{})
			if snapshotapi.IsAbsent(err) != tc.absent || (err != nil) != tc.absent {
				t.Fatalf("%s\nerror %v, absent: want %v", tc.reason, err, tc.absent)
			}
			if !tc.absent {
				stream, err := grants.Watch(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer stream.Stop()
				watched, ok := (<-stream.ResultChan()).Object.(*ReferenceGrant)
				if !ok || len(list.Items) != 1 {
					t.Fatalf("%s\nlisted %v, watched %v", tc.reason, list, watched)
				}
				for how, got := range map[string]*ReferenceGrant{"listed": &list.Items[0], "watched": watched} {
					if diff := cmp.Diff(want, got.Spec); diff != "" || got.Name != "teams" {
						t.Errorf("%s\n%s %q (-want +got):\n%s", tc.reason, how, got.Name, diff)
					}
				}
			}
			for i := range tc.want {
				tc.want[i] = "GET " + path + tc.want[i]
			}
			if diff := cmp.Diff(tc.want, s.asked); diff != "" {
				t.Errorf("%s\nasked (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestGrantIsCopied changes a copy, which leaves the original as it was.
func TestGrantIsCopied(t *testing.T) {
	list := &ReferenceGrantList{Items: []ReferenceGrant{{
		ObjectMeta: metav1.ObjectMeta{Name: "teams", Labels: map[string]string{"a": "b"}},
		Spec:       ReferenceGrantSpec{From: []ReferenceGrantFrom{{Kind: "PersistentVolumeClaim"}}, To: []ReferenceGrantTo{{Kind: "VolumeSnapshot"}}},
	}}}
	copied, ok := list.DeepCopyObject().(*ReferenceGrantList)
	if diff := cmp.Diff(list, copied); !ok || diff != "" {
		t.Fatalf("copy (-original +copy):\n%s", diff)
	}
	copied.Items[0].Labels["a"], copied.Items[0].Spec.From[0].Kind, copied.Items[0].Spec.To[0].Kind = "c", "Pod", "Pod"
	if got := list.Items[0]; got.Labels["a"] != "b" || got.Spec.From[0].Kind != "PersistentVolumeClaim" || got.Spec.To[0].Kind != "VolumeSnapshot" {
		t.Errorf("the original is changed: %+v", got)
	}
}

// TestOwner reads what an owner reference refers to, of whatever kind.
func TestOwner(t *testing.T) {
	cases := map[string]struct {
		ref  metav1.OwnerReference
		want string
		fail bool
	}{
		"ReplicaSet": {ref: metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "driver-5d"}, want: "GET /apis/apps/v1/namespaces/storage/replicasets/driver-5d"},
		"Core":       {ref: metav1.OwnerReference{APIVersion: "v1", Kind: "ReplicationController", Name: "driver"}, want: "GET /api/v1/namespaces/storage/replicationcontrollers/driver"},
		"Custom":     {ref: metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Policy", Name: "driver"}, want: "GET /apis/example.com/v1/namespaces/storage/policies/driver"},
		"Malformed":  {ref: metav1.OwnerReference{APIVersion: "a/b/c", Kind: "Policy", Name: "driver"}, fail: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			client, s := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"driver","ownerReferences":[{"name":"owner"}]}}`)
			})
			owner, err := client.Owner(t.Context(), "storage", tc.ref)
			if tc.fail {
				if err == nil || len(s.asked) > 0 {
					t.Errorf("error %v, asked %q", err, s.asked)
				}
				return
			}
			if err != nil || len(owner.OwnerReferences) != 1 || owner.OwnerReferences[0].Name != "owner" {
				t.Fatalf("owner %v, error %v", owner, err)
			}
			if s.asked[0] != tc.want {
				t.Errorf("asked %q, want %q", s.asked, tc.want)
			}
		})
	}
	client, _ := newClient(t, http.NotFound)
	if _, err := client.Owner(t.Context(), "storage", metav1.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "x"}); !apierrors.IsNotFound(err) {
		t.Errorf("error %v, want one that says that it was not found", err)
	}
}

// TestCapacities writes an object in protobuf, within a limit of its own.
func TestCapacities(t *testing.T) {
	for name, limit := range map[string]float64{"Unlimited": 0, "Limited": 1000} {
		t.Run(name, func(t *testing.T) {
			listening := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got, want := r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type"), "POST /apis/storage.k8s.io/v1/namespaces/storage/csistoragecapacities application/vnd.kubernetes.protobuf"; got != want {
					t.Errorf("asked %q, want %q", got, want)
				}
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, `{"kind":"CSIStorageCapacity","apiVersion":"storage.k8s.io/v1","metadata":{"name":"csisc-1"}}`)
			}))
			defer listening.Close()
			cfg := &rest.Config{Host: listening.URL}
			cfg.ContentType = "application/vnd.kubernetes.protobuf"
			api, err := New(Config{REST: cfg, CapacityQPS: limit, CapacityBurst: 3})
			if err != nil {
				t.Fatal(err)
			}
			if limiter := api.(*client).capacities.GetRateLimiter(); (limiter == nil) != (limit == 0) || limiter != nil && limiter.QPS() != float32(limit) {
				t.Errorf("limiter %v", limiter)
			}
			if cfg.QPS != 0 || cfg.Burst != 0 {
				t.Error("the limit is that of all other requests, too")
			}
			got, err := api.CSIStorageCapacities("storage").Create(t.Context(), &storagev1.CSIStorageCapacity{StorageClassName: "fast"}, metav1.CreateOptions{})
			if err != nil || got.Name != "csisc-1" {
				t.Errorf("object %v, error %v", got, err)
			}
		})
	}
}
