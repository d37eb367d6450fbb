package csiserver_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikit/csiserver"
	"github.com/longshore-csi/longshore/csikit/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handler is a driver of which a test implements only the methods that it needs.
type handler struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedSnapshotMetadataServer
	remove func(context.Context, *csi.DeleteVolumeRequest) error
	stream func(csi.SnapshotMetadata_GetMetadataAllocatedServer) error
}

func (h *handler) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := h.remove(ctx, req); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (h *handler) GetMetadataAllocated(_ *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	return h.stream(s)
}

func (h *handler) register(s grpc.ServiceRegistrar) {
	csi.RegisterControllerServer(s, h)
	csi.RegisterSnapshotMetadataServer(s, h)
}

// safeLog collects log lines of several goroutines.
type safeLog struct {
	mu  sync.Mutex
	out strings.Builder
}

func (l *safeLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

func (l *safeLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.String()
}

// running is a server that runs, and a connection to it.
type running struct {
	conn  *grpc.ClientConn
	stop  context.CancelFunc
	ended chan error
	log   *safeLog
	path  string
}

func (r *running) delete(ctx context.Context) error {
	_, err := csi.NewControllerClient(r.conn).DeleteVolume(ctx, &csi.DeleteVolumeRequest{
		VolumeId: "vol-1", Secrets: map[string]string{"password": "hunter2"},
	})
	return err
}

// start runs a server until the test ends.
func start(t *testing.T, cfg csiserver.Config, verbosity int, h *handler) *running {
	t.Helper()
	if cfg.Endpoint == "" {
		dir, err := os.MkdirTemp("", "csiserver")
		if err != nil {
			t.Fatalf("make a directory: %v", err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		cfg.Endpoint = "unix://" + filepath.Join(dir, "csi.sock")
	}
	server, err := csiserver.Listen(cfg, h.register)
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	r := &running{ended: make(chan error, 1), log: &safeLog{}, path: server.Addr()}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(r.log), textlogger.Verbosity(verbosity)))
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	r.stop = cancel
	go func() { r.ended <- server.Run(ctx) }()
	address := "unix://" + server.Addr()
	if strings.HasPrefix(cfg.Endpoint, "tcp") {
		address = server.Addr()
	}
	r.conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() {
		_ = r.conn.Close()
		cancel()
		if r.ended != nil {
			<-r.ended
		}
	})
	return r
}

// end stops the server and returns what Run has returned.
func (r *running) end() error {
	r.stop()
	err := <-r.ended
	r.ended = nil
	return err
}

