package registration

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/longshore-csi/longshore/csikit/csiregistration"
)

func TestChooseVersion(t *testing.T) {
	cases := map[string]struct {
		reason  string
		offered []string
		want    string
	}{
		"One":        {reason: "the usual offer", offered: []string{"1.0.0"}, want: "1.0.0"},
		"Highest":    {reason: "numbers are compared, not text", offered: []string{"1.9.0", "1.10.0", "1.2"}, want: "1.10.0"},
		"Prefix":     {reason: "a leading v is usual", offered: []string{"v1.1.0"}, want: "1.1.0"},
		"Future":     {reason: "2.x is ignored", offered: []string{"2.0.0", "1.0.0"}, want: "1.0.0"},
		"Unreadable": {reason: "what cannot be read is ignored", offered: []string{"new", "1.0.0"}, want: "1.0.0"},
		"OnlyOld":    {reason: "0.x is refused", offered: []string{"0.9.0"}},
		"OnlyFuture": {reason: "nothing that this node speaks", offered: []string{"2.0.0"}},
		"None":       {reason: "no offer"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := chooseVersion(tc.offered)
			if (err == nil) != (tc.want != "") {
				t.Fatalf("%s: got %v, %v", tc.reason, got, err)
			}
			if err == nil && got.String() != tc.want {
				t.Errorf("%s: got %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

func FuzzPluginFrom(f *testing.F) {
	f.Add("CSIPlugin", "d.example", "/d.sock", "1.0.0")
	f.Add("CSIPlugin", "../..", "unix:///d.sock", "v1")
	f.Fuzz(func(t *testing.T, typ, name, endpoint, version string) {
		info := &registerapi.PluginInfo{Type: typ, Name: name, Endpoint: endpoint, SupportedVersions: []string{version}}
		p, err := pluginFrom(info, Generation{Path: "/r.sock"})
		if err != nil {
			return
		}
		if strings.ContainsAny(p.Name, "/\x00 ") || p.Name == "" || !strings.HasPrefix(strings.TrimPrefix(p.Endpoint, "unix://"), "/") {
			t.Errorf("%q at %q was accepted", p.Name, p.Endpoint)
		}
	})
}

// A registrar that accepts the connection and says nothing must not hold the
// attempt for longer than the time of GetInfo.
func TestSilentRegistrar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := bufconn.Listen(1 << 16)
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			if conn, err := listener.Accept(); err == nil {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
		}()
		defer func() {
			_ = listener.Close()
			<-accepted
		}()
		reg, err := connect(t.Context(), Config{Dir: "/d", Dial: dialer(listener)}.withDefaults(), Generation{Path: "/r.sock"})
		if err != nil {
			t.Fatal(err)
		}
		defer reg.close()
		start := time.Now()
		if _, err := reg.plugin(t.Context()); err == nil || !strings.Contains(err.Error(), "/r.sock") {
			t.Errorf("got %v, want an error that names the socket", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v, want 1s", took)
		}
		start = time.Now()
		if err := reg.notify(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "/r.sock") {
			t.Errorf("notification: got %v, want an error that names the socket", err)
		}
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("the notification took %v, want 5s", took)
		}
	})
}

// TestDialHasADeadline: a socket that does not accept a connection is given up after ten seconds.
func TestDialHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		start := time.Now()
		_, err := connect(t.Context(), Config{Dial: hang}.withDefaults(), Generation{Path: "/r.sock"})
		if !errors.Is(err, errUnreachable) || !strings.Contains(err.Error(), "/r.sock") {
			t.Errorf("got %v, want one that counts as no answer and names the socket", err)
		}
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("took %v, want 10s", took)
		}
	})
}

// TestWireNames: v1, v1beta1 and v1alpha1 of the kubelet's interface have the same names on the wire, so one client is enough
// for registrars of all of them.
func TestWireNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var called []string
		server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, serve grpc.UnaryHandler) (any, error) {
			called = append(called, info.FullMethod)
			return serve(ctx, req)
		}))
		f := newFakeRegistrar(registrarOptions{name: "d", endpoint: "/d.sock"}, t.Logf)
		registerapi.RegisterRegistrationServer(server, f)
		csiregistration.RegisterCSIRegistrationServer(server, f)
		listener := bufconn.Listen(1 << 16)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(listener)
		}()
		reg, err := connect(t.Context(), Config{Dial: dialer(listener)}.withDefaults(), Generation{Path: "/r.sock"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := reg.plugin(t.Context()); err != nil {
			t.Error(err)
		}
		if err := reg.notify(t.Context(), nil); err != nil {
			t.Error(err)
		}
		reg.close()
		server.Stop()
		<-served
		want := []string{
			"/pluginregistration.Registration/GetInfo", "/csiregistration.CSIRegistration/GetCSIDriverInfo",
			"/pluginregistration.Registration/NotifyRegistrationStatus",
		}
		if !slices.Equal(called, want) {
			t.Errorf("calls %q, want %q", called, want)
		}
	})
}

// A second connection could reach another registrar at the same path, which
// would then hear news that are not its own.
func TestRegistrarIsDialledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := bufconn.Listen(1 << 16)
		first := newFakeRegistrar(registrarOptions{name: "d"}, t.Logf).server()
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = first.Serve(listener)
		}()
		dials := 0
		dial := func(ctx context.Context) (*bufconn.Listener, error) {
			dials++
			return listener, ctx.Err()
		}
		cfg := Config{Dial: counting(dial)}.withDefaults()
		reg, err := connect(t.Context(), cfg, Generation{Path: "/r.sock"})
		if err != nil {
			t.Fatal(err)
		}
		defer reg.close()
		if _, err := reg.info(t.Context()); err != nil {
			t.Fatal(err)
		}
		first.Stop()
		<-served
		if err := reg.notify(t.Context(), errors.New("no")); err == nil {
			t.Error("the news went somewhere")
		}
		if dials != 1 {
			t.Errorf("dialled %d times, want once", dials)
		}
	})
}

func TestNewReportsAllAtOnce(t *testing.T) {
	_, err := New(Config{Dir: "plugins", ExtraDirs: []string{"more"}, Rescan: -1})
	for _, want := range []string{`"plugins": must be an absolute path`, `"more"`, "handler: must not be nil", "rescan interval"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to say %q", err, want)
		}
	}
}
