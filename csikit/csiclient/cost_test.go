package csiclient_test

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/logging"
)

// list answers ListVolumes with a fixed reply, without a copy.
type list struct{ reply *csi.ListVolumesResponse }

func (l list) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	reply.(*csi.ListVolumesResponse).Entries = l.reply.Entries
	return nil
}

func (l list) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, nil
}

// newClient returns a client whose calls conn answers.
func newClient(tb testing.TB, conn grpc.ClientConnInterface) *csiclient.Client {
	tb.Helper()
	client, err := csiclient.New(csiclient.Config{Conn: conn})
	if err != nil {
		tb.Fatalf("New: %v", err)
	}
	return client
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
		client := newClient(t, base)
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

// Run with -benchmem: V0 is what production pays, V5 what debugging costs.
func BenchmarkListVolumes(b *testing.B) {
	for _, verbosity := range []int{0, 5} {
		for _, n := range []int{1, 1_000, 10_000} {
			b.Run(fmt.Sprintf("V%d/Volumes%d", verbosity, n), func(b *testing.B) {
				ctx := quiet(b, verbosity)
				client := newClient(b, list{volumes(n)})
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
