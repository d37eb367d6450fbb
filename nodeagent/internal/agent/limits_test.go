package agent

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
	"github.com/longshore-csi/longshore/nodeagent/internal/nodeobj"
)

// limitedConn is a connection to the driver of a cluster whose NodeGetInfo returns a limit that the test sets.
type limitedConn struct {
	grpc.ClientConnInterface
	limit, calls atomic.Int64
}

// Invoke implements grpc.ClientConnInterface.
func (l *limitedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	err := l.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
	if info, ok := reply.(*csi.NodeGetInfoResponse); ok && err == nil {
		info.MaxVolumesPerNode = l.limit.Load()
		l.calls.Add(1)
	}
	return err
}

// limited starts an agent with a driver that has registered with a limit of 3, and whose CSIDriver object has a period in seconds; 0 for none.
func limited(t *testing.T, period int64) (*cluster, *limitedConn) {
	t.Helper()
	c := newCluster(t, csitest.Options{})
	conn := &limitedConn{ClientConnInterface: c.driver.Conn()}
	conn.limit.Store(3)
	c.cfg.DialDriver = func(string) (grpc.ClientConnInterface, error) { return conn, nil }
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.register()
	c.apply(driverWithPeriod(period))
	c.start()
	c.eventually("the registration", c.registered(1))
	c.eventually("the CSIDriver object", func() bool { return c.agent.csiDriver(driverName) != nil })
	return c, conn
}

func driverWithPeriod(seconds int64) *storagev1.CSIDriver {
	d := csiDriver(false)
	if seconds > 0 {
		d.Spec.NodeAllocatableUpdatePeriodSeconds = &seconds
	}
	return d
}

func (c *cluster) limitIs(want int32) func() bool {
	return func() bool {
		n, err := c.api.Client().CSINodes().Get(c.t.Context(), nodeName, metav1.GetOptions{})
		return err == nil && len(n.Spec.Drivers) == 1 && n.Spec.Drivers[0].Allocatable != nil && *n.Spec.Drivers[0].Allocatable.Count == want
	}
}

func (c *cluster) csiNodeWrites() (n int) {
	for _, w := range c.api.Writes() {
		if w.Resource == "csinodes" {
			n++
		}
	}
	return n
}

// TestLimitIsRefreshed: a period that is added to the CSIDriver object takes effect, and what has not changed is not written.
func TestLimitIsRefreshed(t *testing.T) {
	c, conn := limited(t, 0)
	conn.limit.Store(2)
	if n := conn.calls.Load(); n != 1 {
		t.Errorf("%d calls before there is a period, want that of the registration", n)
	}
	c.apply(driverWithPeriod(1))
	c.eventually("the new limit", c.limitIs(2))
	c.api.ResetWrites()
	calls := conn.calls.Load()
	c.eventually("two more calls", func() bool { return conn.calls.Load() >= calls+2 })
	if n := c.csiNodeWrites(); n > 0 {
		t.Errorf("the CSINode was written %d times although nothing has changed", n)
	}
}

// TestExhaustedCallRefreshes: a volume that the driver refuses refreshes the limit long before the period is over.
func TestExhaustedCallRefreshes(t *testing.T) {
	c, conn := limited(t, 3600)
	conn.limit.Store(1)
	c.driver.Inject(csitest.Fault{Method: "NodePublishVolume", Code: codes.ResourceExhausted, Message: "no slots"})
	c.apply(claim(), persistentVolume(), podWith("a", claimSource()))
	c.eventually("the new limit", c.limitIs(1))
	c.driver.Heal()
	c.eventually("the pod to run", c.running("a"))
}

func refused(code *int32) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: layout.Attachment("vol-1", driverName, nodeName)},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: nodeName},
		Status:     storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no slots", ErrorCode: code}},
	}
}

// TestLimitExceeded is when a pod is rejected, by the kubelet's rules; the limit is refreshed before.
func TestLimitExceeded(t *testing.T) {
	cases := map[string]struct {
		reason     string
		period     int64
		attachment *storagev1.VolumeAttachment
		away       bool
		want       bool
	}{
		"Limit":        {reason: "the attachment was refused because of the limit", period: 3600, attachment: refused(on(int32(8))), want: true},
		"DriverAway":   {reason: "a limit that cannot be refreshed is reached all the same", period: 3600, attachment: refused(on(int32(8))), away: true, want: true},
		"LongPeriod":   {reason: "a period that no clock can measure", period: math.MaxInt64, attachment: refused(on(int32(8))), want: true},
		"OtherCode":    {reason: "another error", period: 3600, attachment: refused(on(int32(13)))},
		"NoCode":       {reason: "an attacher that does not write codes", period: 3600, attachment: refused(nil)},
		"NoAttachment": {reason: "kube-controller-manager has not come to it", period: 3600},
		"NoPeriod":     {reason: "the CSIDriver object does not ask for it", attachment: refused(on(int32(8)))},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c, conn := limited(t, tc.period)
			conn.limit.Store(1)
			if tc.attachment != nil {
				c.apply(tc.attachment)
			}
			if tc.away {
				c.driver.Inject(csitest.Fault{Method: "NodeGetInfo", Code: codes.Unavailable})
			}
			got := c.agent.limitExceeded(t.Context(), &volume.Volume{Driver: driverName, Handle: "vol-1"})
			if refreshed := c.limitIs(1)(); got != tc.want || refreshed != (tc.want && !tc.away) {
				t.Errorf("%s: %v, refreshed %v, want %v", tc.reason, got, refreshed, tc.want)
			}
		})
	}
}

// TestExhaustedAttachmentRefreshes: whoever waits for an attachment and sees that the limit is reached has it refreshed.
func TestExhaustedAttachmentRefreshes(t *testing.T) {
	for code, want := range map[int32]string{8: driverName, 14: ""} {
		va, got := refused(&code), ""
		a := attachments{
			view: &nodeobj.View{}, client: kubetest.New(va).Client().VolumeAttachments(),
			exhausted: func(driver string) { got = driver },
		}
		if _, err := a.Attachment(t.Context(), va.Name); err == nil || !strings.Contains(err.Error(), "no slots") {
			t.Errorf("code %d: got %v, want the driver's error", code, err)
		}
		if got != want {
			t.Errorf("code %d: exhausted is %q, want %q", code, got, want)
		}
	}
}

// TestUpdateChecksTheAnswer: what CSINode cannot hold is an error of the refresh.
func TestUpdateChecksTheAnswer(t *testing.T) {
	c, conn := limited(t, 0)
	if err := (nodeInfo{c.agent.info}).Update(t.Context(), driverName, &csi.NodeGetInfoResponse{}); err == nil {
		t.Error("an answer without a node ID is accepted")
	}
	c.driver.Inject(csitest.Fault{Method: "NodeGetInfo", Code: codes.Unavailable})
	if err := c.agent.plugin.Refresh(t.Context(), driverName); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("a driver that is away: %v", err)
	}
	if n := conn.calls.Load(); n != 1 || !c.limitIs(3)() {
		t.Errorf("%d answers, or another limit", n)
	}
}
