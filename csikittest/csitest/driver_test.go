package csitest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestIdentity(t *testing.T) {
	d := csitest.New(csitest.Options{Topology: map[string]string{"zone": "z"}})
	client := csi.NewIdentityClient(d.Conn())
	info, err := client.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	if err != nil || info.GetName() != csitest.DefaultName || info.GetVendorVersion() != "v1" {
		t.Errorf("GetPluginInfo: %v, %v", info, err)
	}
	for _, ready := range []bool{true, false, true} {
		d.SetReady(ready)
		probe, err := client.Probe(t.Context(), &csi.ProbeRequest{})
		if err != nil || probe.GetReady().GetValue() != ready {
			t.Errorf("Probe: %v, %v; want ready %v", probe, err, ready)
		}
	}
	reply, err := client.GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		t.Fatalf("GetPluginCapabilities: %v", err)
	}
	var got []string
	for _, c := range reply.GetCapabilities() {
		if s := c.GetService(); s != nil {
			got = append(got, s.GetType().String())
		} else {
			got = append(got, c.GetVolumeExpansion().GetType().String())
		}
	}
	if diff := cmp.Diff([]string{"CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS", "ONLINE"}, got); diff != "" {
		t.Errorf("plugin capabilities (-want +got):\n%s", diff)
	}
}

func TestCapabilities(t *testing.T) {
	d := csitest.New(csitest.Options{})
	controllerReply, err := controller(d).ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	if err != nil || len(controllerReply.GetCapabilities()) != len(csitest.AllController()) {
		t.Errorf("ControllerGetCapabilities: %v, %v; want all", controllerReply, err)
	}
	nodeReply, err := node(d).NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	if err != nil || len(nodeReply.GetCapabilities()) != len(csitest.AllNode()) {
		t.Errorf("NodeGetCapabilities: %v, %v; want all", nodeReply, err)
	}
}

// The same call gives the same over a socket and in process.
func TestTransports(t *testing.T) {
	dial := func(t *testing.T, d *csitest.Driver) grpc.ClientConnInterface {
		conn, err := grpc.NewClient(d.Serve(t), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatalf("dial: %v", err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	cases := map[string]struct {
		reason string
		conn   func(*testing.T, *csitest.Driver) grpc.ClientConnInterface
	}{
		"Socket":    {reason: "over a unix socket", conn: dial},
		"InProcess": {reason: "in process", conn: func(_ *testing.T, d *csitest.Driver) grpc.ClientConnInterface { return d.Conn() }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(csitest.Options{})
			client := csi.NewControllerClient(c.conn(t, d))
			reply, err := client.CreateVolume(t.Context(), create("a"))
			if err != nil {
				t.Fatalf("%s: CreateVolume: %v", c.reason, err)
			}
			want := &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "vol-a", CapacityBytes: gib, VolumeContext: map[string]string{"name": "a"}}}
			if diff := cmp.Diff(want, reply, protocmp.Transform()); diff != "" {
				t.Errorf("%s: reply (-want +got):\n%s", c.reason, diff)
			}
			_, err = client.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{})
			wantCode(t, c.reason+": a method whose capability is not announced", err, codes.Unimplemented)
			d.Inject(csitest.Fault{Method: "DeleteVolume", Code: codes.Aborted, Message: "busy"})
			_, err = client.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "vol-a"})
			wantCode(t, c.reason+": a fault", err, codes.Aborted)
			wantCalls := []csitest.Call{
				{Node: "node-1", Method: "CreateVolume", Request: create("a"), Done: true},
				{Node: "node-1", Method: "CreateSnapshot", Request: &csi.CreateSnapshotRequest{}, Done: true, Code: codes.Unimplemented, Message: "CreateSnapshot needs the capability CREATE_DELETE_SNAPSHOT, which is not announced"},
				{Node: "node-1", Method: "DeleteVolume", Request: &csi.DeleteVolumeRequest{VolumeId: "vol-a"}, Done: true, Code: codes.Aborted, Message: "busy"},
			}
			if diff := cmp.Diff(wantCalls, d.Calls(), protocmp.Transform()); diff != "" {
				t.Errorf("%s: calls (-want +got):\n%s", c.reason, diff)
			}
			d.ResetCalls()
			if got := d.Calls(); len(got) != 0 {
				t.Errorf("%s: calls after a reset: %v", c.reason, got)
			}
		})
	}
}

