package drivername

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watch runs a watcher until the test ends; identities come on the channel.
func watch(t *testing.T, address string) <-chan Identity {
	t.Helper()
	w, err := New(Config{Address: address, Timeout: time.Minute, Poll: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	identities := make(chan Identity, 10)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx, func(who Identity) { identities <- who })
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return identities
}

// next returns the next identity.
func next(t *testing.T, identities <-chan Identity) Identity {
	t.Helper()
	select {
	case got := <-identities:
		return got
	case <-time.After(5 * time.Minute):
		t.Fatal("waited 5 minutes for the next identity")
		return Identity{}
	}
}

func TestWhatHasChangedIsTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	identities := watch(t, path) // before the driver is there
	lives := []struct {
		reason  string
		options csitest.Options
		want    []Identity
	}{
		{
			reason: "the name is reported at once", options: csitest.Options{Name: "one.example"},
			want: []Identity{{Name: "one.example", Generation: 1}},
		},
		{reason: "a new process that is like the old one is no news", options: csitest.Options{Name: "one.example"}},
		{reason: "the limit of volumes is no part of the identity", options: csitest.Options{Name: "one.example", MaxVolumesPerNode: 7}},
		{
			reason: "another node ID is news", options: csitest.Options{Name: "one.example", NodeID: "node-2"},
			want: []Identity{{Name: "one.example", Generation: 2}},
		},
		{
			reason:  "a topology is news",
			options: csitest.Options{Name: "one.example", NodeID: "node-2", Topology: map[string]string{"zone": "b", "rack": "a"}},
			want:    []Identity{{Name: "one.example", Generation: 3}},
		},
		{
			reason: "another driver is news once, with whatever node", options: csitest.Options{Name: "two.example"},
			want: []Identity{{Name: "two.example", Generation: 4}},
		},
	}
	for _, life := range lives {
		d := csitest.New(life.options)
		stop := d.ServeAt(t, path)
		waitForCall(t, d, "NodeGetInfo")
		for _, want := range life.want {
			if got := next(t, identities); got != want {
				t.Errorf("%s: got %+v, want %+v", life.reason, got, want)
			}
		}
		stop()
		if len(identities) > 0 {
			t.Fatalf("%s: also reported %+v", life.reason, <-identities)
		}
	}
}

// waitForCall waits until a call of the method has been answered.
func waitForCall(t *testing.T, d *csitest.Driver, method string) {
	t.Helper()
	for t.Context().Err() == nil {
		for _, call := range d.Calls() {
			if call.Method == method && call.Done {
				return
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestWhatIsAsked(t *testing.T) {
	repeat := func(method string, times int) (calls []string) {
		for range times {
			calls = append(calls, method)
		}
		return calls
	}
	cases := map[string]struct {
		reason string
		fault  csitest.Fault
		calls  []string
	}{
		"Name": {
			reason: "GetPluginInfo is called until the driver answers, and Probe is not called",
			fault:  csitest.Fault{Method: "GetPluginInfo", Code: codes.Unavailable, Times: 2},
			calls:  append(repeat("GetPluginInfo", 3), "NodeGetInfo"),
		},
		"NodeLater": {
			reason: "NodeGetInfo is called again for a driver that is not ready to answer it",
			fault:  csitest.Fault{Method: "NodeGetInfo", Code: codes.Unavailable, Times: 2},
			calls:  append([]string{"GetPluginInfo"}, repeat("NodeGetInfo", 3)...),
		},
		"NoNode": {
			reason: "a driver without a node service is not asked again",
			fault:  csitest.Fault{Method: "NodeGetInfo", Code: codes.Unimplemented},
			calls:  []string{"GetPluginInfo", "NodeGetInfo"},
		},
		"NeverTold": {
			reason: "the questions have an end",
			fault:  csitest.Fault{Method: "NodeGetInfo", Code: codes.Internal},
			calls:  append([]string{"GetPluginInfo"}, repeat("NodeGetInfo", nodeAttempts)...),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(csitest.Options{Name: "one.example"})
			d.SetReady(false)
			d.Inject(tc.fault)
			identities := watch(t, d.Serve(t))
			if got, want := next(t, identities), (Identity{Name: "one.example", Generation: 1}); got != want {
				t.Errorf("%s: got %+v, want %+v", tc.reason, got, want)
			}
			for len(d.Calls()) < len(tc.calls) && t.Context().Err() == nil {
				time.Sleep(5 * time.Millisecond)
			}
			var methods []string
			for _, call := range d.Calls() {
				methods = append(methods, call.Method)
			}
			if diff := cmp.Diff(tc.calls, methods); diff != "" {
				t.Errorf("%s: calls, -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// A driver that hangs must not keep the watcher from seeing the next one.
func TestHangingNodeGetInfo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	identities := watch(t, path)
	hangs := csitest.New(csitest.Options{Name: "one.example"})
	hangs.Inject(csitest.Fault{Method: "NodeGetInfo", Hang: true})
	stop := hangs.ServeAt(t, path)
	if got := next(t, identities); got.Name != "one.example" {
		t.Errorf("got %+v", got)
	}
	stop()
	csitest.New(csitest.Options{Name: "two.example"}).ServeAt(t, path)
	if got := next(t, identities); got.Name != "two.example" {
		t.Errorf("got %+v", got)
	}
}

func TestTCP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csitest.New(csitest.Options{Name: "tcp.example"}).Register(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	defer func() {
		server.Stop()
		<-done
	}()
	if got := next(t, watch(t, "tcp://"+listener.Addr().String())); got.Name != "tcp.example" {
		t.Errorf("got %+v", got)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{Address: "/csi.sock", Timeout: -1}); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("got %v, want an error about the timeout", err)
	}
}

func TestCloseWithoutRun(t *testing.T) {
	w, err := New(Config{Address: "/csi.sock"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestDescribe(t *testing.T) {
	cases := map[string]struct {
		reason string
		info   *csi.NodeGetInfoResponse
		want   string
	}{
		"Plain": {reason: "a node without topology is its ID", info: &csi.NodeGetInfoResponse{NodeId: "n"}, want: `"n"`},
		"Topology": {
			reason: "segments are sorted, so that the same answer has the same form",
			info: &csi.NodeGetInfoResponse{NodeId: "n", AccessibleTopology: &csi.Topology{
				Segments: map[string]string{"zone": "b", "rack": "a", "host": "c"},
			}},
			want: `"n" "host"="c" "rack"="a" "zone"="b"`,
		},
		"Limit": {reason: "the limit of volumes may change at any time", info: &csi.NodeGetInfoResponse{NodeId: "n", MaxVolumesPerNode: 3}, want: `"n"`},
		"Quotes": {
			reason: "an ID cannot be mistaken for an ID with topology",
			info:   &csi.NodeGetInfoResponse{NodeId: `n" "zone"="b`}, want: `"n\" \"zone\"=\"b"`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for range 20 { // maps have no order
				if got := describe(tc.info); got != tc.want {
					t.Fatalf("%s: got %s, want %s", tc.reason, got, tc.want)
				}
			}
		})
	}
}
