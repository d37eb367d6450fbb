package program

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/devcluster"
)

// TestLife is the life of one cluster: it comes up, is looked at, its supervisor is killed while a pod has a volume, a new up
// replaces it with two other driver programs, the demo runs, and it goes down.
func TestLife(t *testing.T) {
	c := newCluster(t)
	t.Run("Up", func(t *testing.T) { c.in(t).comesUp() })
	t.Run("SecondUp", func(t *testing.T) { c.in(t).secondUpChangesNothing() })
	t.Run("Status", func(t *testing.T) { c.in(t).statusTellsAll() })
	t.Run("Logs", func(t *testing.T) { c.in(t).logsArePrinted() })
	t.Run("Loopback", func(t *testing.T) { c.in(t).listensOnLoopbackOnly() })
	t.Run("KilledProcess", func(t *testing.T) { c.in(t).killedProcessComesBack() })
	t.Run("Held", func(t *testing.T) { c.in(t).heldProcessStaysDown() })
	t.Run("KilledSupervisor", func(t *testing.T) { c.in(t).killedSupervisorTakesAllWithIt() })
	t.Run("NewUp", func(t *testing.T) { c.in(t).newUpReplacesTheDead() })
	t.Run("Demo", func(t *testing.T) { c.in(t).demoRuns() })
	t.Run("Down", func(t *testing.T) { c.in(t).goesDown() })
}

// in is the same cluster, seen from a subtest.
func (c *cluster) in(t *testing.T) *cluster { return &cluster{t: t, dir: c.dir} }

func (c *cluster) comesUp() {
	out := c.mustRun("up", "--nodes=2", "--audit", "--driver=").stdout
	for _, want := range []string{
		"starting etcd and kube-apiserver v1.", "API server ready at https://127.0.0.1:", "driver hostpath.csi.k8s.io", "2 nodes ready",
		"The cluster is up", "export KUBECONFIG=" + filepath.Join(c.dir, "kubeconfig"), "kubectl get nodes", "devcluster down",
	} {
		if !strings.Contains(out, want) {
			c.t.Errorf("up does not tell %q:\n%s", want, out)
		}
	}
	kubectl := exec.Command("sh", "-c", exportLine(out)+"; kubectl get nodes; command -v devcluster")
	if shown, err := kubectl.CombinedOutput(); err != nil || strings.Count(string(shown), " Ready ") != 2 {
		c.t.Errorf("the commands that up prints: %v\n%s", err, shown)
	}
	nodes, err := c.client().CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 2 {
		c.t.Errorf("nodes %v, %v", nodes, err)
	}
}

// exportLine finds the line of the output that sets the user's environment.
func exportLine(out string) string {
	_, line, _ := strings.Cut(out, "\n  export ")
	line, _, _ = strings.Cut(line, "\n")
	return "export " + line
}

func (c *cluster) secondUpChangesNothing() {
	before, supervisor := c.status(), c.supervisor()
	out := c.mustRun("up", "--nodes=3").stdout
	if !strings.Contains(out, "already up since") || !strings.Contains(out, "2 nodes") {
		c.t.Errorf("got %s", out)
	}
	if after := c.status(); c.supervisor() != supervisor || !after.Started.Equal(before.Started) || len(after.Processes) != len(before.Processes) {
		c.t.Errorf("%+v became %+v", before, after)
	}
}

func (c *cluster) statusTellsAll() {
	s := c.status()
	if s.Phase != devcluster.Running || !slices.Equal(s.Drivers, []string{"hostpath.csi.k8s.io"}) || len(s.Nodes) != 2 || s.Took <= 0 {
		c.t.Errorf("got %+v", s)
	}
	// A process may be started again between two looks.
	c.eventually("status lists what runs", func() string {
		// The supervisor is not in the list: it is the one that answers.
		s, running := c.status(), len(c.pids())
		if len(s.Processes) != running-1 {
			return fmt.Sprintf("status lists %d processes, %d run", len(s.Processes), running)
		}
		text := c.mustRun("status").stdout
		for _, p := range s.Processes {
			if p.State != devcluster.ProcessReady || !strings.Contains(text, p.Name) || !strings.Contains(text, fmt.Sprint(p.PID)) {
				return fmt.Sprintf("%+v: not ready, or not in\n%s", p, text)
			}
			if err := servesMetrics(p); err != nil {
				return err.Error()
			}
		}
		return ""
	})
}

