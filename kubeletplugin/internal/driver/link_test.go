package driver

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	csimetrics "github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/csikittest/csitest"
)

func TestSocketPath(t *testing.T) {
	cases := map[string]struct {
		reason, endpoint, want string
	}{
		"Path":      {reason: "the kubelet's form", endpoint: "/run/csi.sock", want: "/run/csi.sock"},
		"URL":       {reason: "gRPC's form", endpoint: "unix:///run/csi.sock", want: "/run/csi.sock"},
		"Relative":  {reason: "would depend on where this process runs", endpoint: "csi.sock"},
		"ShortURL":  {reason: "relative as well", endpoint: "unix://csi.sock"},
		"OneSlash":  {reason: "not the form that registrars use", endpoint: "unix:/run/csi.sock"},
		"Abstract":  {reason: "the spec wants a path", endpoint: "@csi"},
		"OtherKind": {reason: "drivers on a node listen on unix sockets", endpoint: "tcp://127.0.0.1:9"},
		"Empty":     {reason: "there is no default"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := socketPath(tc.endpoint)
			if got != tc.want || (err != nil) != (tc.want == "") {
				t.Errorf("%s: got %q, %v, want %q", tc.reason, got, err, tc.want)
			}
		})
	}
}

// conn is a connection that runs a function in place of the driver, while a call is under way.
type conn struct {
	grpc.ClientConnInterface
	during func()
}

func (c *conn) Invoke(ctx context.Context, method string, in, out any, opts ...grpc.CallOption) error {
	c.during()
	return c.ClientConnInterface.Invoke(ctx, method, in, out, opts...)
}

// TestCapabilitiesOfWhichConnection: what was read is kept only if it is certain which driver
// process has said it.
func TestCapabilitiesOfWhichConnection(t *testing.T) {
	cases := map[string]struct {
		reason string
		before int64 // connections made before the call
		during int64 // and while it runs
		calls  int   // that two reads take
	}{
		"First":        {reason: "the call itself makes the first connection", during: 1, calls: 1},
		"FirstIsLost":  {reason: "the first one was lost and made again", during: 2, calls: 2},
		"Established":  {reason: "the usual case", before: 1, calls: 1},
		"Reconnected":  {reason: "the driver was restarted meanwhile", before: 1, during: 1, calls: 2},
		"InTheProcess": {reason: "a driver that is not dialled has one connection forever", calls: 1},
	}
	for caseName, tc := range cases {
		t.Run(caseName, func(t *testing.T) {
			inside := csitest.New(csitest.Options{})
			wrapped := &conn{ClientConnInterface: inside.Conn()}
			r := newRegistry(t, Config{Dial: func(string) (grpc.ClientConnInterface, error) { return wrapped, nil }})
			d := connect(t, r, "/csi.sock")
			defer d.Close()
			d.link.epoch.Store(tc.before)
			once := sync.OnceFunc(func() { d.link.epoch.Add(tc.during) })
			wrapped.during = once
			for range 2 {
				if _, err := d.NodeCapabilities(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := len(inside.Calls()); got != tc.calls {
				t.Errorf("%s: %d calls, want %d", tc.reason, got, tc.calls)
			}
		})
	}
}

// TestCapabilitiesWithoutDriver: nobody listens, and the caller's deadline ends the wait.
func TestCapabilitiesWithoutDriver(t *testing.T) {
	r := newRegistry(t, Config{})
	d := connect(t, r, filepath.Join(t.TempDir(), "absent.sock"))
	defer d.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := d.NodeCapabilities(ctx)
	if c := status.Code(errors.Unwrap(err)); c != codes.Unavailable && c != codes.DeadlineExceeded {
		t.Errorf("got %v, want an error that says that the driver is away", err)
	}
	if err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("error %v does not name the driver", err)
	}
}

// TestFrozenDriver: a driver that hangs costs the caller no more than its deadline, and nothing of
// it is remembered.
func TestFrozenDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		frozen := csitest.New(csitest.Options{})
		frozen.Inject(csitest.Fault{Method: "NodeGetCapabilities", Hang: true, Times: 1})
		r := NewRegistry(Config{Dial: func(string) (grpc.ClientConnInterface, error) { return frozen.Conn(), nil }})
		defer r.Close()
		d := connect(t, r, "/csi.sock")
		defer d.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if _, err := d.NodeCapabilities(ctx); status.Code(errors.Unwrap(err)) != codes.DeadlineExceeded {
			t.Errorf("got %v, want the deadline", err)
		}
		if took := time.Since(start); took != time.Minute {
			t.Errorf("took %v, want the minute that the caller gave", took)
		}
		if caps, err := d.NodeCapabilities(t.Context()); err != nil || caps == nil {
			t.Errorf("after it has thawed: %v, %v", caps, err)
		}
	})
}

