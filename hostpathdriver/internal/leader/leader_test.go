package leader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/klog/v2"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process is one driver. It answers with the names of volumes as it sees them: "<process> for <node>: <name>".
type process struct {
	csi.UnimplementedControllerServer
	*Candidate

	t    *testing.T
	name string
	// openErr is the answer of Open.
	openErr error

	mu     sync.Mutex
	opened int
	closed int
	// refused counts the calls that were answered with UNAVAILABLE.
	refused int
}

// unavailable is the name of a volume that cannot be made at the moment.
const unavailable = "unavailable"

type nodeKey struct{}

func (p *process) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	switch req.GetName() {
	case "":
		return nil, status.Error(codes.InvalidArgument, "name: must not be empty")
	case unavailable:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refused++
		return nil, status.Error(codes.Unavailable, "the disk of the pool is not mounted")
	}
	node, _ := ctx.Value(nodeKey{}).(string)
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: fmt.Sprintf("%s for %q: %s", p.name, node, req.GetName())}}, nil
}

func newContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), klog.Logger{}), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// shortDir is a directory for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "leader")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func start(t *testing.T, dir, name string) *process {
	t.Helper()
	p := &process{t: t, name: name}
	p.Candidate = New(Config{
		Dir: dir, Node: "node-of-" + name,
		Open: func(context.Context) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.opened++
			return p.openErr
		},
		Close: func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.closed++
		},
		WithNode: func(ctx context.Context, node string) context.Context { return context.WithValue(ctx, nodeKey{}, node) },
	}, func(r grpc.ServiceRegistrar) { csi.RegisterControllerServer(r, p) })
	t.Cleanup(p.release)
	return p
}

func (p *process) release() {
	p.t.Helper()
	if err := p.Release(); err != nil {
		p.t.Errorf("release %s: %v", p.name, err)
	}
}

// kill ends a process as a signal does: the kernel closes its socket and its lock, and nothing is closed in order.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Candidate.mu.Lock()
	defer p.Candidate.mu.Unlock()
	p.stop()
	err := errors.Join(<-p.ended, p.lock.Release())
	if p.conn != nil {
		err = errors.Join(err, p.conn.Close())
	}
	if err != nil {
		p.t.Error(err)
	}
	p.conn, p.leading = nil, false
}

// create makes a call of this process's component.
func (p *process) create(ctx context.Context, name string) (string, error) {
	info := &grpc.UnaryServerInfo{FullMethod: csi.Controller_CreateVolume_FullMethodName}
	answer, err := p.Intercept(ctx, &csi.CreateVolumeRequest{Name: name}, info, func(ctx context.Context, req any) (any, error) {
		return p.CreateVolume(ctx, req.(*csi.CreateVolumeRequest)) //nolint:forcetypeassert // The test made it.
	})
	if err != nil {
		return "", err
	}
	return answer.(*csi.CreateVolumeResponse).GetVolume().GetVolumeId(), nil //nolint:forcetypeassert // A panic is as good.
}

func (p *process) want(ctx context.Context, want string) {
	p.t.Helper()
	if got, err := p.create(ctx, "pvc"); got != want || err != nil {
		p.t.Errorf("%s: %q, %v, want %q", p.name, got, err, want)
	}
}

func (p *process) lead(ctx context.Context, want bool) {
	p.t.Helper()
	if got, err := p.TryLead(ctx); got != want || err != nil {
		p.t.Errorf("%s leads: %t, %v, want %t", p.name, got, err, want)
	}
}

func TestOneLeads(t *testing.T) {
	ctx, dir := newContext(t), shortDir(t)
	a, b, c := start(t, dir, "a"), start(t, dir, "b"), start(t, dir, "c")
	a.lead(ctx, true)
	a.lead(ctx, true)
	b.lead(ctx, false)
	for range 2 { // The second call uses the connection of the first.
		a.want(ctx, `a for "": pvc`)
		b.want(ctx, `a for "node-of-b": pvc`)
		c.want(ctx, `a for "node-of-c": pvc`)
	}
	if a.opened != 1 || b.opened+c.opened != 0 {
		t.Errorf("opened: a %d, b %d, c %d, want a once", a.opened, b.opened, c.opened)
	}
	_, err := b.create(ctx, "")
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "must not be empty") {
		t.Errorf("the error of the leader: %v", err)
	}
}