// servesMetrics asks a process of ours for its metrics.
func servesMetrics(p devcluster.Process) error {
	if p.Name == "etcd" || strings.HasPrefix(p.Name, "kube-") {
		return nil
	}
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get(p.HTTP + "/metrics")
	if err != nil {
		return fmt.Errorf("ask %s for its metrics: %w", p.Name, err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || !bytes.Contains(body, []byte("process_start_time_seconds")) {
		return errors.Join(fmt.Errorf("ask %s for its metrics: %s\n%.200s", p.Name, resp.Status, body), err)
	}
	return nil
}

func (c *cluster) logsArePrinted() {
	out := c.mustRun("logs", "audit").stdout
	if !strings.Contains(out, `"verb":"create"`) || !strings.Contains(out, `"verb":"watch"`) {
		c.t.Errorf("the audit log lacks writes, or reads of the sidecars:\n%.2000s", out)
	}
	for line := range strings.Lines(out) {
		if !regexp.MustCompile(`"username":"longshore:(csi-|snapshot-controller")`).MatchString(line) && regexp.MustCompile(`"verb":"(get|list|watch)"`).MatchString(line) {
			c.t.Errorf("the audit log has somebody else's reads: %s", line)
		}
	}
	c.mustFail([]string{"logs", "nobody"}, `no log of "nobody"`)
	marker := "a line that was written later"
	log := filepath.Join(c.dir, "logs", "supervisor.log")
	c.t.Logf("following %s", log)
	go appendLine(c.t, log, marker)
	if r := c.interrupt(marker, "logs", "supervisor", "-f"); r.code != 0 {
		c.t.Errorf("Ctrl-C ended the follower with %d: %s", r.code, r.stderr)
	}
}

func appendLine(t *testing.T, path, line string) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Error(err)
		return
	}
	defer f.Close()
	if _, err := f.WriteString(line + "\n"); err != nil {
		t.Error(err)
	}
}

func (c *cluster) listensOnLoopbackOnly() {
	found := listeners(c.t, c.pids())
	// etcd twice, API server, controller manager, scheduler.
	if len(found) < 5 {
		c.t.Errorf("only %q: the test looks in the wrong place", found)
	}
	for _, address := range found {
		if !onLoopback(address) {
			c.t.Errorf("listens beyond loopback: %s", address)
		}
	}
}

func (c *cluster) killedProcessComesBack() {
	before := c.process("csi-attacher")
	if err := syscall.Kill(before.PID, syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
	c.eventually("csi-attacher comes back", func() string {
		now := c.process("csi-attacher")
		if now.PID != before.PID && now.State == devcluster.ProcessReady && now.Restarts > before.Restarts && strings.Contains(now.LastExit, "killed") {
			return ""
		}
		return fmt.Sprintf("%+v", now)
	})
}

func (c *cluster) heldProcessStaysDown() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := devcluster.Connect(c.dir)
	if err := client.Hold(ctx, "csi-provisioner"); err != nil {
		c.t.Fatal(err)
	}
	c.eventually("csi-provisioner is held", func() string {
		if p := c.process("csi-provisioner"); p.State != devcluster.ProcessHeld || p.PID != 0 {
			return fmt.Sprintf("%+v", p)
		}
		return ""
	})
	if out := c.mustRun("status").stdout; !strings.Contains(out, "Held") {
		c.t.Errorf("status does not tell it:\n%s", out)
	}
	if err := client.Release(ctx, "csi-provisioner"); err != nil {
		c.t.Fatal(err)
	}
	c.eventually("csi-provisioner runs again", func() string {
		if p := c.process("csi-provisioner"); p.State != devcluster.ProcessReady {
			return fmt.Sprintf("%+v", p)
		}
		return ""
	})
}

// inlinePod is a pod with a volume of its own.
func inlinePod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				CSI: &corev1.CSIVolumeSource{Driver: "hostpath.csi.k8s.io", VolumeAttributes: map[string]string{"size": "1Mi"}},
			}}},
		},
	}
}