func TestListenReportsEverything(t *testing.T) {
	cfg := csiserver.Config{Endpoint: "rel", CallTimeout: -1, StopTimeout: -1, MaxLogLength: -1, SocketMode: os.ModeSticky}
	_, err := csiserver.Listen(cfg, func(grpc.ServiceRegistrar) { t.Error("services were registered") })
	if err == nil {
		t.Fatal("Listen accepted an invalid config")
	}
	for _, part := range []string{`CSI endpoint "rel"`, "call timeout -1ns", "stop timeout -1ns", "maximum log length -1", "socket mode"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

func TestServes(t *testing.T) {
	for name, endpoint := range map[string]string{"Unix": "", "TCP": "tcp://127.0.0.1:0"} {
		t.Run(name, func(t *testing.T) {
			r := start(t, csiserver.Config{Endpoint: endpoint}, 0, &handler{remove: func(_ context.Context, req *csi.DeleteVolumeRequest) error {
				if req.GetVolumeId() != "vol-1" {
					return status.Errorf(codes.Internal, "request has become %v", req)
				}
				return nil
			}})
			if err := r.delete(t.Context()); err != nil {
				t.Errorf("DeleteVolume: %v", err)
			}
			if err := r.end(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if _, err := os.Lstat(r.path); endpoint == "" && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket file is left: %v", err)
			}
		})
	}
}

func TestLog(t *testing.T) {
	cases := map[string]struct {
		reason    string
		verbosity int
		limit     int
		err       error
		has, not  []string
	}{
		"Quiet":     {reason: "success is silent", verbosity: 4, not: []string{"CSI re", "failed"}},
		"VeryQuiet": {reason: "so is failure below V(2)", verbosity: 1, err: status.Error(codes.Aborted, "busy"), not: []string{"busy"}},
		"Failure":   {reason: "a failure is logged with its code", verbosity: 2, err: status.Error(codes.Aborted, "busy"), has: []string{`"CSI call failed"`, `code="Aborted"`, `reason="busy"`, `method="/csi.v1.Controller/DeleteVolume"`, `volumeID="vol-1"`}},
		"Busy":      {reason: "what a caller repeats is not logged by default", err: status.Error(codes.Aborted, "busy"), not: []string{"failed"}},
		"Fault":     {reason: "a fault of the driver always is", err: status.Error(codes.Internal, "broken"), has: []string{`"CSI call failed"`, `code="Internal"`, `volumeID="vol-1"`}},
		"Bodies":    {reason: "bodies are logged without secrets", verbosity: 5, has: []string{`"CSI request"`, "vol-1", "***stripped***", `"CSI reply"`}, not: []string{"hunter2"}},
		"Cut":       {reason: "bodies can be cut", verbosity: 5, limit: 12, has: []string{`{\"volume_id\"...`}, not: []string{"vol-1"}},
		"Both":      {reason: "a failure has no reply", verbosity: 5, err: errors.New("plain"), has: []string{"CSI request", `code="Unknown"`}, not: []string{"CSI reply"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := start(t, csiserver.Config{MaxLogLength: c.limit}, c.verbosity, &handler{remove: func(context.Context, *csi.DeleteVolumeRequest) error { return c.err }})
			if err := r.delete(t.Context()); (err != nil) != (c.err != nil) {
				t.Fatalf("DeleteVolume: %v", err)
			}
			if err := r.end(); err != nil {
				t.Errorf("Run: %v", err)
			}
			for _, part := range c.has {
				if !strings.Contains(r.log.String(), part) {
					t.Errorf("%s: log lacks %s:\n%s", c.reason, part, r.log)
				}
			}
			for _, part := range c.not {
				if strings.Contains(r.log.String(), part) {
					t.Errorf("%s: log contains %s:\n%s", c.reason, part, r.log)
				}
			}
		})
	}
}

// Handlers log by the logger of Run's context, with the method.
func TestHandlersFindTheLogger(t *testing.T) {
	r := start(t, csiserver.Config{}, 0, &handler{remove: func(ctx context.Context, _ *csi.DeleteVolumeRequest) error {
		klog.FromContext(ctx).Info("Deleting")
		return nil
	}})
	if err := r.delete(t.Context()); err != nil {
		t.Fatalf("DeleteVolume: %v", err)
	}
	if want := `"Deleting" method="/csi.v1.Controller/DeleteVolume"`; !strings.Contains(r.log.String(), want) {
		t.Errorf("log lacks %s:\n%s", want, r.log)
	}
}

func TestDeadline(t *testing.T) {
	cases := map[string]struct {
		reason      string
		callTimeout time.Duration
		own         time.Duration
		least, most time.Duration // zero most: no deadline
	}{
		"None":        {reason: "neither side sets one"},
		"Config":      {reason: "the caller sets none", callTimeout: time.Hour, least: 50 * time.Minute, most: time.Hour},
		"Caller":      {reason: "the caller's counts", callTimeout: time.Hour, own: 10 * time.Minute, least: time.Minute, most: 10 * time.Minute},
		"CallerLong":  {reason: "the caller's counts, even a longer one", callTimeout: time.Minute, own: time.Hour, least: 50 * time.Minute, most: time.Hour},
		"CallerAlone": {reason: "the caller's counts", own: time.Hour, least: 50 * time.Minute, most: time.Hour},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var left time.Duration
			var has bool
			r := start(t, csiserver.Config{CallTimeout: c.callTimeout}, 0, &handler{remove: func(ctx context.Context, _ *csi.DeleteVolumeRequest) error {
				var deadline time.Time
				deadline, has = ctx.Deadline()
				left = time.Until(deadline)
				return nil
			}})
			ctx := t.Context()
			if c.own > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.own)
				defer cancel()
			}
			if err := r.delete(ctx); err != nil {
				t.Fatalf("DeleteVolume: %v", err)
			}
			if has != (c.most > 0) || has && (left < c.least || left > c.most) {
				t.Errorf("%s: deadline %v in %v, want between %v and %v", c.reason, has, left, c.least, c.most)
			}
		})
	}
}