// TestLeaderIsUnavailable: UNAVAILABLE that the controller answers is the answer of the call, which is not made again.
func TestLeaderIsUnavailable(t *testing.T) {
	ctx, dir := newContext(t), shortDir(t)
	a, b := start(t, dir, "a"), start(t, dir, "b")
	a.lead(ctx, true)
	for n, p := range []*process{a, b} {
		if _, err := p.create(ctx, unavailable); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the disk of the pool") {
			t.Errorf("%s: %v, want the answer of the controller", p.name, err)
		}
		if a.refused != n+1 {
			t.Errorf("%s: the controller was called %d times, want once", p.name, a.refused-n)
		}
	}
}

// TestNextCallMakesAnotherLead: no caller sees an error when the leader ends, in order or not.
func TestNextCallMakesAnotherLead(t *testing.T) {
	for name, end := range map[string]func(p *process){"Released": (*process).release, "Killed": (*process).kill} {
		t.Run(name, func(t *testing.T) {
			ctx, dir := newContext(t), shortDir(t)
			a, b, c := start(t, dir, "a"), start(t, dir, "b"), start(t, dir, "c")
			a.want(ctx, `a for "": pvc`)
			b.want(ctx, `a for "node-of-b": pvc`)
			c.want(ctx, `a for "node-of-c": pvc`)
			end(a)
			b.want(ctx, `b for "": pvc`)
			c.want(ctx, `b for "node-of-c": pvc`) // Over a connection that was to a.
			a.want(ctx, `b for "node-of-a": pvc`) // It may come back.
			end(b)
			end = (*process).release
			a.want(ctx, `a for "": pvc`)
			if name == "Released" && (a.opened != 2 || a.closed != 1 || b.closed != 1) {
				t.Errorf("a was opened %d and closed %d times, b closed %d times", a.opened, a.closed, b.closed)
			}
		})
	}
}

// TestCallsWhileLeadersEnd: of many calls in all processes none fails.
func TestCallsWhileLeadersEnd(t *testing.T) {
	ctx, dir := newContext(t), shortDir(t)
	processes := []*process{start(t, dir, "a"), start(t, dir, "b"), start(t, dir, "c")}
	var group sync.WaitGroup
	for _, p := range processes[1:] {
		for range 2 {
			group.Go(func() {
				for i := range 20 {
					if answer, err := p.create(ctx, fmt.Sprint(i)); err != nil || !strings.HasSuffix(answer, fmt.Sprintf(": %d", i)) {
						t.Errorf("%s: call %d: %q, %v", p.name, i, answer, err)
					}
				}
			})
		}
	}
	for range 5 { // This one has no calls of its own to break.
		if _, err := processes[0].TryLead(ctx); err != nil {
			t.Error(err)
		}
		processes[0].release()
	}
	group.Wait()
}

// TestRunLeadsWithoutCalls: the copies that the last leader could not finish begin again.
func TestRunLeadsWithoutCalls(t *testing.T) {
	ctx, dir := newContext(t), shortDir(t)
	a := start(t, dir, "a")
	running, stop := context.WithCancel(ctx)
	opened := make(chan struct{})
	a.cfg.Open = func(context.Context) error { close(opened); return nil }
	ended := make(chan error)
	go func() { ended <- a.Run(running) }()
	<-opened
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	b := start(t, dir, "b")
	b.want(ctx, `a for "node-of-b": pvc`) // Run ended, the lead did not.

	failing := start(t, shortDir(t), "failing")
	failing.openErr = errors.New("error of the test")
	if err := failing.Run(ctx); !errors.Is(err, failing.openErr) {
		t.Errorf("Run: %v, want %v", err, failing.openErr)
	}
}

// TestPathLongerThanASocketMayBe: CSI puts state directories deep below that of the kubelet.
func TestPathLongerThanASocketMayBe(t *testing.T) {
	ctx, dir := newContext(t), filepath.Join(t.TempDir(), strings.Repeat("d", 120), strings.Repeat("e", 120))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	a, b := start(t, dir, "a"), start(t, dir, "b")
	a.lead(ctx, true)
	b.want(ctx, `a for "node-of-b": pvc`)
	a.release()
	b.want(ctx, `b for "": pvc`)
}

// TestNobodyLeads: a process has the lock, and does not serve.
func TestNobodyLeads(t *testing.T) {
	ctx, dir := newContext(t), shortDir(t)
	silent, b := start(t, dir, "silent"), start(t, dir, "b")
	silent.register = nil
	silent.lead(ctx, true)
	ctx, cancel := context.WithTimeoutCause(ctx, 5*tryPeriod, errors.New("deadline of the test"))
	defer cancel()
	_, here, err := b.Call(ctx, csi.Controller_CreateVolume_FullMethodName, &csi.CreateVolumeRequest{Name: "pvc"})
	if here || status.Code(err) != codes.Aborted && status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("here %t, %v, want ABORTED or DEADLINE_EXCEEDED, after which the CO calls again", here, err)
	}
}

