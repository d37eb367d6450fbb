package csitest

import (
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func createRequest(name string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}}}
}

// A matcher that asked the driver waited for a lock that its caller held.
func TestMatchMayAskTheDriver(t *testing.T) {
	t.Parallel()
	d := New(Options{})
	d.Inject(Fault{Method: "CreateVolume", Code: codes.ResourceExhausted, Match: func(proto.Message) bool {
		return len(d.Volumes()) >= 1 && len(d.Calls()) > 0 && len(d.Violations()) == 0
	}})
	client := csi.NewControllerClient(d.Conn())
	if _, err := client.CreateVolume(t.Context(), createRequest("first")); err != nil {
		t.Errorf("first: there is nothing yet, got %v", err)
	}
	if _, err := client.CreateVolume(t.Context(), createRequest("second")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("second: got %v, want the fault", err)
	}
}

// A matcher may change the faults; the fault that it belongs to is then gone.
func TestMatchMayHeal(t *testing.T) {
	t.Parallel()
	d := New(Options{})
	d.Inject(Fault{Code: codes.Internal, Match: func(proto.Message) bool { d.Heal(); return true }})
	d.Inject(Fault{Code: codes.Internal})
	client := csi.NewControllerClient(d.Conn())
	if _, err := client.CreateVolume(t.Context(), createRequest("a")); err != nil {
		t.Errorf("all faults are healed, got %v", err)
	}
}

// Calls that run at once share the uses of a fault among them.
func TestTimesIsExactAmongConcurrentCalls(t *testing.T) {
	t.Parallel()
	const calls, times = 64, 10
	d := New(Options{})
	d.Inject(Fault{Method: "CreateVolume", Code: codes.Unavailable, Times: times, Match: func(proto.Message) bool { return true }})
	client := csi.NewControllerClient(d.Conn())
	var group sync.WaitGroup
	failed := make(chan error, calls)
	for range calls {
		group.Go(func() {
			if _, err := client.CreateVolume(t.Context(), createRequest("a")); err != nil {
				failed <- err
			}
		})
	}
	group.Wait()
	if len(failed) != times {
		t.Errorf("%d calls have failed, want %d", len(failed), times)
	}
}

// A test may end before the goroutine of its server has been scheduled.
func TestServerStoppedBeforeItBegan(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	server.Stop()
	if err := serve(server, listener); err != nil {
		t.Errorf("an early end is no error, got %v", err)
	}
	if _, err := listener.Accept(); err == nil {
		t.Error("the socket is still open")
	}
}

func TestServeReportsABrokenListener(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	defer server.Stop()
	if err := serve(server, listener); err == nil {
		t.Error("a listener that something else has closed is an error")
	}
}
