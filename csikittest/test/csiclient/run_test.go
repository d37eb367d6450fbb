package csiclient_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/csiserver"
	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// patience bounds what must happen soon; it is no measure of speed.
const patience = 3 * time.Minute

// process is a driver process that can be started and stopped on one socket.
type process struct {
	t        *testing.T
	endpoint string
	cancel   context.CancelFunc
	ended    chan error
}

func newProcess(t *testing.T) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", "csiclient")
	if err != nil {
		t.Fatalf("make a directory: %v", err)
	}
	p := &process{t: t, endpoint: "unix://" + filepath.Join(dir, "csi.sock")}
	t.Cleanup(func() {
		p.stop()
		_ = os.RemoveAll(dir)
	})
	return p
}

func (p *process) start(d *csitest.Driver) {
	p.t.Helper()
	server, err := csiserver.Listen(csiserver.Config{Endpoint: p.endpoint, StopTimeout: patience}, d.Register)
	if err != nil {
		p.t.Fatalf("start the driver: %v", err)
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	p.cancel, p.ended = cancel, make(chan error, 1)
	go func() { p.ended <- server.Run(ctx) }()
}

func (p *process) stop() {
	if p.cancel == nil {
		return
	}
	p.cancel()
	p.cancel = nil
	if err := <-p.ended; err != nil {
		p.t.Errorf("the driver ended with %v", err)
	}
}

// watch runs client.Run until the test ends. It returns what onChange is
// called with, and what Run returns.
func watch(t *testing.T, client *csiclient.Client) (changes <-chan *csiclient.Info, ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	infos, done, stopped := make(chan *csiclient.Info, 10), make(chan error, 1), make(chan struct{})
	go func() {
		defer close(stopped)
		done <- client.Run(ctx, nil, func(info *csiclient.Info) { infos <- info })
	}()
	t.Cleanup(func() {
		cancel()
		<-stopped
	})
	return infos, done
}

func receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not happen within %v", what, patience)
		panic("unreachable")
	}
}

func TestRunReadsAgainAfterRestart(t *testing.T) {
	p := newProcess(t)
	p.start(csitest.New(csitest.Options{Version: "v1"}))
	client := connect(t, csiclient.Config{Address: p.endpoint, Poll: 10 * time.Millisecond})
	if _, err := client.Wait(t.Context()); err != nil {
		t.Fatalf("Wait: %v", err)
	}
	changes, _ := watch(t, client)
	for _, version := range []string{"v2", "v3"} {
		p.stop()
		p.start(csitest.New(csitest.Options{
			Version: version, Controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
		}))
		info := receive(t, "the change to "+version, changes)
		if info.Version != version || info.Controller[csi.ControllerServiceCapability_RPC_EXPAND_VOLUME] || client.Info() != info {
			t.Errorf("after the restart as %s: %+v", version, info)
		}
	}
	if len(changes) > 0 {
		t.Errorf("%d more changes were reported", len(changes))
	}
}

