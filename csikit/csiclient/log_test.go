package csiclient_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/csitest"
	"github.com/longshore-csi/longshore/csikit/logging"
)

func TestCallsAreLogged(t *testing.T) {
	cases := map[string]struct {
		reason    string
		verbosity int
		limit     int
		fault     csitest.Fault
		has, not  []string
	}{
		"Quiet": {
			reason:    "nothing is logged below V(5)",
			verbosity: 4,
			not:       []string{"CSI call"},
		},
		"Bodies": {
			reason:    "request and reply are logged without secrets",
			verbosity: 5,
			has:       []string{"CreateVolume", `\"name\":\"a\"`, `***stripped***`, `\"volume_id\":\"vol-a\"`, "duration"},
			not:       []string{"hunter2", "a-token"},
		},
		"Error": {
			reason:    "the error is logged with its code",
			verbosity: 5,
			fault:     csitest.Fault{Code: codes.Aborted, Message: "busy", Times: 1},
			has:       []string{`code="Aborted"`, "busy"},
			not:       []string{"hunter2", "vol-a"},
		},
		"Cut": {
			reason:    "a limit cuts bodies",
			verbosity: 5,
			limit:     10,
			has:       []string{`{\"name\":\"a...`},
			not:       []string{"hunter2", "volume_capabilities"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(csitest.Options{})
			if c.fault.Times > 0 {
				d.Inject(c.fault)
			}
			var out strings.Builder
			client := connect(t, csiclient.Config{Conn: d.Conn(), MaxLogLength: c.limit})
			_, err := client.Controller().CreateVolume(logTo(t.Context(), t, &out, c.verbosity), &csi.CreateVolumeRequest{
				Name:       "a",
				Secrets:    map[string]string{"password": "hunter2"},
				Parameters: map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": "a-token"},
				VolumeCapabilities: []*csi.VolumeCapability{{
					AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
					AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
				}},
			})
			if (err != nil) != (c.fault.Times > 0) {
				t.Fatalf("CreateVolume: %v", err)
			}
			for _, part := range c.has {
				if !strings.Contains(out.String(), part) {
					t.Errorf("%s: log lacks %q:\n%s", c.reason, part, out.String())
				}
			}
			for _, part := range c.not {
				if strings.Contains(out.String(), part) {
					t.Errorf("%s: log contains %q:\n%s", c.reason, part, out.String())
				}
			}
		})
	}
}

// list answers ListVolumes with a fixed reply, without a copy.
type list struct{ reply *csi.ListVolumesResponse }

func (l list) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	reply.(*csi.ListVolumesResponse).Entries = l.reply.Entries
	return nil
}

func (l list) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, nil
}

func volumes(n int) *csi.ListVolumesResponse {
	reply := &csi.ListVolumesResponse{}
	for i := range n {
		reply.Entries = append(reply.Entries, &csi.ListVolumesResponse_Entry{Volume: &csi.Volume{
			VolumeId:           fmt.Sprintf("vol-pvc-%036d", i),
			CapacityBytes:      1 << 30,
			VolumeContext:      map[string]string{"name": fmt.Sprintf("pvc-%036d", i), "pool": "fast"},
			AccessibleTopology: []*csi.Topology{{Segments: map[string]string{"topology.example/zone": "z1"}}},
		}})
	}
	return reply
}

func quiet(tb testing.TB, verbosity int) context.Context {
	tb.Helper()
	o := logging.NewOptions()
	o.Verbosity = verbosity
	logger, err := logging.New(o, io.Discard)
	if err != nil {
		tb.Fatalf("logging.New: %v", err)
	}
	return klog.NewContext(tb.Context(), logger)
}

// Below V(5) the cost of a call does not depend on the size of its messages,
// and the client adds next to nothing to it.
func TestQuietCallsCostNothing(t *testing.T) {
	ctx := quiet(t, 4)
	allocs := func(volumeCount int) float64 {
		base := list{volumes(volumeCount)}
		client := connect(t, csiclient.Config{Conn: base})
		req, reply := &csi.ListVolumesRequest{}, &csi.ListVolumesResponse{}
		direct := testing.AllocsPerRun(20, func() {
			if err := base.Invoke(ctx, csi.Controller_ListVolumes_FullMethodName, req, reply); err != nil {
				t.Errorf("Invoke: %v", err)
			}
		})
		return testing.AllocsPerRun(20, func() {
			if err := client.Conn().Invoke(ctx, csi.Controller_ListVolumes_FullMethodName, req, reply); err != nil {
				t.Errorf("Invoke: %v", err)
			}
		}) - direct
	}
	for _, n := range []int{1, 10_000} {
		if got := allocs(n); got > 2 {
			t.Errorf("%d volumes: the client adds %v allocations to a call, want at most 2", n, got)
		}
	}
}

// A reply of 10,000 volumes is larger than gRPC's default limit for messages
// that have such IDs, and arrives.
func TestLargeReplyArrives(t *testing.T) {
	d := csitest.New(csitest.Options{Capacity: 1 << 60})
	note := strings.Repeat("x", 500)
	for i := range 10_000 {
		d.AddVolume(csitest.Volume{ID: fmt.Sprintf("vol-%05d", i), Context: map[string]string{"note": note}})
	}
	client := connect(t, csiclient.Config{Address: d.Serve(t)})
	reply, err := client.Controller().ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	if err != nil {
		t.Fatalf("ListVolumes: %v", err)
	}
	if n, size := len(reply.GetEntries()), proto.Size(reply); n != 10_000 || size <= 4<<20 {
		t.Errorf("got %d volumes in %d bytes, want 10,000 in more than 4 MiB", n, size)
	}
}

// Run with -benchmem: V0 is what production pays, V5 what debugging costs.
func BenchmarkListVolumes(b *testing.B) {
	for _, verbosity := range []int{0, 5} {
		for _, n := range []int{1, 1_000, 10_000} {
			b.Run(fmt.Sprintf("V%d/Volumes%d", verbosity, n), func(b *testing.B) {
				ctx := quiet(b, verbosity)
				client := connect(b, csiclient.Config{Conn: list{volumes(n)}})
				req, reply := &csi.ListVolumesRequest{}, &csi.ListVolumesResponse{}
				b.ReportAllocs()
				for b.Loop() {
					if err := client.Conn().Invoke(ctx, csi.Controller_ListVolumes_FullMethodName, req, reply); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
