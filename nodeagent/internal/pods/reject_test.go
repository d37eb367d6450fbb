package pods

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

const overLimit = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[data], unattached volumes=[data], " +
	"failed to process volumes=[]: timed out waiting for the condition"

// TestPodOverTheLimitIsRejected: as by a kubelet, after 2 minutes and 3 seconds, and only for a volume that is not attached.
func TestPodOverTheLimitIsRejected(t *testing.T) {
	cases := map[string]struct {
		reason  string
		err     error
		limited bool
		want    bool
	}{
		"Limit":      {reason: "the attachment was refused because of the limit", err: volume.ErrNotAttached, limited: true, want: true},
		"NotLimit":   {reason: "the attachment is late for another reason", err: volume.ErrNotAttached},
		"NotAttach":  {reason: "the driver does not mount an attached volume", err: errors.New("no slots"), limited: true},
		"NoProgress": {reason: "nothing has failed yet", limited: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, b *bench) {
				b.set(func() { b.statusErr, b.limited = tc.err, tc.limited })
				b.add(testPod())
				time.Sleep(2*time.Minute + 2*time.Second)
				synctest.Wait()
				b.set(func() {
					if len(b.events) > 0 || len(b.log) > 0 {
						t.Errorf("%s: after 2 minutes: events %q, %q", tc.reason, b.events, b.log)
					}
				})
				time.Sleep(2 * time.Second)
				synctest.Wait()
				b.expectRejected(tc.reason, tc.want)
			})
		})
	}
}

// expectRejected checks the status, the event and the volumes of a pod that has waited for its volume.
func (b *bench) expectRejected(reason string, want bool) {
	b.t.Helper()
	s := b.pod().Status
	if !want {
		b.expectLog(reason)
		if s.Phase != corev1.PodPending || len(b.events) != 1 || !strings.HasPrefix(b.events[0], "FailedMount: Unable to attach or mount volumes: ") {
			b.t.Errorf("%s: phase %s, events %q, want a pod that waits", reason, s.Phase, b.events)
		}
		return
	}
	b.expectLog(reason, "drop uid-a", "clean uid-a")
	if s.Phase != corev1.PodFailed || s.Reason != "VolumeAttachmentLimitExceeded" || s.Message != "Pod was rejected: "+overLimit || s.StartTime == nil {
		b.t.Errorf("%s: status %+v", reason, s)
	}
	if want := []string{"VolumeAttachmentLimitExceeded: " + overLimit}; !slices.Equal(b.events, want) {
		b.t.Errorf("%s: events %q, want %q", reason, b.events, want)
	}
}

// TestRejectionIsFinal: the pod is not set up again before the watch brings its status, and it is deleted like any other.
func TestRejectionIsFinal(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.statusErr, b.limited = volume.ErrNotAttached, true })
		b.add(testPod())
		time.Sleep(3 * time.Minute)
		b.set(func() { b.wants = nil })
		b.c.Wake("uid-a")
		time.Sleep(time.Hour)
		synctest.Wait()
		b.set(func() {
			if len(b.wants) > 0 || len(b.events) != 1 {
				t.Errorf("volumes %q are wanted again, events %q", b.wants, b.events)
			}
		})
		b.remove(0)
		if p := b.pod(); p != nil {
			t.Errorf("the pod is not deleted: %+v", p.Status)
		}
	})
}

// TestRejectionIsTriedAgain: the API server does not take the status at first.
func TestRejectionIsTriedAgain(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.statusErr, b.limited = volume.ErrNotAttached, true })
		b.add(testPod())
		b.api.Fail("patch", "pods", errors.New("the server is away"), 3)
		time.Sleep(2*time.Minute + 10*time.Second)
		synctest.Wait()
		b.expectRejected("after three failures", true)
	})
}