// What a caller does with its messages later is no matter to the driver.
func TestMessagesAreCopied(t *testing.T) {
	d := csitest.New(csitest.Options{})
	req := create("a")
	reply, err := controller(d).CreateVolume(t.Context(), req)
	if err != nil {
		t.Fatalf("CreateVolume: %v", err)
	}
	req.Name = "changed"
	reply.Volume.VolumeContext["name"] = "changed"
	if got := d.Volumes()[0].Context["name"]; got != "a" {
		t.Errorf("context of the volume was changed to %q through the reply", got)
	}
	if got := d.Calls()[0].Request.(*csi.CreateVolumeRequest).GetName(); got != "a" {
		t.Errorf("logged name was changed to %q through the request", got)
	}
}

func TestInProcessRefusals(t *testing.T) {
	conn := csitest.New(csitest.Options{}).Conn()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	cases := map[string]struct {
		reason string
		call   func() error
		want   codes.Code
	}{
		"UnknownMethod": {
			reason: "a service that does not exist",
			call: func() error {
				return conn.Invoke(t.Context(), "/csi.v1.Nothing/Do", &csi.ProbeRequest{}, &csi.ProbeResponse{})
			},
			want: codes.Unimplemented,
		},
		"NotMessages": {
			reason: "arguments that are no messages",
			call:   func() error { return conn.Invoke(t.Context(), csi.Identity_Probe_FullMethodName, "request", "reply") },
			want:   codes.Internal,
		},
		"WrongMessage": {
			reason: "the message of another method",
			call: func() error {
				return conn.Invoke(t.Context(), csi.Identity_Probe_FullMethodName, &csi.GetPluginInfoRequest{}, &csi.ProbeResponse{})
			},
			want: codes.Internal,
		},
		"Ended": {
			reason: "a context that has ended",
			call: func() error {
				return conn.Invoke(ended, csi.Identity_Probe_FullMethodName, &csi.ProbeRequest{}, &csi.ProbeResponse{})
			},
			want: codes.Canceled,
		},
		"Stream": {
			reason: "a stream",
			call: func() error {
				_, err := conn.NewStream(t.Context(), &grpc.StreamDesc{}, "/csi.v1.SnapshotMetadata/GetMetadataAllocated")
				return err
			},
			want: codes.Unimplemented,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { wantCode(t, c.reason, c.call(), c.want) })
	}
}

// registrar keeps the registered services.
type registrar map[string]*grpc.ServiceDesc

func (r registrar) RegisterService(desc *grpc.ServiceDesc, _ any) { r[desc.ServiceName] = desc }

func TestRegisterKeepsOuterInterceptor(t *testing.T) {
	d := csitest.New(csitest.Options{})
	services := registrar{}
	d.Register(services)
	var seen []string
	outer := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		reply, err := handle(ctx, req)
		seen = append(seen, info.FullMethod)
		return reply, err
	}
	for _, m := range services["csi.v1.Identity"].Methods {
		if m.MethodName != "Probe" {
			continue
		}
		if _, err := m.Handler(d, t.Context(), func(any) error { return nil }, outer); err != nil {
			t.Errorf("Probe: %v", err)
		}
	}
	if diff := cmp.Diff([]string{csi.Identity_Probe_FullMethodName}, seen); diff != "" {
		t.Errorf("calls seen by the server's interceptor (-want +got):\n%s", diff)
	}
	if calls := d.Calls(); len(calls) != 1 || calls[0].Method != "Probe" {
		t.Errorf("call log %v, want one Probe", calls)
	}
}

