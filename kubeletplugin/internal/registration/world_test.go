package registration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/longshore-csi/longshore/csikit/csiregistration"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// registrarOptions is how a fake registrar behaves.
type registrarOptions struct {
	typ      string
	name     string
	endpoint string
	versions []string
	// options is what GetCSIDriverInfo answers; nil: the service is not known.
	options *csiregistration.CSIDriverInfo
	// deaf registrars do not take the first notifications.
	deaf int
}

// fakeRegistrar answers as told and writes down what it is told.
type fakeRegistrar struct {
	registerapi.UnimplementedRegistrationServer
	csiregistration.UnimplementedCSIRegistrationServer

	o   registrarOptions
	log func(format string, args ...any)

	mu   sync.Mutex
	deaf int
}

func (f *fakeRegistrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: f.o.typ, Name: f.o.name, Endpoint: f.o.endpoint, SupportedVersions: f.o.versions}, nil
}

func (f *fakeRegistrar) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deaf > 0 {
		f.deaf--
		f.log("notify %s refused", f.o.name)
		return nil, status.Error(codes.Internal, "not now")
	}
	if s.GetPluginRegistered() {
		f.log("notify %s: registered", f.o.name)
	} else {
		f.log("notify %s: %s", f.o.name, s.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (f *fakeRegistrar) GetCSIDriverInfo(context.Context, *csiregistration.CSIDriverInfoRequest) (*csiregistration.CSIDriverInfo, error) {
	return f.o.options, nil
}

// server returns a gRPC server of the registrar.
func (f *fakeRegistrar) server() *grpc.Server {
	s := grpc.NewServer()
	registerapi.RegisterRegistrationServer(s, f)
	if f.o.options != nil {
		csiregistration.RegisterCSIRegistrationServer(s, f)
	}
	return s
}

func newFakeRegistrar(o registrarOptions, log func(string, ...any)) *fakeRegistrar {
	if o.typ == "" {
		o.typ = registerapi.CSIPlugin
	}
	if o.versions == nil {
		o.versions = []string{"1.0.0"}
	}
	return &fakeRegistrar{o: o, log: log, deaf: o.deaf}
}

// recorder is a handler that writes down what it is asked.
type recorder struct {
	log func(format string, args ...any)

	mu    sync.Mutex
	fails int
	hangs bool
	busy  map[string]bool
}

func (r *recorder) Register(ctx context.Context, p Plugin) error {
	defer r.enter(p.Name)()
	r.mu.Lock()
	fails, hangs := r.fails > 0, r.hangs
	r.fails--
	r.mu.Unlock()
	pod := ""
	if p.RequiresPublishPod {
		pod = " with pod"
	}
	r.log("register %s at %s version %s%s", p.Name, p.Endpoint, p.Version, pod)
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if fails {
		return errors.New("driver is not well")
	}
	return nil
}

func (r *recorder) Deregister(_ context.Context, p Plugin) {
	defer r.enter(p.Name)()
	r.log("deregister %s at %s", p.Name, p.Endpoint)
}

// enter checks that calls for one name do not overlap.
func (r *recorder) enter(name string) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[name] {
		r.log("OVERLAP %s", name)
	}
	r.busy[name] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.busy[name] = false
	}
}

// world is a manager whose sockets exist in memory only, in virtual time.
type world struct {
	t       *testing.T
	ctx     context.Context // the life of one test
	stop    context.CancelFunc
	m       *Manager
	handler *recorder
	track   tracker
	running sync.WaitGroup
	start   time.Time

	mu      sync.Mutex
	lines   []string
	seen    socketsFound
	sockets map[string]*bufconn.Listener
	serving sync.WaitGroup
	servers []*grpc.Server
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, start: time.Now(), seen: socketsFound{}, sockets: map[string]*bufconn.Listener{}}
	w.handler = &recorder{log: w.log, busy: map[string]bool{}}
	var err error
	w.m, err = New(Config{Dir: "/registry", Handler: w.handler, Dial: w.dial})
	if err != nil {
		t.Fatal(err)
	}
	w.ctx, w.stop = context.WithCancel(klog.NewContext(t.Context(), ktesting.NewLogger(t, ktesting.NewConfig())))
	return w
}

// end stops all that runs.
func (w *world) end() {
	w.stop()
	w.running.Wait()
	w.mu.Lock()
	servers := w.servers
	w.mu.Unlock()
	for _, s := range servers {
		s.Stop()
	}
	w.serving.Wait()
}

func (w *world) log(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, fmt.Sprintf("%v ", time.Since(w.start))+fmt.Sprintf(format, args...))
}

func (w *world) dial(ctx context.Context, path string) (net.Conn, error) {
	w.mu.Lock()
	listener := w.sockets[path]
	w.mu.Unlock()
	if listener == nil {
		w.log("refused %s", path)
		return nil, errors.New("connection refused")
	}
	return listener.DialContext(ctx)
}

// socket makes a socket appear, in place of one that is there.
func (w *world) socket(path string) {
	w.mu.Lock()
	w.seen[path] = Identity{Inode: w.track.serial + 1}
	delete(w.sockets, path)
	w.mu.Unlock()
	w.look()
}

// listen makes a registrar listen at the path.
func (w *world) listen(path string, o registrarOptions) {
	listener := bufconn.Listen(1 << 16)
	server := newFakeRegistrar(o, w.log).server()
	w.serving.Go(func() { _ = server.Serve(listener) })
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sockets[path] = listener
	w.servers = append(w.servers, server)
}

// serve makes a socket appear that a registrar listens on.
func (w *world) serve(path string, o registrarOptions) {
	w.listen(path, o)
	w.mu.Lock()
	w.seen[path] = Identity{Inode: w.track.serial + 1}
	w.mu.Unlock()
	w.look()
}

// remove makes a socket go.
func (w *world) remove(path string) {
	w.mu.Lock()
	delete(w.seen, path)
	delete(w.sockets, path)
	w.mu.Unlock()
	w.look()
}

func (w *world) look() {
	w.mu.Lock()
	c := w.track.update(w.seen, nil)
	w.mu.Unlock()
	w.m.apply(w.ctx, c, &w.running)
	synctest.Wait()
}

// wait lets virtual time pass.
func (w *world) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// expect compares what happened since the last call.
func (w *world) expect(want ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if diff := cmp.Diff(want, w.lines); diff != "" {
		w.t.Errorf("what happened, -want +got:\n%s", diff)
	}
	w.lines = nil
}

// registered returns the drivers that the manager says are registered.
func (w *world) registered() []string {
	var names []string
	for _, s := range w.m.Status() {
		if s.Registered {
			names = append(names, s.Driver)
		}
	}
	slices.Sort(names)
	return names
}
