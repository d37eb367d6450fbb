package controller

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestCrashLoopKeepsBackoff: a driver that dies of its load is not given all failing VolumeAttachments after each of its
// restarts. After the first one they come one after the other, and then by their own pauses.
func TestCrashLoopKeepsBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const attachments = 300
		b := newBench(t, freshPV(), newCSINode(testDriver, "id-1"))
		defer b.stop()
		var calls atomic.Int64
		b.driver.publish = func(*csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
			calls.Add(1)
			return nil, status.Error(codes.Unavailable, "connection refused")
		}
		for i := range attachments {
			b.apply(fresh(named(fmt.Sprintf("va-%d", i))))
		}
		pass(10 * time.Minute) // all pauses are at --retry-interval-max, a minute
		calls.Store(0)
		b.DriverChanged(b.ctx)
		pass(time.Second)
		if got := calls.Load(); got > attachments/4 {
			t.Errorf("%d calls in the first second after the return of the driver", got)
		}
		pass(2 * time.Minute)
		calls.Store(0)
		for range 10 {
			b.DriverChanged(b.ctx)
			pass(time.Second)
		}
		if got := calls.Load(); got > attachments {
			t.Errorf("%d calls while the driver restarted ten times in ten seconds", got)
		}
	})
}
