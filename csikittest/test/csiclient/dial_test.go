package csiclient_test

import (
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// A connection is made by the first call and again after each loss, and it is
// reported before a call uses it.
func TestDialReportsEachConnection(t *testing.T) {
	p := newProcess(t)
	d := csitest.New(csitest.Options{})
	var made atomic.Int64
	conn, err := csiclient.Dial(p.endpoint, func() { made.Add(1) })
	if err != nil {
		t.Fatalf("Dial: %v", err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	if n := made.Load(); n != 0 {
		t.Errorf("before the first call: %d connections", n)
	}
	for want := range int64(3) {
		p.start(d)
		for range 2 {
			if _, err := csi.NewIdentityClient(conn).Probe(t.Context(), &csi.ProbeRequest{}, grpc.WaitForReady(true)); err != nil {
				t.Fatalf("Probe: %v", err)
			}
		}
		if n := made.Load(); n != want+1 {
			t.Errorf("after %d restarts: %d connections", want, n)
		}
		p.stop()
	}
}