// TestLinkUsers: the connection ends with the last of those who hold it, once.
func TestLinkUsers(t *testing.T) {
	cases := map[string]struct {
		reason string
		do     func(*link)
		closed bool
		users  int
	}{
		"Held":     {reason: "its maker holds it", do: func(*link) {}, users: 1},
		"Released": {reason: "nobody holds it", do: func(l *link) { l.release() }, closed: true},
		"Shared":   {reason: "one of two is left", do: func(l *link) { l.acquire(); l.release() }, users: 1},
		"Both":     {reason: "both have gone", do: func(l *link) { l.acquire(); l.release(); l.release() }, closed: true},
		"Late":     {reason: "a connection that has ended is not taken again", do: func(l *link) { l.release(); l.acquire() }, closed: true},
	}
	for caseName, tc := range cases {
		t.Run(caseName, func(t *testing.T) {
			closes := &countCloser{}
			l := &link{users: 1, closer: closes}
			tc.do(l)
			if l.isClosed() != tc.closed || l.count() != tc.users {
				t.Errorf("%s: closed %t with %d users, want %t, %d", tc.reason, l.isClosed(), l.count(), tc.closed, tc.users)
			}
			if (closes.n == 1) != tc.closed {
				t.Errorf("%s: closed %d times", tc.reason, closes.n)
			}
		})
	}
}

type countCloser struct{ n int }

func (c *countCloser) Close() error { c.n++; return nil }

// TestConnectSharesOnlyWhatIsAlive: the endpoint decides, and a connection that has ended is not
// handed out again.
func TestConnectSharesOnlyWhatIsAlive(t *testing.T) {
	cases := map[string]struct {
		reason   string
		endpoint string
		prepare  func(*Registry)
		shared   bool
	}{
		"Same":         {reason: "a registrar has restarted", endpoint: "/a.sock", prepare: func(*Registry) {}, shared: true},
		"Deregistered": {reason: "the connection is kept for unmounts", endpoint: "/a.sock", prepare: func(r *Registry) { r.Remove(name) }, shared: true},
		"Moved":        {reason: "another socket is another driver process", endpoint: "/b.sock", prepare: func(*Registry) {}},
		"Closed":       {reason: "the registry is done with it", endpoint: "/a.sock", prepare: func(r *Registry) { r.Close() }},
	}
	for caseName, tc := range cases {
		t.Run(caseName, func(t *testing.T) {
			r := newRegistry(t, Config{})
			first := connect(t, r, "/a.sock")
			r.Add(first)
			tc.prepare(r)
			second := connect(t, r, tc.endpoint)
			defer second.Close()
			if got := first.link == second.link; got != tc.shared {
				t.Errorf("%s: shared %t, want %t", tc.reason, got, tc.shared)
			}
		})
	}
}

// TestNames lists what is registered now, in order.
func TestNames(t *testing.T) {
	r := newRegistry(t, Config{})
	for _, n := range []string{"c.example", "a.example", "b.example"} {
		d, err := r.Connect(Spec{Name: n, Endpoint: "/" + n})
		if err != nil {
			t.Fatal(err)
		}
		r.Add(d)
	}
	r.Remove("b.example")
	if diff := cmp.Diff([]string{"a.example", "c.example"}, r.Names()); diff != "" {
		t.Errorf("names, -want +got:\n%s", diff)
	}
	if got := newRegistry(t, Config{}).Names(); len(got) > 0 {
		t.Errorf("an empty registry has %v", got)
	}
}

// TestAddAgain: the same driver value twice is one holder, not two.
func TestAddAgain(t *testing.T) {
	r := newRegistry(t, Config{})
	d := connect(t, r, "/csi.sock")
	r.Add(d)
	r.Remove(name)
	r.Add(d)
	if d.link.isClosed() || d.link.count() != 1 {
		t.Errorf("closed %t with %d users, want one holder", d.link.isClosed(), d.link.count())
	}
	if got, err := r.Get(name); got != d || err != nil {
		t.Errorf("Get: %v, %v", got, err)
	}
}

