package controller

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestDetachUnknownNodeID: the recorded node ID comes first; only a driver that does not know it is asked to detach from the
// registered one.
func TestDetachUnknownNodeID(t *testing.T) {
	ok := status.Error(codes.OK, "")
	unknown, invalid := status.Error(codes.NotFound, "no such node"), status.Error(codes.InvalidArgument, "no UUID")
	tests := map[string]struct {
		reason        string
		csiNode       runtime.Object
		former, today error // answers to the recorded and to the registered ID
		calls         []string
		message       string // of detachError; "": detached
	}{
		"Known":        {reason: "the driver knows the recorded ID", csiNode: newCSINode(testDriver, "new"), former: ok, calls: []string{"old"}},
		"NotFound":     {reason: "the driver knows the new ID only", csiNode: newCSINode(testDriver, "new"), former: unknown, today: ok, calls: []string{"old", "new"}},
		"Invalid":      {reason: "the driver refuses the former format", csiNode: newCSINode(testDriver, "new"), former: invalid, today: ok, calls: []string{"old", "new"}},
		"SameID":       {reason: "nothing else to try", csiNode: newCSINode(testDriver, "old"), former: unknown, calls: []string{"old"}, message: "NotFound: no such node"},
		"NoCSINode":    {reason: "nothing else to try", csiNode: newCSINode(), former: unknown, calls: []string{"old"}, message: "NotFound: no such node"},
		"BothUnknown":  {reason: "the volume may still be attached somewhere", csiNode: newCSINode(testDriver, "new"), former: unknown, today: invalid, calls: []string{"old", "new"}, message: "InvalidArgument: no UUID"},
		"OtherFailure": {reason: "the driver knows the recorded ID and failed", csiNode: newCSINode(testDriver, "new"), former: status.Error(codes.Internal, "broken"), calls: []string{"old"}, message: "Internal: broken"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, freshPV(), tt.csiNode, fresh(vaFinalized, vaAttached, vaAnnotated(AnnotationNodeID, "old", AnnotationVolumeHandle, "vol-1")))
				defer b.stop()
				var calls []string
				b.driver.unpublish = func(r *csi.ControllerUnpublishVolumeRequest) error {
					calls = append(calls, r.GetNodeId())
					if r.GetNodeId() == "old" {
						return tt.former
					}
					return tt.today
				}
				b.remove("va-1")
				pass(500 * time.Millisecond)
				synctest.Wait()
				if !slices.Equal(calls, tt.calls) {
					t.Errorf("%s: unpublished from %q, want %q", tt.reason, calls, tt.calls)
				}
				if b.exists("va-1") != (tt.message != "") {
					t.Fatalf("%s: exists %t", tt.reason, b.exists("va-1"))
				}
				if tt.message != "" && !strings.Contains(b.get("va-1").Status.DetachError.Message, tt.message) {
					t.Errorf("%s: detachError %q, want %q", tt.reason, b.get("va-1").Status.DetachError.Message, tt.message)
				}
			})
		})
	}
}