// outcomes of one CreateVolume under a fault, with a deadline of one minute.
func TestFaults(t *testing.T) {
	cases := map[string]struct {
		reason string
		fault  csitest.Fault
		want   codes.Code
		took   time.Duration
		exists bool
	}{
		"Code":           {reason: "an error without effect", fault: csitest.Fault{Code: codes.Internal}, want: codes.Internal},
		"Delay":          {reason: "slow, but it works", fault: csitest.Fault{Delay: 3 * time.Second}, took: 3 * time.Second, exists: true},
		"DelayAndCode":   {reason: "a slow error", fault: csitest.Fault{Delay: 3 * time.Second, Code: codes.Aborted}, want: codes.Aborted, took: 3 * time.Second},
		"DelayTooLong":   {reason: "slower than the deadline", fault: csitest.Fault{Delay: time.Hour}, want: codes.DeadlineExceeded, took: time.Minute},
		"Hang":           {reason: "no answer, no effect", fault: csitest.Fault{Hang: true}, want: codes.DeadlineExceeded, took: time.Minute},
		"After":          {reason: "the effect happens, the caller sees an error", fault: csitest.Fault{After: true, Code: codes.Unavailable}, want: codes.Unavailable, exists: true},
		"HangAfter":      {reason: "the effect happens, the caller sees nothing", fault: csitest.Fault{After: true, Hang: true}, want: codes.DeadlineExceeded, took: time.Minute, exists: true},
		"AfterOfFailure": {reason: "a call that fails by itself keeps its error", fault: csitest.Fault{After: true, Code: codes.Unavailable, Match: rename("")}, want: codes.InvalidArgument},
		"OtherMethod":    {reason: "another method is meant", fault: csitest.Fault{Method: "DeleteVolume", Code: codes.Internal}, exists: true},
		"OtherRequest":   {reason: "another request is meant", fault: csitest.Fault{Code: codes.Internal, Match: func(proto.Message) bool { return false }}, exists: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := csitest.New(csitest.Options{})
				d.Inject(c.fault)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				start := time.Now()
				_, err := controller(d).CreateVolume(ctx, create("a"))
				wantCode(t, c.reason, err, c.want)
				if took := time.Since(start); took != c.took {
					t.Errorf("%s: took %v, want %v", c.reason, took, c.took)
				}
				if exists := len(d.Volumes()) == 1; exists != c.exists {
					t.Errorf("%s: the volume exists: %v", c.reason, exists)
				}
			})
		})
	}
}

// rename returns a Match that changes the name of the volume on its way.
func rename(name string) func(proto.Message) bool {
	return func(m proto.Message) bool {
		m.(*csi.CreateVolumeRequest).Name = name
		return true
	}
}

func TestFaultTimesAndHeal(t *testing.T) {
	d := csitest.New(csitest.Options{})
	d.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Aborted, Times: 2})
	d.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Internal})
	for i, want := range []codes.Code{codes.Aborted, codes.Aborted, codes.Internal, codes.Internal} {
		_, err := controller(d).CreateVolume(t.Context(), create("a"))
		if got := d.Calls()[i]; got.Code != want {
			t.Errorf("call %d: %v, want %v (%v)", i, got.Code, want, err)
		}
	}
	d.Heal()
	mustCreate(t, d, "a")
}

// A call is in the log while it runs.
func TestRunningCallIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := csitest.New(csitest.Options{})
		d.Inject(csitest.Fault{Hang: true})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := controller(d).CreateVolume(ctx, create("a"))
			done <- err
		}()
		synctest.Wait()
		if calls := d.Calls(); len(calls) != 1 || calls[0].Done {
			t.Errorf("calls %+v, want one that is running", calls)
		}
		cancel()
		wantCode(t, "after the end of the context", <-done, codes.Canceled)
		if calls := d.Calls(); !calls[0].Done || calls[0].Code != codes.Canceled {
			t.Errorf("calls %+v, want one that was canceled", calls)
		}
	})
}

// TestConnReportsThePeer checks that a call of the connection in process reports a peer, as gRPC does for calls that were
// sent, and that a call whose context has ended before reports none.
func TestConnReportsThePeer(t *testing.T) {
	client := csi.NewIdentityClient(csitest.New(csitest.Options{}).Conn())
	var sent, unsent peer.Peer
	if _, err := client.Probe(t.Context(), &csi.ProbeRequest{}, grpc.Peer(&sent)); err != nil || sent.Addr == nil {
		t.Errorf("a call that was sent: error %v, peer %v", err, sent.Addr)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client.Probe(ended, &csi.ProbeRequest{}, grpc.Peer(&unsent)); err == nil || unsent.Addr != nil {
		t.Errorf("a call that was not sent: error %v, peer %v", err, unsent.Addr)
	}
}
