package pods

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// exits is a change to a pod that asks for its end.
func exits(after string, policy corev1.RestartPolicy) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{ExitAfterAnnotation: after}
		p.Spec.RestartPolicy = policy
	}
}

// TestPodExitsInTime: a pod succeeds when the time of its annotation is over, and its volumes are released; it stays in the API.
func TestPodExitsInTime(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.add(testPod(exits("30s", corev1.RestartPolicyNever)))
		time.Sleep(time.Minute) // which does not count: its volumes are not there
		b.set(func() { b.published = true })
		b.c.Wake("uid-a")
		synctest.Wait()
		b.show()
		time.Sleep(28 * time.Second)
		synctest.Wait()
		if p := b.pod(); p.Status.Phase != corev1.PodRunning {
			t.Fatalf("phase is %s before the time is over", p.Status.Phase)
		}
		b.expectLog("nothing is released before")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		s := b.pod().Status
		if c := s.ContainerStatuses[0].State.Terminated; s.Phase != corev1.PodSucceeded || c == nil || c.ExitCode != 0 || c.Reason != "Completed" {
			t.Errorf("status is %+v, want Succeeded with exit code 0", s)
		}
		b.expectLog("released", "drop uid-a", "clean uid-a")
		writes := len(b.api.Writes())
		b.c.Wake("uid-a") // before the watch has brought the new status
		b.show()
		if n := len(b.api.Writes()) - writes; n > 0 {
			t.Errorf("a pod that has completed was written %d times again", n)
		}
	})
}

// TestPodExitsAfterARestart: the time is counted from the start in the status of the pod, whichever process wrote that.
func TestPodExitsAfterARestart(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published = true })
		b.add(testPod(exits("30s", corev1.RestartPolicyOnFailure), func(p *corev1.Pod) {
			p.Status = Running(p, "10.0.0.1", metav1.NewTime(time.Now().Add(-20*time.Second)))
		}))
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if p := b.pod(); p.Status.Phase != corev1.PodRunning {
			t.Errorf("phase is %s before the time is over", p.Status.Phase)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if p := b.pod(); p.Status.Phase != corev1.PodSucceeded {
			t.Errorf("phase is %s, want Succeeded", p.Status.Phase)
		}
	})
}

// TestDeletedBeforeItsExit: the deletion of a pod is no success.
func TestDeletedBeforeItsExit(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published = true })
		b.add(testPod(exits("30s", corev1.RestartPolicyNever)))
		b.show()
		b.set(func() { b.stuck = true })
		b.remove(30)
		time.Sleep(time.Minute)
		synctest.Wait()
		if p := b.pod(); p == nil || p.Status.Phase != corev1.PodFailed {
			t.Errorf("pod is %+v, want Failed", p)
		}
		b.set(func() { b.stuck = false })
		b.c.Wake("uid-a")
		synctest.Wait()
	})
}

func TestInvalidExitAfter(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*corev1.Pod)
	}{
		"NoDuration": {reason: "a number has no unit", change: exits("30", corev1.RestartPolicyNever)},
		"Negative":   {reason: "the past", change: exits("-1s", corev1.RestartPolicyNever)},
		"Always":     {reason: "containers that end would be started again", change: exits("1s", corev1.RestartPolicyAlways)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, b *bench) {
				b.set(func() { b.published = true })
				b.add(testPod(tc.change))
				b.show()
				time.Sleep(time.Hour)
				synctest.Wait()
				if p := b.pod(); p.Status.Phase != corev1.PodRunning {
					t.Errorf("%s: phase is %s", tc.reason, p.Status.Phase)
				}
				b.set(func() {
					if len(b.events) == 0 || !strings.HasPrefix(b.events[0], reasonInvalidExitAfter+": annotation "+ExitAfterAnnotation) {
						t.Errorf("%s: events are %q", tc.reason, b.events)
					}
				})
			})
		})
	}
}
