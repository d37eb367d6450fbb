package csiclient_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikittest/csitest"
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