func TestPanic(t *testing.T) {
	calls := 0
	r := start(t, csiserver.Config{}, 0, &handler{
		remove: func(context.Context, *csi.DeleteVolumeRequest) error {
			if calls++; calls == 1 {
				panic("a bug with hunter2")
			}
			return nil
		},
		stream: func(csi.SnapshotMetadata_GetMetadataAllocatedServer) error { panic("another bug") },
	})
	err := r.delete(t.Context())
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("DeleteVolume: %v, want Internal without what the panic said", err)
	}
	if err := r.delete(t.Context()); err != nil {
		t.Errorf("the next call: %v", err)
	}
	if err := receive(t, r); status.Code(err) != codes.Internal {
		t.Errorf("stream: %v, want Internal", err)
	}
	for _, part := range []string{`"CSI call panicked"`, "panic: a bug with hunter2", "another bug", "server_test.go"} {
		if !strings.Contains(r.log.String(), part) {
			t.Errorf("log lacks %s:\n%s", part, r.log)
		}
	}
}

// receive opens a stream and returns the error that ends it.
func receive(t *testing.T, r *running) error {
	t.Helper()
	stream, err := csi.NewSnapshotMetadataClient(r.conn).GetMetadataAllocated(t.Context(), &csi.GetMetadataAllocatedRequest{})
	if err != nil {
		t.Fatalf("open a stream: %v", err)
	}
	_, err = stream.Recv()
	return err
}

func TestStream(t *testing.T) {
	reg := prometheus.NewRegistry()
	var seen []string
	r := start(t, csiserver.Config{
		CallTimeout: time.Hour,
		Metrics:     metrics.NewPluginCSI(reg),
		StreamInterceptors: []grpc.StreamServerInterceptor{func(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			seen = append(seen, info.FullMethod)
			return handle(srv, s)
		}},
	}, 2, &handler{stream: func(s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
		if _, has := s.Context().Deadline(); has {
			return status.Error(codes.Internal, "the stream has a deadline that neither side has set")
		}
		klog.FromContext(s.Context()).Info("Streaming")
		return status.Error(codes.NotFound, "no such snapshot")
	}})
	if err := receive(t, r); status.Code(err) != codes.NotFound {
		t.Errorf("stream: %v, want NotFound", err)
	}
	if err := r.end(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if diff := cmp.Diff([]string{csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName}, seen); diff != "" {
		t.Errorf("interceptors saw (-want +got):\n%s", diff)
	}
	for _, part := range []string{`"Streaming" method="/csi.v1.SnapshotMetadata/GetMetadataAllocated"`, `code="NotFound"`} {
		if !strings.Contains(r.log.String(), part) {
			t.Errorf("log lacks %s:\n%s", part, r.log)
		}
	}
	if n, err := testutil.GatherAndCount(reg, metrics.PluginOperations); err != nil || n != 1 {
		t.Errorf("%d streams were measured, %v; want 1", n, err)
	}
}

// A panic is measured and logged as the error that the caller sees, and the
// driver's own interceptors stand nearest to the handler.
func TestOrder(t *testing.T) {
	reg := prometheus.NewRegistry()
	r := start(t, csiserver.Config{
		Metrics: metrics.NewPluginCSI(reg),
		Interceptors: []grpc.UnaryServerInterceptor{func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
			panic("in the driver's interceptor")
		}},
	}, 2, &handler{})
	if err := r.delete(t.Context()); status.Code(err) != codes.Internal {
		t.Errorf("DeleteVolume: %v, want Internal", err)
	}
	if !strings.Contains(r.log.String(), `code="Internal"`) {
		t.Errorf("log lacks the failure:\n%s", r.log)
	}
	families, err := reg.Gather()
	if err != nil || len(families) != 1 || !strings.Contains(families[0].String(), `"Internal"`) {
		t.Errorf("metrics: %v, %v; want one call that ended with Internal", families, err)
	}
}

