package kube_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// server is an API server in place of a network: it notes requests and answers all alike.
type server struct {
	mu       sync.Mutex
	requests []string // METHOD path?query
	accepts  []string
	bodies   []string
	status   int
	answer   []byte
}

func (s *server) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, req.Method+" "+req.URL.RequestURI())
	s.accepts = append(s.accepts, req.Header.Get("Accept"))
	body := ""
	if req.Body != nil {
		data, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		body = req.Header.Get("Content-Type") + " " + string(data[:min(len(data), 40)])
	}
	s.bodies = append(s.bodies, body)
	return &http.Response{
		StatusCode: s.status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(s.answer)), Request: req,
	}, nil
}

func newServer(t *testing.T, status int, answer any) (*server, kube.Client) {
	t.Helper()
	data, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{status: status, answer: data}
	cfg := &rest.Config{Host: "http://api.test", Transport: s, QPS: -1}
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kube.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s, client
}

func TestRequests(t *testing.T) {
	t.Parallel()
	pv := &corev1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
	}
	cases := map[string]struct {
		reason string
		do     func(ctx context.Context, r kube.PersistentVolumes) (string, error)
		want   string
		body   string
	}{
		"Create": {
			reason: "Objects are sent as protobuf.", want: "POST /api/v1/persistentvolumes", body: "application/vnd.kubernetes.protobuf k8s\x00",
			do: func(ctx context.Context, r kube.PersistentVolumes) (string, error) {
				got, err := r.Create(ctx, pv, metav1.CreateOptions{})
				return got.Name, err
			},
		},
		"Update": {
			reason: "An object is addressed by its name.", want: "PUT /api/v1/persistentvolumes/pv?fieldManager=me", body: "application/vnd.kubernetes.protobuf k8s\x00",
			do: func(ctx context.Context, r kube.PersistentVolumes) (string, error) {
				got, err := r.Update(ctx, pv, metav1.UpdateOptions{FieldManager: "me"})
				return got.Name, err
			},
		},
		"UpdateStatus": {
			reason: "The status is a subresource.", want: "PUT /api/v1/persistentvolumes/pv/status", body: "application/vnd.kubernetes.protobuf k8s\x00",
			do: func(ctx context.Context, r kube.PersistentVolumes) (string, error) {
				got, err := r.UpdateStatus(ctx, pv, metav1.UpdateOptions{})
				return got.Name, err
			},
		},
		"Patch": {
			reason: "Patches travel as they are.", want: "PATCH /api/v1/persistentvolumes/pv/status?force=true", body: "application/merge-patch+json {}",
			do: func(ctx context.Context, r kube.PersistentVolumes) (string, error) {
				got, err := r.Patch(ctx, "pv", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{Force: ptr.To(true)}, "status")
				return got.Name, err
			},
		},
		"Get": {
			reason: "One object.", want: "GET /api/v1/persistentvolumes/pv?resourceVersion=0",
			do: func(ctx context.Context, r kube.PersistentVolumes) (string, error) {
				got, err := r.Get(ctx, "pv", metav1.GetOptions{ResourceVersion: "0"})
				return got.Name, err
			},
		},
		"Delete": {
			reason: "Preconditions are in the body.", want: "DELETE /api/v1/persistentvolumes/pv", body: "application/vnd.kubernetes.protobuf k8s\x00",
			do: func(ctx context.Context, r kube.PersistentVolumes) (string, error) {
				return "pv", r.Delete(ctx, "pv", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("u")})
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, client := newServer(t, http.StatusOK, pv)
			got, err := tc.do(t.Context(), client.PersistentVolumes())
			if err != nil || got != "pv" {
				t.Fatalf("%s: got %q, %v", tc.reason, got, err)
			}
			if d := cmp.Diff([]string{tc.want}, s.requests); d != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, d)
			}
			if !strings.HasPrefix(s.bodies[0], tc.body) {
				t.Errorf("%s: want body %q, got %q", tc.reason, tc.body, s.bodies[0])
			}
			if want := "application/vnd.kubernetes.protobuf,application/json"; s.accepts[0] != want {
				t.Errorf("answers are wanted as protobuf, got %q", s.accepts[0])
			}
		})
	}
}

