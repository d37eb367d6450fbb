package snapshotmetadata

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
	"github.com/longshore-csi/longshore/snapshotmetadata/api"
	"github.com/longshore-csi/longshore/snapshotmetadata/client"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/certtest"
)

// patience bounds what must happen at once, but may be slow.
const patience = 2 * time.Minute

// running is the component with a driver and an API server in memory.
type running struct {
	*sidecartest.Running
	t       *testing.T
	cluster *kubetest.Cluster
	reviews *reviewer
	csi     *csitest.Driver
	driver  *metadata
	certs   *certtest.Pair
	address string
}

// start runs the component with a driver; the flags are added to those of the socket and the certificate.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	socket, driver, m := newSocket(t), withMetadata(), &metadata{allocated: allocated(1, 2, 5)}
	serveDriver(t, socket, driver, m)
	r := startAt(t, socket, args...)
	r.csi, r.driver = driver, m
	return r
}

// startAt runs the component at the socket of a driver.
func startAt(t *testing.T, socket string, args ...string) *running {
	t.Helper()
	r := &running{t: t, cluster: kubetest.New(), reviews: &reviewer{}, certs: certtest.New(t)}
	snapshotapitest.Install(r.cluster)
	vs, content := testSnapshot("monday")
	if err := r.cluster.Apply(vs, content); err != nil {
		t.Fatal(err)
	}
	o, err := parse(append([]string{"--csi-address=" + socket, "--port=0", "--tls-cert=" + r.certs.Cert, "--tls-key=" + r.certs.Key}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	listening := make(chan string, 1)
	o.listening = func(address string) { listening <- address }
	cfg, err := o.sidecar(t.Context(), &clients{snapshots: snapshotapitest.New(r.cluster), own: r.reviews})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Client = r.cluster.Client()
	r.Running = sidecartest.Start(t, cfg)
	r.Eventually("serve gRPC", func() bool { return len(listening) == 1 })
	address := <-listening
	r.address = "127.0.0.1" + address[strings.LastIndexByte(address, ':'):]
	return r
}

// client returns a client with a token, which tries once.
func (r *running) client(token string) *client.Client {
	r.t.Helper()
	c, err := client.New(client.Config{
		Address: r.address, CACert: r.certs.CA(), Attempts: 1, Token: func(context.Context) (string, error) { return token, nil },
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

// monday is the snapshot that there is.
func monday() client.Snapshot { return client.Snapshot{Namespace: "shop", Name: "monday"} }

// offsets returns where the ranges of an iteration begin, in blocks.
func offsets(blocks func(yield func(client.Blocks, error) bool)) (numbers []int64, err error) {
	for b, err := range blocks {
		if err != nil {
			return numbers, err
		}
		if b.Capacity != capacity {
			return numbers, errors.New("wrong capacity")
		}
		for _, r := range b.Ranges {
			numbers = append(numbers, r.Offset>>12)
		}
	}
	return numbers, nil
}

// TestAllocatedAndDelta reads both kinds of metadata, and what is served by HTTP.
func TestAllocatedAndDelta(t *testing.T) {
	r := start(t)
	c := r.client(goodToken)
	if got, err := offsets(c.Allocated(t.Context(), monday())); err != nil || !slices.Equal(got, []int64{1, 2, 5}) {
		t.Errorf("allocated blocks %v, error %v", got, err)
	}
	r.driver.delta = func(req *csi.GetMetadataDeltaRequest, stream csi.SnapshotMetadata_GetMetadataDeltaServer) error {
		if req.GetBaseSnapshotId() != "handle-sunday" || req.GetTargetSnapshotId() != "handle-monday" {
			return status.Errorf(codes.NotFound, "no %q or %q", req.GetBaseSnapshotId(), req.GetTargetSnapshotId())
		}
		return stream.Send(&csi.GetMetadataDeltaResponse{VolumeCapacityBytes: capacity, BlockMetadata: []*csi.BlockMetadata{block(7)}})
	}
	if got, err := offsets(c.Changed(t.Context(), "handle-sunday", monday())); err != nil || !slices.Equal(got, []int64{7}) {
		t.Errorf("changed blocks %v, error %v", got, err)
	}
	r.Serves(
		`snapshot_metadata_controller_operations_seconds_count{driver_name="test.csi.longshore.example",grpc_status_code="OK",method_name="MetadataAllocated"} 1`,
		`snapshot_metadata_controller_operations_seconds_count{driver_name="test.csi.longshore.example",grpc_status_code="OK",method_name="MetadataDelta"} 1`,
		`csi_sidecar_operations_seconds_count{driver_name="test.csi.longshore.example",grpc_status_code="OK",method_name="/csi.v1.SnapshotMetadata/GetMetadataDelta"} 1`,
		`csi_snapshot_metadata_blocks_total{method_name="MetadataAllocated"} 3`,
		`csi_snapshot_metadata_block_bytes_total{method_name="MetadataDelta"} 4096`,
		`csi_snapshot_metadata_streams 0`,
	)
	r.CheckMetrics("docs/metrics.md")
	for _, path := range []string{"/health", "/healthz", "/livez", "/readyz"} {
		if code, body := r.Get(path); code != 200 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	r.Stop()
}

// TestRefused makes calls that must end with a certain code, and words that help.
func TestRefused(t *testing.T) {
	r := start(t)
	tests := map[string]struct {
		reason  string
		arrange func()
		token   string
		request *api.GetMetadataAllocatedRequest
		code    codes.Code
		words   string
	}{
		"NoToken":          {reason: "a required argument", token: "-", code: codes.InvalidArgument, words: `security_token "": must be the token`},
		"NoNamespace":      {reason: "a required argument", request: &api.GetMetadataAllocatedRequest{SnapshotName: "monday"}, code: codes.InvalidArgument, words: `namespace "": a lowercase RFC 1123 label`},
		"BadName":          {reason: "a name becomes part of a path", request: &api.GetMetadataAllocatedRequest{Namespace: "shop", SnapshotName: "../x"}, code: codes.InvalidArgument, words: `snapshot_name "../x": a lowercase RFC 1123 subdomain`},
		"NegativeOffset":   {reason: "no such position", request: &api.GetMetadataAllocatedRequest{Namespace: "shop", SnapshotName: "monday", StartingOffset: -1}, code: codes.InvalidArgument, words: "starting_offset -1: must not be negative"},
		"NegativeResults":  {reason: "no such number", request: &api.GetMetadataAllocatedRequest{Namespace: "shop", SnapshotName: "monday", MaxResults: -1}, code: codes.InvalidArgument, words: "max_results -1: must not be negative"},
		"UnknownToken":     {reason: "the API server's words are passed on", token: "stolen", code: codes.Unauthenticated, words: `token is not accepted for audience "backup": token is expired`},
		"TokenForAPI":      {reason: "a token for the API server must not be usable here", token: goodToken + "@api", code: codes.Unauthenticated, words: `it is for audiences [], not for "backup"`},
		"NoRights":         {reason: "the user may not get the snapshot", token: otherToken, code: codes.PermissionDenied, words: `user "system:serviceaccount:web:shop" cannot get volumesnapshots.snapshot.storage.k8s.io in namespace "shop"`},
		"OtherNamespace":   {reason: "rights are those in the namespace", request: &api.GetMetadataAllocatedRequest{Namespace: "bank", SnapshotName: "monday"}, code: codes.PermissionDenied, words: `in namespace "bank"`},
		"NoSuchSnapshot":   {reason: "the name is wrong", request: &api.GetMetadataAllocatedRequest{Namespace: "shop", SnapshotName: "tuesday"}, code: codes.NotFound, words: "no such VolumeSnapshot: shop/tuesday"},
		"APIDown":          {reason: "the client may try again", arrange: func() { r.reviews.set(errDown) }, code: codes.Unavailable, words: errDown.Error()},
		"DriverNotReady":   {reason: "the client may try again", arrange: func() { r.csi.SetReady(false) }, code: codes.Unavailable, words: "is not ready"},
		"TrackingOff":      {reason: "a full backup is needed: CSI's code for it", arrange: func() { r.driver.onAllocated(fails(codes.FailedPrecondition, "no tracking")) }, code: codes.FailedPrecondition, words: `CSI driver "test.csi.longshore.example": no tracking`},
		"DriverRefusesUs":  {reason: "it is not the client's token that is wrong", arrange: func() { r.driver.onAllocated(fails(codes.Unauthenticated, "bad secret")) }, code: codes.Internal, words: "bad secret"},
		"DriverDisordered": {reason: "a resumed backup would miss blocks", arrange: func() { r.driver.onAllocated(allocated(5, 2)) }, code: codes.Internal, words: "offset 8192, after a block that ends at 24576"},
		"DriverUnknown":    {reason: "the driver has no better code", arrange: func() { r.driver.onAllocated(fails(codes.Unknown, "oops")) }, code: codes.Internal, words: "oops"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.arrange != nil {
				tt.arrange()
				defer func() {
					r.reviews.set(nil)
					r.csi.SetReady(true)
					r.driver.onAllocated(allocated(1, 2, 5))
				}()
			}
			request := tt.request
			if request == nil {
				request = &api.GetMetadataAllocatedRequest{Namespace: "shop", SnapshotName: "monday"}
			}
			request.SecurityToken = goodToken
			if tt.token != "" {
				request.SecurityToken = strings.TrimPrefix(tt.token, "-")
			}
			err := r.call(t.Context(), request)
			if status.Code(err) != tt.code || !strings.Contains(status.Convert(err).Message(), tt.words) {
				t.Errorf("%s: got %v, want %s with %q", tt.reason, err, tt.code, tt.words)
			}
			if strings.Contains(r.Log()+err.Error(), "token-") {
				t.Errorf("the token is in the log, or in the error %v", err)
			}
		})
	}
	r.Stop()
}

// fails answers with an error.
func fails(code codes.Code, text string) func(*csi.GetMetadataAllocatedRequest, csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	return func(*csi.GetMetadataAllocatedRequest, csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
		return status.Error(code, text)
	}
}

// call makes a call with the generated client, as that of the external-snapshot-metadata would, and reads the stream to its end.
func (r *running) call(ctx context.Context, request *api.GetMetadataAllocatedRequest) error {
	stream, err := api.NewSnapshotMetadataClient(r.dial()).GetMetadataAllocated(ctx, request)
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// TestOddObjects has snapshots without what the service looks for: none of them ends the process (S27).
func TestOddObjects(t *testing.T) {
	r := start(t)
	vs, content := testSnapshot("odd")
	vs.Status, content.Status = nil, nil
	if err := r.cluster.Apply(vs, content); err != nil {
		t.Fatal(err)
	}
	err := r.call(t.Context(), &api.GetMetadataAllocatedRequest{SecurityToken: goodToken, Namespace: "shop", SnapshotName: "odd"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "is not bound to a VolumeSnapshotContent") {
		t.Errorf("got %v", err)
	}
	if _, err := offsets(r.client(goodToken).Allocated(t.Context(), monday())); err != nil {
		t.Errorf("another snapshot, afterwards: %v", err)
	}
	r.Stop()
}

// TestSecrets gives the driver the secret that the snapshot controller has noted.
func TestSecrets(t *testing.T) {
	r := start(t)
	vs, content := testSnapshot("monday")
	content.Annotations = map[string]string{
		"snapshot.storage.kubernetes.io/deletion-secret-name": "keys", "snapshot.storage.kubernetes.io/deletion-secret-namespace": "storage",
	}
	secret := testSecret("storage", "keys")
	if err := r.cluster.Apply(vs, content, secret); err != nil {
		t.Fatal(err)
	}
	got := make(chan *csi.GetMetadataAllocatedRequest, 1)
	r.driver.onAllocated(func(req *csi.GetMetadataAllocatedRequest, _ csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
		got <- req
		return nil
	})
	err := r.call(t.Context(), &api.GetMetadataAllocatedRequest{SecurityToken: goodToken, Namespace: "shop", SnapshotName: "monday", StartingOffset: 4096, MaxResults: 3})
	if err != nil {
		t.Fatal(err)
	}
	if req := <-got; req.GetSecrets()["password"] != "xyzzy" || req.GetSnapshotId() != "handle-monday" || req.GetStartingOffset() != 4096 || req.GetMaxResults() != 3 {
		t.Errorf("the driver got %v", req)
	}
	if strings.Contains(r.Log(), "xyzzy") {
		t.Error("the secret is in the log")
	}
	r.Stop()
}

// TestDeletedSnapshot asks for a snapshot that was there.
func TestDeletedSnapshot(t *testing.T) {
	r := start(t)
	ctx := t.Context()
	if err := snapshotapitest.New(r.cluster).VolumeSnapshots("shop").Delete(ctx, "monday", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := offsets(r.client(goodToken).Allocated(ctx, monday())); status.Code(err) != codes.NotFound {
		t.Errorf("got %v", err)
	}
	r.Stop()
}

// TestState shows a stream while it runs.
func TestState(t *testing.T) {
	r := start(t)
	hold := r.hold()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- r.call(ctx, &api.GetMetadataAllocatedRequest{SecurityToken: goodToken, Namespace: "shop", SnapshotName: "monday"})
	}()
	<-hold
	var state struct{ Streams map[string]int }
	_, body := r.Get("/debug/state")
	if err := json.Unmarshal([]byte(body), &state); err != nil || state.Streams[goodUser] != 1 {
		t.Errorf("/debug/state: %s", body)
	}
	cancel()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("a cancelled call ended in %v", err)
	}
	if err := <-hold; !errors.Is(err, context.Canceled) {
		t.Errorf("the driver's call ended in %v", err)
	}
	r.Eventually("forget the stream", func() bool {
		_, body := r.Get("/debug/state")
		return !strings.Contains(body, goodUser)
	})
	r.Stop()
}

// TestNoMetrics serves health alone.
func TestNoMetrics(t *testing.T) {
	r := start(t, "--disable-metrics")
	if code, _ := r.Get("/metrics"); code != 404 {
		t.Errorf("/metrics: %d", code)
	}
	if code, _ := r.Get("/health"); code != 200 {
		t.Errorf("/health: %d", code)
	}
	r.Stop()
}

// TestDriverWithoutMetadata is not ready and says why, to callers too, until the driver is updated.
func TestDriverWithoutMetadata(t *testing.T) {
	const words = "does not announce the plugin capability SNAPSHOT_METADATA_SERVICE"
	socket := newSocket(t)
	stopDriver := csitest.New(csitest.Options{}).ServeAt(t, socket)
	r := startAt(t, socket)
	r.Eventually("report the missing capability", func() bool {
		code, body := r.Get("/readyz")
		return code == 500 && strings.Contains(body, words)
	})
	if err := r.call(t.Context(), request()); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), words) {
		t.Errorf("a call: got %v, want that the driver %s", err, words)
	}
	stopDriver()

	serveDriver(t, socket, withMetadata(), &metadata{allocated: allocated(1)})
	r.Eventually("serve the updated driver's metadata", func() bool { return r.call(t.Context(), request()) == nil })
	r.Eventually("be ready", func() bool {
		code, _ := r.Get("/readyz")
		return code == 200
	})
	r.Stop()
}

// TestRunRefuses ends at once what cannot be served.
func TestRunRefuses(t *testing.T) {
	pair := certtest.New(t)
	for name, tc := range map[string]struct {
		args  []string
		words string
	}{
		"Options":     {[]string{"--max-streams=0"}, "--max-streams=0"},
		"Certificate": {[]string{"--tls-cert=" + pair.Key, "--tls-key=" + pair.Key}, "TLS certificate"},
		"Kubeconfig":  {[]string{"--tls-cert=" + pair.Cert, "--tls-key=" + pair.Key, "--kubeconfig=" + pair.Key + "x"}, "load kubeconfig"},
	} {
		o, err := parse(tc.args...)
		if err != nil {
			t.Fatal(err)
		}
		if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: got %v, want %q", name, err, tc.words)
		}
	}
}
