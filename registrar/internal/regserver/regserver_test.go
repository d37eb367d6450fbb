package regserver

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/testing/protocmp"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/longshore-csi/longshore/csikit/csiregistration"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server and connects to it.
func serve(t *testing.T, d Driver) (*Server, *grpc.ClientConn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "reg.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	s := Start(listener, d)
	t.Cleanup(func() { _ = conn.Close() })
	return s, conn
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

func TestServer(t *testing.T) {
	s, conn := serve(t, Driver{Name: "d.example", Endpoint: "/k/csi.sock", RequiresPublishPod: true})
	defer stop(t, s)
	info, err := registerapi.NewRegistrationClient(conn).GetInfo(t.Context(), &registerapi.InfoRequest{})
	want := &registerapi.PluginInfo{Type: "CSIPlugin", Name: "d.example", Endpoint: "/k/csi.sock", SupportedVersions: []string{"1.0.0"}}
	if diff := cmp.Diff(want, info, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("GetInfo: %v, -want +got:\n%s", err, diff)
	}
	options, err := csiregistration.NewCSIRegistrationClient(conn).GetCSIDriverInfo(t.Context(), &csiregistration.CSIDriverInfoRequest{})
	wantOptions := &csiregistration.CSIDriverInfo{CsiEndpoint: "/k/csi.sock", Options: &csiregistration.CSIDriverOptions{RequiresPublishPod: true}}
	if diff := cmp.Diff(wantOptions, options, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("GetCSIDriverInfo: %v, -want +got:\n%s", err, diff)
	}
}

// The wire name is fixed by the design document, and the same in all versions
// of the kubelet's interface.
func TestWireNames(t *testing.T) {
	s, conn := serve(t, Driver{Name: "d.example"})
	defer stop(t, s)
	for _, method := range []string{"/pluginregistration.Registration/GetInfo", "/csiregistration.CSIRegistration/GetCSIDriverInfo"} {
		if err := conn.Invoke(t.Context(), method, &registerapi.InfoRequest{}, &registerapi.InfoRequest{}); err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
}

func TestVerdicts(t *testing.T) {
	cases := map[string]struct {
		reason string
		said   []*registerapi.RegistrationStatus
		want   Verdict
	}{
		"Registered": {
			reason: "success has no reason", said: []*registerapi.RegistrationStatus{{PluginRegistered: true}}, want: Verdict{Registered: true},
		},
		"Refused": {
			reason: "the kubelet's words are kept", said: []*registerapi.RegistrationStatus{{Error: "no"}}, want: Verdict{Reason: "no"},
		},
		"Several": {
			reason: "the last word counts, and no call blocks although nobody reads",
			said:   []*registerapi.RegistrationStatus{{Error: "a"}, {Error: "b"}, {PluginRegistered: true}},
			want:   Verdict{Registered: true},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, conn := serve(t, Driver{Name: "d.example"})
			defer stop(t, s)
			for _, status := range tc.said {
				if _, err := registerapi.NewRegistrationClient(conn).NotifyRegistrationStatus(t.Context(), status); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(tc.want, <-s.Verdicts()); diff != "" {
				t.Errorf("%s, -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestStopEndsTheListener(t *testing.T) {
	s, conn := serve(t, Driver{Name: "d.example"})
	client := registerapi.NewRegistrationClient(conn)
	if _, err := client.GetInfo(t.Context(), &registerapi.InfoRequest{}); err != nil {
		t.Fatal(err)
	}
	stop(t, s)
	if _, err := client.GetInfo(context.Background(), &registerapi.InfoRequest{}); err == nil {
		t.Error("the server answers after Stop")
	}
}

// A registration may be withdrawn at once, before the server has come to listen.
func TestStopAtOnce(t *testing.T) {
	for range 100 {
		listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "reg.sock"))
		if err != nil {
			t.Fatal(err)
		}
		stop(t, Start(listener, Driver{Name: "d.example"}))
		if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("the listener after Stop: %v, want it closed", err)
		}
	}
}

type brokenListener struct{ net.Listener }

func (brokenListener) Accept() (net.Conn, error) { return nil, errors.New("broken") }

func TestStopTellsWhatEndedTheServer(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "reg.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := Start(brokenListener{listener}, Driver{Name: "d.example"})
	s.served <- <-s.served // wait for it
	if err := s.Stop(); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("got %v, want the error of the listener", err)
	}
}