// hold is a handler that stays until it is released.
func hold() (h *handler, entered chan struct{}, release chan struct{}) {
	entered, release = make(chan struct{}), make(chan struct{})
	return &handler{remove: func(context.Context, *csi.DeleteVolumeRequest) error {
		close(entered)
		<-release
		return nil
	}}, entered, release
}

func TestStopLetsCallsFinish(t *testing.T) {
	h, entered, release := hold()
	r := start(t, csiserver.Config{StopTimeout: time.Hour}, 0, h)
	answered := make(chan error, 1)
	go func() { answered <- r.delete(t.Context()) }()
	<-entered
	r.stop()
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("the running call: %v", err)
	}
	if err := r.end(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestStopCutsCallsOff(t *testing.T) {
	entered := make(chan struct{})
	r := start(t, csiserver.Config{StopTimeout: 10 * time.Millisecond}, 0, &handler{remove: func(ctx context.Context, _ *csi.DeleteVolumeRequest) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	}})
	answered := make(chan error, 1)
	go func() { answered <- r.delete(t.Context()) }()
	<-entered
	err := r.end()
	if err != nil && !errors.Is(err, csiserver.ErrStuck) {
		t.Errorf("Run: %v", err)
	}
	if err := <-answered; err == nil {
		t.Error("the call that hung has succeeded")
	}
	if !strings.Contains(r.log.String(), "Cutting off CSI calls") {
		t.Errorf("log lacks the cut:\n%s", r.log)
	}
}

// A handler that hangs in the kernel does not keep Run from returning.
func TestStopGivesUp(t *testing.T) {
	h, entered, release := hold()
	r := start(t, csiserver.Config{StopTimeout: 10 * time.Millisecond}, 0, h)
	answered := make(chan error, 1)
	go func() { answered <- r.delete(t.Context()) }()
	<-entered
	if err := r.end(); !errors.Is(err, csiserver.ErrStuck) {
		t.Errorf("Run: %v, want ErrStuck", err)
	}
	close(release)
	<-answered
}

// A context that has ended already is no error, and leaves no socket.
func TestRunAfterTheEnd(t *testing.T) {
	r := start(t, csiserver.Config{}, 0, &handler{})
	if err := r.end(); err != nil {
		t.Fatalf("Run: %v", err)
	}
	server, err := csiserver.Listen(csiserver.Config{Endpoint: r.path}, func(grpc.ServiceRegistrar) {})
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Run(ctx); err != nil {
		t.Errorf("Run: %v, want nil", err)
	}
	if _, err := os.Lstat(r.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket file is left: %v", err)
	}
}

// A listener that is lost while the server runs is an error.
func TestRunReportsLostListener(t *testing.T) {
	r := start(t, csiserver.Config{}, 0, &handler{})
	server, err := csiserver.Listen(csiserver.Config{Endpoint: r.path + "2"}, func(grpc.ServiceRegistrar) {})
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	if err := server.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if err := server.Run(t.Context()); err == nil || !strings.Contains(err.Error(), r.path+"2") {
		t.Errorf("Run on a closed server: %v, want an error with the path", err)
	}
}

func TestCloseFreesTheEndpoint(t *testing.T) {
	r := start(t, csiserver.Config{}, 0, &handler{})
	cfg := csiserver.Config{Endpoint: r.path}
	if _, err := csiserver.Listen(cfg, func(grpc.ServiceRegistrar) {}); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a second server on the same socket: %v", err)
	}
	if err := r.end(); err != nil {
		t.Fatalf("Run: %v", err)
	}
	for range 2 {
		server, err := csiserver.Listen(cfg, func(grpc.ServiceRegistrar) {})
		if err != nil {
			t.Fatalf("Listen: %v", err)
		}
		if err := server.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}
