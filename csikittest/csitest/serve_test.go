package csitest_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// dial connects to a driver on a socket, for as long as the test runs.
func dial(t *testing.T, path string) csi.IdentityClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return csi.NewIdentityClient(conn)
}

func TestServeAtComesAndGoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	for _, name := range []string{"one.example", "two.example"} {
		stop := csitest.New(csitest.Options{Name: name}).ServeAt(t, path)
		info, err := dial(t, path).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
		if err != nil || info.GetName() != name {
			t.Errorf("driver %q: GetPluginInfo: %v, %v", name, info, err)
		}
		stop()
		if _, err := dial(t, path).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{}); err == nil {
			t.Errorf("driver %q answers after stop", name)
		}
	}
}

// What a driver was asked before it was stopped is answered, but one that hangs is not waited for.
func TestServeAtStopsInOrder(t *testing.T) {
	cases := map[string]struct {
		reason string
		fault  csitest.Fault
		ok     bool
	}{
		"Slow":  {reason: "the answer is on its way", fault: csitest.Fault{Method: "Probe", Delay: 50 * time.Millisecond}, ok: true},
		"Hangs": {reason: "there is no answer to wait for", fault: csitest.Fault{Method: "Probe", Hang: true}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(csitest.Options{})
			d.Inject(tc.fault)
			path := filepath.Join(t.TempDir(), "csi.sock")
			stop := d.ServeAt(t, path)
			result := make(chan error, 1)
			client := dial(t, path)
			go func() {
				_, err := client.Probe(t.Context(), &csi.ProbeRequest{})
				result <- err
			}()
			for len(d.Calls()) == 0 { // until the driver was asked
				time.Sleep(time.Millisecond)
			}
			stop()
			if err := <-result; (err == nil) != tc.ok {
				t.Errorf("%s: the running call: %v, want success: %v", tc.reason, err, tc.ok)
			}
		})
	}
}
