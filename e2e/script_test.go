package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// devicePath is where the pods here see a raw block volume.
const devicePath = "/dev/data"

// vocabulary is what the scripts of pods are written in. A place is a MiB of the device, counted from 0.
const vocabulary = `
size() { blockdev --getsize64 "$device"; }
locked() { [ "$(blockdev --getro "$device")" = 1 ]; }
full() { yes "$1" | head -c 1048576; }
put() { full "$2" | dd of="$device" bs=1M seek="$1" conv=fsync,notrunc; } # PLACE WORD
sum() { dd if="$device" bs=1M skip="$1" count=1 | sha256sum; } # PLACE
has() { [ "$(sum "$1")" = "$(full "$2" | sha256sum)" ]; } # PLACE WORD
`

// command makes a script in that vocabulary a command. It ends with the first word that fails.
func command(device, script string) []string {
	return []string{"sh", "-exc", "device=" + device + vocabulary + script}
}

// Script makes a pod that has a volume as a device, runs a script, and ends.
func Script(namespace, name string, source corev1.VolumeSource, script string) *corev1.Pod {
	pod := testbed.Pod(namespace, name, source)
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	main := &pod.Spec.Containers[0]
	main.Command = command(devicePath, script)
	main.VolumeMounts, main.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "data", DevicePath: devicePath}}
	main.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	return pod
}

// Holder makes a pod that has run a script when it is Running, and keeps the device until it is deleted.
func Holder(namespace, name string, source corev1.VolumeSource, script string) *corev1.Pod {
	pod := Script(namespace, name, source, script)
	first := pod.Spec.Containers[0]
	first.Name = "first"
	pod.Spec.InitContainers = []corev1.Container{first}
	pod.Spec.Containers[0].Command = testbed.Pod(namespace, name, source).Spec.Containers[0].Command
	return pod
}

// RunScript runs a script that has the device of a claim, and waits until it has ended, and well.
func (s *scene) RunScript(name, claim, script string) *corev1.Pod {
	s.T.Helper()
	s.AddPod(Script(s.Namespace, name, testbed.FromClaim(claim), script))
	return s.WaitSucceeded(name)
}

// WaitSucceeded waits until a pod has ended, and well.
func (s *scene) WaitSucceeded(name string) (pod *corev1.Pod) {
	s.T.Helper()
	s.Wait("pod "+name+" to end", func(ctx context.Context) (bool, error) {
		var err error
		pod, err = s.Client.CoreV1().Pods(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && (pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed), err
	})
	if pod.Status.Phase == corev1.PodFailed {
		s.T.Fatalf("pod %s failed: %s", name, lastWords(pod))
	}
	return pod
}

// lastWords are what the containers of a pod have said before they failed.
func lastWords(pod *corev1.Pod) string {
	words := pod.Status.Message
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, c := range list {
			if end := c.State.Terminated; end != nil && end.ExitCode != 0 {
				words += "\n" + c.Name + ": " + end.Reason + "\n" + end.Message
			}
		}
	}
	return strings.TrimSpace(words)
}

// TestVocabulary runs the words of the scripts against a file: one that cannot fail would let every test pass.
func TestVocabulary(t *testing.T) {
	tests := map[string]struct {
		reason string
		script string
		fails  bool
	}{
		"Has":        {reason: "what was put is there", script: "put 0 a; put 2 b; has 0 a; has 2 b"},
		"OtherWord":  {reason: "another word is told from it", script: "put 0 a; has 0 b", fails: true},
		"OtherPlace": {reason: "so is the same word in another place", script: "put 1 a; has 0 a", fails: true},
		"Keeps":      {reason: "what is around it stays", script: "put 0 a; put 1 b; put 2 c; put 1 d; has 0 a; has 1 d; has 2 c"},
		"First":      {reason: "the script ends with the first word that fails", script: "put 0 a; has 0 b; true", fails: true},
		"ReadOnly":   {reason: "a place that cannot be written to", script: `put 0 a; device=/proc/version; put 0 b`, fails: true},
		"Refused":    {reason: "and that this was refused can be told", script: `device=/proc/version; if put 0 b; then exit 1; fi`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "device")
			if err := os.WriteFile(file, make([]byte, 3<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			words := command(file, tc.script)
			out, err := exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput()
			if failed := err != nil; failed != tc.fails {
				t.Errorf("%s: %v\n%s", tc.reason, err, out)
			}
		})
	}
}

func TestScriptsArePods(t *testing.T) {
	script := Script("n", "a", testbed.FromClaim("c"), "true")
	if main := script.Spec.Containers[0]; len(main.VolumeMounts) != 0 || main.VolumeDevices[0].Name != script.Spec.Volumes[0].Name {
		t.Errorf("script %+v", script)
	}
	holder := Holder("n", "a", testbed.FromClaim("c"), "true")
	if first := holder.Spec.InitContainers[0]; first.Command[2] != script.Spec.Containers[0].Command[2] || len(first.VolumeDevices) != 1 {
		t.Errorf("holder %+v", holder)
	}
	if main := holder.Spec.Containers[0]; len(main.VolumeDevices) != 1 || main.Command[2] == script.Spec.Containers[0].Command[2] {
		t.Errorf("holder %+v", holder)
	}
	script.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "well", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: "bye"}}},
		{Name: "ill", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "ouch"}}},
	}
	if got := lastWords(script); got != "ill: Error\nouch" {
		t.Errorf("last words %q", got)
	}
}