// runPod makes a pod with a mounted volume.
func (c *cluster) runPod() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pods := c.client().CoreV1().Pods("default")
	c.eventually("the pod is accepted", func() string {
		// The service account of the namespace comes a moment after the nodes.
		if _, err := pods.Create(ctx, inlinePod(), metav1.CreateOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	c.eventually("the pod runs", func() string {
		pod, err := pods.Get(ctx, "p", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if pod.Status.Phase != corev1.PodRunning {
			return string(pod.Status.Phase)
		}
		return ""
	})
	if len(c.mounts()) == 0 {
		c.t.Fatal("a pod with a volume runs, and there is no mount")
	}
}

// killSupervisor kills the process that owns all others, and waits until they are gone too.
func (c *cluster) killSupervisor() {
	c.t.Helper()
	if err := syscall.Kill(c.supervisor(), syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
	c.eventually("all processes end", func() string {
		if pids := c.pids(); len(pids) > 0 {
			return fmt.Sprint(pids)
		}
		return ""
	})
}

func (c *cluster) killedSupervisorTakesAllWithIt() {
	c.runPod()
	c.killSupervisor()
	if len(c.mounts()) == 0 {
		c.t.Error("the mounts are gone: there is nothing left to clean up")
	}
	c.mustFail([]string{"status"}, "no cluster is up", "start one with `devcluster up`")
}

func (c *cluster) newUpReplacesTheDead() {
	began := time.Now()
	object := filepath.Join(c.t.TempDir(), "csidriver.yaml")
	text := "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {name: hostpath.csi.k8s.io}\nspec: {fsGroupPolicy: File, podInfoOnMount: true, volumeLifecycleModes: [Persistent, Ephemeral]}\n"
	if err := os.WriteFile(object, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.mustRun("up", "--nodes=3", "--driver="+built.driver, "--csidriver="+object,
		"--driver-flags=--endpoint={endpoint} --nodeid={node} --mode={mode} --statedir={statedir} --v={v} --enable-attach=true --maxvolumespernode=77",
		"--driver="+built.driver, "--driver-flags=--endpoint={endpoint} --nodeid={node} --statedir={statedir} --drivername=second.example.com")
	driver, err := c.client().StorageV1().CSIDrivers().Get(context.Background(), "hostpath.csi.k8s.io", metav1.GetOptions{})
	if err != nil || driver.Spec.FSGroupPolicy == nil || *driver.Spec.FSGroupPolicy != storagev1.FileFSGroupPolicy {
		c.t.Errorf("the CSIDriver object is not that of the file: %+v, %v", driver, err)
	}
	s := c.status()
	if len(s.Nodes) != 3 || s.Started.Before(began) {
		c.t.Errorf("got %+v", s)
	}
	if mounts := c.mounts(); len(mounts) > 0 {
		c.t.Errorf("mounts of the earlier cluster: %q", mounts)
	}
	node, err := c.client().StorageV1().CSINodes().Get(context.Background(), "node-3", metav1.GetOptions{})
	isFirst := func(d storagev1.CSINodeDriver) bool { return d.Allocatable != nil && *d.Allocatable.Count == 77 }
	if err != nil || len(node.Spec.Drivers) != 2 || !slices.ContainsFunc(node.Spec.Drivers, isFirst) {
		c.t.Errorf("the driver does not have the flags that were given: %+v, %v", node, err)
	}
	class, err := c.client().StorageV1().StorageClasses().Get(context.Background(), "second.example.com", metav1.GetOptions{})
	if err != nil || class.Provisioner != "second.example.com" || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
		c.t.Errorf("the class of the second driver: %+v, %v", class, err)
	}
	for _, name := range []string{"driver-controller", "driver.node-3", "driver-2.node-3"} {
		c.eventually(name+" is the program that was named", func() string {
			path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", c.process(name).PID))
			if err != nil || path != built.driver {
				return fmt.Sprintf("%q, %v", path, err)
			}
			return ""
		})
	}
}

func (c *cluster) demoRuns() {
	out := c.mustRun("demo").stdout
	for _, want := range []string{
		"claim data: Bound to pvc-", "pod writer: Running on node-", "lies in the driver's directory   " + c.dir, "pod scratch: Running",
		"Each replica is on a node of its own", "claim restored has   hello from pod writer\nclaim data has       changed after the snapshot\n",
		"Nothing is left: no pod, no claim, no volume, no attachment, no snapshot, no directory, no mount.",
	} {
		if !strings.Contains(out, want) {
			c.t.Errorf("the demo does not tell %q:\n%s", want, out)
		}
	}
	if mounts := c.mounts(); len(mounts) > 0 {
		c.t.Errorf("the demo left mounts: %q", mounts)
	}
	pods, err := c.client().CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
	if err != nil || len(pods.Items) > 0 {
		c.t.Errorf("the demo left pods: %v, %v", pods, err)
	}
}

func (c *cluster) goesDown() {
	c.runPod()
	r := c.mustRun("down")
	if !strings.HasPrefix(r.stdout, "down: ") || strings.Contains(r.stdout, " 0 processes") || strings.Contains(r.stdout, " 0 mounts") {
		c.t.Errorf("got %q", r.stdout)
	}
	c.nothingLeft()
	if r := c.mustRun("down"); !strings.Contains(r.stdout, "no cluster is up in "+c.dir) {
		c.t.Errorf("the second down says %q", r.stdout)
	}
}