func TestPathsOfAllKinds(t *testing.T) {
	t.Parallel()
	s, client := newServer(t, http.StatusNotFound, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
	})
	ctx, opts := t.Context(), metav1.GetOptions{}
	gets := []func() error{
		func() error { _, err := client.PersistentVolumes().Get(ctx, "x", opts); return err },
		func() error { _, err := client.PersistentVolumeClaims("ns").Get(ctx, "x", opts); return err },
		func() error { _, err := client.Nodes().Get(ctx, "x", opts); return err },
		func() error { _, err := client.Pods("ns").Get(ctx, "x", opts); return err },
		func() error { _, err := client.Secrets("ns").Get(ctx, "x", opts); return err },
		func() error { _, err := client.Events("ns").Get(ctx, "x", opts); return err },
		func() error { _, err := client.StorageClasses().Get(ctx, "x", opts); return err },
		func() error { _, err := client.VolumeAttachments().Get(ctx, "x", opts); return err },
		func() error { _, err := client.CSINodes().Get(ctx, "x", opts); return err },
		func() error { _, err := client.CSIDrivers().Get(ctx, "x", opts); return err },
		func() error { _, err := client.VolumeAttributesClasses().Get(ctx, "x", opts); return err },
		func() error { _, err := client.Leases("ns").Get(ctx, "x", opts); return err },
	}
	for i, get := range gets {
		if err := get(); !apierrors.IsNotFound(err) {
			t.Errorf("request %d: the server's error is typed, got %v", i, err)
		}
	}
	want := []string{
		"GET /api/v1/persistentvolumes/x", "GET /api/v1/namespaces/ns/persistentvolumeclaims/x", "GET /api/v1/nodes/x",
		"GET /api/v1/namespaces/ns/pods/x", "GET /api/v1/namespaces/ns/secrets/x", "GET /api/v1/namespaces/ns/events/x",
		"GET /apis/storage.k8s.io/v1/storageclasses/x", "GET /apis/storage.k8s.io/v1/volumeattachments/x",
		"GET /apis/storage.k8s.io/v1/csinodes/x", "GET /apis/storage.k8s.io/v1/csidrivers/x",
		"GET /apis/storage.k8s.io/v1/volumeattributesclasses/x", "GET /apis/coordination.k8s.io/v1/namespaces/ns/leases/x",
	}
	if d := cmp.Diff(want, s.requests); d != "" {
		t.Errorf("paths (-want +got):\n%s", d)
	}
}

func TestListAndWatchOfAllKinds(t *testing.T) {
	t.Parallel()
	ctx, opts := t.Context(), metav1.ListOptions{LabelSelector: "a=b", TimeoutSeconds: ptr.To[int64](5)}
	s, client := newServer(t, http.StatusOK, storagev1.StorageClassList{
		TypeMeta: metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "StorageClassList"}, Items: []storagev1.StorageClass{{}, {}},
	})
	list, err := client.StorageClasses().List(ctx, opts)
	if err != nil || len(list.Items) != 2 {
		t.Errorf("want two classes, got %v, %v", list, err)
	}
	w, err := client.StorageClasses().Watch(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	path := "GET /apis/storage.k8s.io/v1/storageclasses?labelSelector=a%3Db&timeout=5s&timeoutSeconds=5"
	if d := cmp.Diff([]string{path, path + "&watch=true"}, s.requests); d != "" {
		t.Errorf("requests (-want +got):\n%s", d)
	}
	lists := []func() (runtime.Object, error){
		func() (runtime.Object, error) { return client.PersistentVolumes().List(ctx, opts) },
		func() (runtime.Object, error) { return client.PersistentVolumeClaims("").List(ctx, opts) },
		func() (runtime.Object, error) { return client.Nodes().List(ctx, opts) },
		func() (runtime.Object, error) { return client.Pods("").List(ctx, opts) },
		func() (runtime.Object, error) { return client.Secrets("").List(ctx, opts) },
		func() (runtime.Object, error) { return client.Events("").List(ctx, opts) },
		func() (runtime.Object, error) { return client.VolumeAttachments().List(ctx, opts) },
		func() (runtime.Object, error) { return client.CSINodes().List(ctx, opts) },
		func() (runtime.Object, error) { return client.CSIDrivers().List(ctx, opts) },
		func() (runtime.Object, error) { return client.VolumeAttributesClasses().List(ctx, opts) },
		func() (runtime.Object, error) { return client.Leases("").List(ctx, opts) },
	}
	s.answer = []byte(`{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Forbidden","code":403}`)
	s.status = http.StatusForbidden
	for i, list := range lists {
		if _, err := list(); !apierrors.IsForbidden(err) {
			t.Errorf("list %d: want forbidden, got %v", i, err)
		}
	}
}

func TestNewReportsABadConfig(t *testing.T) {
	t.Parallel()
	if _, err := kube.New(&rest.Config{Host: "http://a b"}); err == nil {
		t.Error("a bad host is an error")
	}
	cfg := &rest.Config{Host: "https://api.test", TLSClientConfig: rest.TLSClientConfig{CAFile: "/no/such/file"}}
	if _, err := kube.New(cfg); err == nil || !strings.Contains(err.Error(), `"https://api.test"`) {
		t.Errorf("the error names the host, got %v", err)
	}
}

func TestRequestsHonourTheirDeadline(t *testing.T) {
	t.Parallel()
	_, client := newServer(t, http.StatusOK, corev1.Node{})
	ctx, cancel := context.WithTimeout(t.Context(), -time.Second)
	defer cancel()
	if _, err := client.Nodes().Get(ctx, "x", metav1.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("want the deadline's error, got %v", err)
	}
}

func TestSchemeIsSlim(t *testing.T) {
	t.Parallel()
	groups := map[string]bool{}
	for gvk := range kube.Scheme().AllKnownTypes() {
		if gvk.Group != "" || gvk.Version == "v1" {
			groups[gvk.Group] = true
		}
	}
	want := map[string]bool{"": true, "storage.k8s.io": true, "coordination.k8s.io": true}
	if d := cmp.Diff(want, groups); d != "" {
		t.Errorf("API groups (-want +got):\n%s", d)
	}
}