// TestRunReportsAway has a driver that is away reported once, and its return, although another caller has read the driver before Run does.
func TestRunReportsAway(t *testing.T) {
	p := newProcess(t)
	p.start(csitest.New(csitest.Options{}))
	client := connect(t, csiclient.Config{Address: p.endpoint, Poll: 10 * time.Millisecond})
	if _, err := client.Wait(t.Context()); err != nil {
		t.Fatalf("Wait: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	away, read, back, ended := make(chan struct{}), make(chan struct{}), make(chan *csiclient.Info, 10), make(chan error, 1)
	go func() {
		ended <- client.Run(ctx, func() { away <- struct{}{}; <-read }, func(info *csiclient.Info) { back <- info })
	}()
	for range 3 {
		p.stop()
		receive(t, "the report that the driver is away", away)
		p.start(csitest.New(csitest.Options{}))
		if _, err := client.Wait(t.Context()); err != nil {
			t.Fatalf("Wait: %v", err)
		}
		read <- struct{}{}
		receive(t, "the report that the driver is back", back)
	}
	cancel()
	if err := receive(t, "the end", ended); err != nil || len(back) > 0 {
		t.Errorf("ended in %v, with %d more reports", err, len(back))
	}
}

func TestRunWithoutWait(t *testing.T) {
	p := newProcess(t)
	client := connect(t, csiclient.Config{Address: p.endpoint, Poll: 10 * time.Millisecond})
	changes, _ := watch(t, client)
	p.start(csitest.New(csitest.Options{}))
	if info := receive(t, "the first connection", changes); info.Name != csitest.DefaultName {
		t.Errorf("info %+v", info)
	}
}

func TestRunExitOnLoss(t *testing.T) {
	p := newProcess(t)
	p.start(csitest.New(csitest.Options{}))
	client := connect(t, csiclient.Config{Address: p.endpoint, ExitOnLoss: true})
	if _, err := client.Wait(t.Context()); err != nil {
		t.Fatalf("Wait: %v", err)
	}
	changes, ended := watch(t, client)
	p.stop()
	if err := receive(t, "the end of Run", ended); !errors.Is(err, csiclient.ErrConnectionLost) {
		t.Errorf("Run: %v, want ErrConnectionLost", err)
	}
	if len(changes) > 0 {
		t.Error("a change was reported")
	}
}

// A driver that answered Internal while it was starting again ended the process of each component.
func TestRunRetriesAfterErrorsOfAStartingDriver(t *testing.T) {
	for _, method := range []string{"Probe", "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities"} {
		for _, code := range []codes.Code{codes.Internal, codes.Unknown, codes.Unimplemented, codes.PermissionDenied} {
			t.Run(method+code.String(), func(t *testing.T) {
				p := newProcess(t)
				p.start(csitest.New(csitest.Options{Version: "v1"}))
				client := connect(t, csiclient.Config{Address: p.endpoint, Poll: 10 * time.Millisecond})
				if _, err := client.Wait(t.Context()); err != nil {
					t.Fatalf("Wait: %v", err)
				}
				changes, ended := watch(t, client)
				p.stop()
				starting := csitest.New(csitest.Options{Version: "v2"})
				starting.Inject(csitest.Fault{Method: method, Code: code, Message: "starting", Times: 3})
				p.start(starting)
				select {
				case err := <-ended:
					t.Fatalf("Run ended: %v", err)
				case info := <-changes:
					if info.Version != "v2" {
						t.Errorf("after the restart: %+v", info)
					}
				case <-time.After(patience):
					t.Fatal("the restart went unnoticed")
				}
			})
		}
	}
}

// A driver that comes back with a name that no driver may have is an error.
func TestRunRefusesUnusableDriver(t *testing.T) {
	p := newProcess(t)
	p.start(csitest.New(csitest.Options{}))
	client := connect(t, csiclient.Config{Address: p.endpoint, Poll: 10 * time.Millisecond})
	before, err := client.Wait(t.Context())
	if err != nil {
		t.Fatalf("Wait: %v", err)
	}
	_, ended := watch(t, client)
	p.stop()
	p.start(csitest.New(csitest.Options{Name: "not_valid"}))
	if err := receive(t, "the end of Run", ended); err == nil {
		t.Error("Run accepted the name not_valid")
	}
	if client.Info() != before {
		t.Errorf("Info has become %+v", client.Info())
	}
}

func TestRunEndsWithContext(t *testing.T) {
	d := csitest.New(csitest.Options{})
	for name, cfg := range map[string]csiclient.Config{
		"InProcess": {Conn: d.Conn()},
		"Connected": {Address: d.Serve(t)},
		"Absent":    {Address: filepath.Join(t.TempDir(), "none")},
	} {
		t.Run(name, func(t *testing.T) {
			client := connect(t, cfg)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- client.Run(ctx, nil, nil) }()
			cancel()
			if err := receive(t, "the end of Run", ended); err != nil {
				t.Errorf("Run: %v, want nil", err)
			}
		})
	}
}

func TestRunEndsWithClose(t *testing.T) {
	d := csitest.New(csitest.Options{})
	client, err := csiclient.New(csiclient.Config{Address: d.Serve(t)})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	if _, err := client.Wait(t.Context()); err != nil {
		t.Fatalf("Wait: %v", err)
	}
	_, ended := watch(t, client)
	if err := client.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if err := receive(t, "the end of Run", ended); err != nil {
		t.Errorf("Run: %v, want nil", err)
	}
}

// A version that is known to do more is asked again; it is believed if it says the same for ten answers, and another version at once.
func TestRunDoubtsFewerCapabilities(t *testing.T) {
	options := func(version string) csitest.Options {
		return csitest.Options{Version: version, Controller: []csi.ControllerServiceCapability_RPC_Type{
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		}}
	}
	const expand = csi.ControllerServiceCapability_RPC_EXPAND_VOLUME
	for name, tt := range map[string]struct {
		version string
		asked   int // until the driver announces all again, 0 for never
		expands bool
	}{
		"Starting":     {"v1", 3, true},
		"OtherFlags":   {"v1", 0, false},
		"OtherVersion": {"v2", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProcess(t)
			p.start(csitest.New(options("v1")))
			client := connect(t, csiclient.Config{Address: p.endpoint, Poll: 10 * time.Millisecond})
			if _, err := client.Wait(t.Context()); err != nil {
				t.Fatalf("Wait: %v", err)
			}
			changes, _ := watch(t, client)
			p.stop()
			second := csitest.New(options(tt.version))
			second.SetController(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME)
			asked := 0
			second.Inject(csitest.Fault{Method: "ControllerGetCapabilities", Match: func(proto.Message) bool {
				if asked++; asked == tt.asked {
					second.SetController(options("").Controller...)
				}
				return false
			}})
			p.start(second)
			if info := receive(t, "the restart", changes); info.Controller[expand] != tt.expands {
				t.Errorf("after %d answers, EXPAND_VOLUME is %v, want %v", asked, info.Controller[expand], tt.expands)
			}
			if want := map[string]int{"Starting": 4, "OtherFlags": 11, "OtherVersion": 1}[name]; asked != want {
				t.Errorf("asked %d times, want %d", asked, want)
			}
		})
	}
}