// TestRegistryUnderLoad is for the race detector: drivers come and go while others look.
func TestRegistryUnderLoad(t *testing.T) {
	r := newRegistry(t, Config{})
	names := []string{"a.example", "b.example"}
	var load sync.WaitGroup
	for i := range 8 {
		load.Go(func() {
			for round := range 50 {
				n := names[(i+round)%len(names)]
				d, err := r.Connect(Spec{Name: n, Endpoint: "/" + n})
				if err != nil {
					t.Error(err)
					return
				}
				r.Add(d)
				if _, err := r.Last(n); err != nil {
					t.Error(err)
				}
				r.Remove(n)
			}
		})
	}
	load.Wait()
	for _, n := range names {
		d, err := r.Last(n)
		if err != nil || d.link.isClosed() || d.link.count() != 1 {
			t.Errorf("%s: %v, closed %t with %d users, want one holder", n, err, d.link.isClosed(), d.link.count())
		}
	}
}

func TestCodeLabel(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		want   string
	}{
		"OK":      {reason: "success has a code", want: "OK"},
		"Status":  {reason: "gRPC's words", err: status.Error(codes.FailedPrecondition, "x"), want: "FailedPrecondition"},
		"NotGRPC": {reason: "no call was made", err: errors.New("x"), want: csimetrics.NotGRPC},
	}
	for caseName, tc := range cases {
		t.Run(caseName, func(t *testing.T) {
			if got := codeLabel(tc.err); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestAbsentCapability reads as false, also from none at all.
func TestAbsentCapability(t *testing.T) {
	d := csitest.New(csitest.Options{})
	d.SetNode(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	r := newRegistry(t, Config{Dial: func(string) (grpc.ClientConnInterface, error) { return d.Conn(), nil }})
	x := connect(t, r, "/csi.sock")
	defer x.Close()
	caps, err := x.NodeCapabilities(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var have []csi.NodeServiceCapability_RPC_Type
	for _, c := range csitest.AllNode() {
		if caps[c] {
			have = append(have, c)
		}
	}
	if !slices.Equal(have, []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}) {
		t.Errorf("capabilities are %v", have)
	}
	if Capabilities(nil)[csi.NodeServiceCapability_RPC_EXPAND_VOLUME] {
		t.Error("no capabilities have one")
	}
}

// TestOffer: a driver that is connected can be reached for unmounts before it is registered, and its connection ends with
// its last holder whatever becomes of the registration.
func TestOffer(t *testing.T) {
	cases := map[string]struct {
		reason   string
		before   func(*Registry)
		then     func(*Registry, *Driver)
		endpoint string
		users    int
	}{
		"Added":   {reason: "registered in the end", then: func(r *Registry, d *Driver) { r.Add(d) }, endpoint: "/csi.sock", users: 1},
		"Refused": {reason: "not registered, but still reachable", then: func(_ *Registry, d *Driver) { d.Close() }, endpoint: "/csi.sock", users: 1},
		"Twice": {reason: "one that registers again shares the connection", then: func(r *Registry, d *Driver) {
			d.Close()
			again, err := r.Connect(Spec{Name: name, Endpoint: "/csi.sock"})
			if err != nil {
				t.Fatal(err)
			}
			r.Offer(again)
			r.Add(again)
		}, endpoint: "/csi.sock", users: 1},
		"OtherRegistered": {reason: "the registered driver keeps its volumes", before: func(r *Registry) {
			old, err := r.Connect(Spec{Name: name, Endpoint: "/old.sock"})
			if err != nil {
				t.Fatal(err)
			}
			r.Add(old)
		}, then: func(_ *Registry, d *Driver) { d.Close() }, endpoint: "/old.sock"},
		"Closed": {reason: "nothing is kept at the end", before: func(r *Registry) { r.Close() }, then: func(_ *Registry, d *Driver) { d.Close() }},
	}
	for caseName, tc := range cases {
		t.Run(caseName, func(t *testing.T) {
			r := newRegistry(t, Config{})
			if tc.before != nil {
				tc.before(r)
			}
			d := connect(t, r, "/csi.sock")
			r.Offer(d)
			r.Offer(d)
			tc.then(r, d)
			last, err := r.Last(name)
			if (err == nil) != (tc.endpoint != "") || err == nil && last.spec.Endpoint != tc.endpoint {
				t.Errorf("%s: last is %+v, %v, want endpoint %q", tc.reason, last, err, tc.endpoint)
			}
			if d.link.count() != tc.users {
				t.Errorf("%s: %d users, want %d", tc.reason, d.link.count(), tc.users)
			}
		})
	}
}
