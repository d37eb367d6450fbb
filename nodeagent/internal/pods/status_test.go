package pods

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var (
	earlier = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	now     = metav1.NewTime(time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC))
)

func testPod(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "uid-a", Generation: 3},
		Spec: corev1.PodSpec{
			NodeName: "node-1", ServiceAccountName: "sa",
			Containers: []corev1.Container{{Name: "main", Image: "img"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func isRunning(p *corev1.Pod) {
	p.Status = Running(p, "10.0.0.1", earlier)
}

func deleting(p *corev1.Pod) { p.DeletionTimestamp = &now }

func TestNext(t *testing.T) {
	phase := func(ph corev1.PodPhase) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Status.Phase = ph } }
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		gone   bool
		reject bool
		want   goal
	}{
		"Rejected":           {reason: "the watch has not brought its status yet", pod: testPod(), reject: true, want: goalRelease},
		"RejectedAndDeleted": {reason: "it is deleted like any other", pod: testPod(deleting), reject: true, want: goalTerminate},
		"Pending":            {reason: "a new pod is set up", pod: testPod(), want: goalRun},
		"Running":            {reason: "a running pod keeps its volumes", pod: testPod(isRunning), want: goalRun},
		"Deleted":            {reason: "graceful deletion", pod: testPod(isRunning, deleting), want: goalTerminate},
		"Succeeded":          {reason: "its volumes are released, it stays", pod: testPod(phase(corev1.PodSucceeded)), want: goalRelease},
		"Failed":             {reason: "its volumes are released, it stays", pod: testPod(phase(corev1.PodFailed)), want: goalRelease},
		"EndedAndDeleted": {
			reason: "deleted after it has ended", pod: testPod(phase(corev1.PodFailed), deleting), want: goalTerminate,
		},
		"Gone": {reason: "force deletion", pod: testPod(isRunning), gone: true, want: goalForget},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := next(tc.pod, tc.gone, tc.reject); got != tc.want {
				t.Errorf("%s: got %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

func TestRunning(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	pod := testPod(func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "init"}, {Name: "sidecar", RestartPolicy: &always}}
		p.Status.StartTime = &earlier
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: earlier}}
	})
	s := Running(pod, "10.0.0.1", now)
	if s.Phase != corev1.PodRunning || s.ObservedGeneration != 3 || !s.StartTime.Equal(&earlier) || s.HostIP != "10.0.0.1" {
		t.Errorf("status is %+v", s)
	}
	if c := s.ContainerStatuses[0]; !c.Ready || c.Started == nil || !*c.Started || c.State.Running == nil || c.Image != "img" || c.ContainerID == "" {
		t.Errorf("container is %+v, want it running and ready", c)
	}
	if c := s.InitContainerStatuses[0]; c.State.Terminated == nil || c.State.Terminated.ExitCode != 0 {
		t.Errorf("init container is %+v, want it completed", c)
	}
	if c := s.InitContainerStatuses[1]; c.State.Running == nil {
		t.Errorf("sidecar is %+v, want it running", c)
	}
	want := map[corev1.PodConditionType]metav1.Time{
		corev1.PodReadyToStartContainers: now, corev1.PodInitialized: earlier, corev1.ContainersReady: now, corev1.PodReady: now,
	}
	got := map[corev1.PodConditionType]metav1.Time{}
	for _, c := range s.Conditions {
		if c.Status != corev1.ConditionTrue {
			t.Errorf("condition %s is %s", c.Type, c.Status)
		}
		got[c.Type] = c.LastTransitionTime
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("times of conditions (-want +got):\n%s", diff)
	}
}

func TestEnded(t *testing.T) {
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
		phase  corev1.PodPhase
		code   int32
	}{
		"Ran":      {reason: "its containers are ended by SIGTERM", pod: testPod(isRunning, deleting), phase: corev1.PodFailed, code: 143},
		"NeverRan": {reason: "nothing is known about containers that never were", pod: testPod(deleting), phase: corev1.PodFailed, code: 137},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := Ended(tc.pod, now)
			state := s.ContainerStatuses[0].State.Terminated
			if s.Phase != tc.phase || state == nil || state.ExitCode != tc.code || s.ContainerStatuses[0].Ready {
				t.Errorf("%s: status is %+v", tc.reason, s)
			}
			for _, c := range s.Conditions {
				if c.Type == corev1.PodReady && c.Status != corev1.ConditionFalse {
					t.Errorf("%s: the pod is still ready", tc.reason)
				}
			}
		})
	}
}

// TestDeletedJobPodFails: the deletion of a running pod must not count as its success, or a drain would complete a Job.
// A kubelet reports exit code 143 for containers that SIGTERM ends, whatever the restart policy.
func TestDeletedJobPodFails(t *testing.T) {
	for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure, corev1.RestartPolicyAlways} {
		pod := testPod(isRunning, deleting, func(p *corev1.Pod) { p.Spec.RestartPolicy = policy })
		s := Ended(pod, now)
		if c := s.ContainerStatuses[0].State.Terminated; s.Phase != corev1.PodFailed || c.ExitCode != 143 || c.Reason != "Error" {
			t.Errorf("restart policy %s: phase %s, container %+v, want Failed with exit code 143", policy, s.Phase, c)
		}
	}
}

func TestPodIP(t *testing.T) {
	set := netip.MustParsePrefix("198.18.0.0/15")
	for _, uid := range []types.UID{"a", "b", "0f8a2c1e-1111-2222-3333-444455556666"} {
		p := testPod(func(p *corev1.Pod) { p.UID = uid })
		ip := podIP(p, "10.0.0.1")
		if a, err := netip.ParseAddr(ip); err != nil || !set.Contains(a) {
			t.Errorf("address of pod %q is %q, want one of %s", uid, ip, set)
		}
		if again := podIP(p, "10.0.0.1"); again != ip {
			t.Errorf("address of pod %q changed from %q to %q", uid, ip, again)
		}
	}
	host := testPod(func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	if ip := podIP(host, "10.0.0.1"); ip != "10.0.0.1" {
		t.Errorf("a pod on the host network has %q", ip)
	}
	kept := testPod(func(p *corev1.Pod) { p.Status.PodIP = "198.18.0.9" })
	if ip := podIP(kept, "10.0.0.1"); ip != "198.18.0.9" {
		t.Errorf("a pod's address changed to %q", ip)
	}
}

func TestPatchNamesTheUID(t *testing.T) {
	data, err := Patch("uid-a", corev1.PodStatus{Phase: corev1.PodRunning})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Metadata struct{ UID string }
		Status   struct{ Phase string }
	}
	if err := json.Unmarshal(data, &got); err != nil || got.Metadata.UID != "uid-a" || got.Status.Phase != "Running" {
		t.Errorf("patch is %s (%v), want it to apply to this pod only", data, err)
	}
}