func TestLeaderThatCannotOpen(t *testing.T) {
	ctx, dir := newContext(t), shortDir(t)
	a, b := start(t, dir, "a"), start(t, dir, "b")
	a.openErr = errors.New("error of the test")
	if _, err := a.create(ctx, "pvc"); !errors.Is(err, a.openErr) {
		t.Errorf("error %v, want %v", err, a.openErr)
	}
	b.want(ctx, `b for "": pvc`) // The lock was released.

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	missing := start(t, file, "missing")
	if _, err := missing.create(ctx, "pvc"); err == nil {
		t.Error("no error where the state directory is a file")
	}
}

// TestSocketThatCannotBeMade: the controller is closed again.
func TestSocketThatCannotBeMade(t *testing.T) {
	ctx, dir := newContext(t), shortDir(t)
	if err := os.MkdirAll(filepath.Join(dir, socketName, "directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	a := start(t, dir, "a")
	if leads, err := a.TryLead(ctx); leads || err == nil {
		t.Errorf("leads %t, %v, want an error", leads, err)
	}
	if a.opened != 1 || a.closed != 1 {
		t.Errorf("opened %d, closed %d times, want once", a.opened, a.closed)
	}
	if err := os.RemoveAll(filepath.Join(dir, socketName)); err != nil {
		t.Fatal(err)
	}
	a.lead(ctx, true)
}

// TestCallsThatAreServedHere: those of nodes, and of the process's own services.
func TestCallsThatAreServedHere(t *testing.T) {
	ctx, dir := newContext(t), shortDir(t)
	a, b := start(t, dir, "a"), start(t, dir, "b")
	a.lead(ctx, true)
	passedOn := map[string]bool{}
	for method, req := range map[string]any{
		csi.Node_NodeStageVolume_FullMethodName:                      &csi.NodeStageVolumeRequest{},
		csi.Identity_Probe_FullMethodName:                            &csi.ProbeRequest{},
		csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName:     &csi.GetMetadataAllocatedRequest{},
		csi.Controller_CreateVolume_FullMethodName:                   &csi.CreateVolumeRequest{Name: "pvc"},
		csi.GroupController_CreateVolumeGroupSnapshot_FullMethodName: &csi.CreateVolumeGroupSnapshotRequest{},
		"/csi.v1.ControllerOfAnotherName/Create":                     &csi.CreateVolumeRequest{},
	} {
		served := false
		_, _ = b.Intercept(ctx, req, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) { // a has no groups.
			served = true
			return nil, nil //nolint:nilnil // Nobody looks.
		})
		passedOn[method] = !served
	}
	want := map[string]bool{
		csi.Node_NodeStageVolume_FullMethodName: false, csi.Identity_Probe_FullMethodName: false, csi.SnapshotMetadata_GetMetadataAllocated_FullMethodName: false,
		csi.Controller_CreateVolume_FullMethodName: true, csi.GroupController_CreateVolumeGroupSnapshot_FullMethodName: true, "/csi.v1.ControllerOfAnotherName/Create": false,
	}
	if diff := cmp.Diff(want, passedOn); diff != "" {
		t.Errorf("passed on (-want +got):\n%s", diff)
	}
}

func TestCallsThatAreNone(t *testing.T) {
	ctx, dir := newContext(t), shortDir(t)
	a, b := start(t, dir, "a"), start(t, dir, "b")
	a.lead(ctx, true)
	for _, method := range []string{"/csi.v1.Controller/NoSuchMethod", "/csi.v1.CreateVolumeRequest/name", "no-method"} {
		if _, here, err := b.Call(ctx, method, &csi.CreateVolumeRequest{}); here || err == nil {
			t.Errorf("%s: here %t, %v, want an error", method, here, err)
		}
	}
	_, err := b.Intercept(ctx, "no message", &grpc.UnaryServerInfo{FullMethod: csi.Controller_CreateVolume_FullMethodName}, nil)
	if status.Code(err) != codes.Internal {
		t.Errorf("a request that is no message: %v, want INTERNAL", err)
	}
	if _, _, err := b.Call(ctx, csi.Controller_ListVolumes_FullMethodName, wrapperspb.String("x")); status.Code(err) != codes.Unimplemented {
		t.Errorf("a method that the leader does not have: %v, want UNIMPLEMENTED", err)
	}
}
