package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	monitoringDir = "../deploy/components/monitoring/"
	// deployed is the namespace of the deployment that alert rules and targets name.
	deployed = "csi-hostpath"
)

// TestDashboardAndAlertsAskWhatIsServed has a real Prometheus scrape the stack while volumes live and calls fail. Every question
// of the dashboard and every value that an alert looks at must have an answer.
func TestDashboardAndAlertsAskWhatIsServed(t *testing.T) {
	d, program := dev(t), prometheusProgram(t)
	s := newStory(t)
	s.elected(devcluster.Replaceable()...)
	s.AddSnapshotClass("")
	prometheus := startPrometheus(t, program, targets(d.Processes), monitoringDir+"rules.yaml")
	questions := dashboardQuestions(t, monitoringDir+"dashboard.json", map[string]string{"namespace": deployed, "driver": bed.Driver, "__rate_interval": "5m"})
	var rules []rule
	s.Wait("prometheus to look at the rules", func(ctx context.Context) (bool, error) {
		var err error
		rules, err = prometheus.Rules(ctx)
		return len(rules) > 0 && !slices.ContainsFunc(rules, func(r rule) bool { return r.Health != "ok" }), errors.Join(err, ruleErrors(rules))
	})
	// Snapshots are asked about in a cluster of containers, where their controllers run: TestPrometheusOfTheClusterHasAnswers.
	questions = healthAside(snapshotsAside(append(questions, alertQuestions(rules)...)))
	if len(questions) < len(rules) || len(rules) < 10 {
		t.Fatalf("%d questions, %d rules: not all were found", len(questions), len(rules))
	}
	// A rate needs two looks at a counter, so all happens once to be seen, and again to be counted.
	var left []question
	for round, deadline := 1, time.Now().Add(testbed.Patience); round == 1 || len(left) > 0 && time.Now().Before(deadline); round++ {
		s.askProbes()
		s.live(s.Dev.Nodes[0], fmt.Sprintf("good-%d", round))
		s.snapshotOnce()
		s.failEverywhere(s.Dev.Nodes[0], round)
		s.interruptProvisioning(fmt.Sprintf("interrupted-%d", round))
		s.failStaging()
		s.waitScraped(prometheus)
		left = unanswered(t, prometheus, questions)
		t.Logf("round %d: %d of %d questions have no answer", round, len(left), len(questions))
	}
	for _, q := range left {
		t.Errorf("%s has no answer to %s", q.who, q.promql)
	}
	s.cleanFailures()
	s.WaitNothingLeft()
}

func ruleErrors(rules []rule) error {
	var errs []error
	for _, r := range rules {
		if r.LastError != "" {
			errs = append(errs, fmt.Errorf("rule %s: %s", r.Name, r.LastError))
		}
	}
	return errors.Join(errs...)
}

// unanswered are the questions whose answer has no number in it.
func unanswered(t testing.TB, prometheus *Prometheus, questions []question) (left []question) {
	t.Helper()
	for _, q := range questions {
		values, err := prometheus.Query(t.Context(), q.promql)
		if err != nil { // it is asked again
			t.Logf("%s: %v", q.who, err)
		}
		if len(values) == 0 {
			left = append(left, q)
		}
	}
	return left
}

// targets gives the processes the labels that their containers would have. The node agent stands for the kubelet.
func targets(processes []devcluster.Process) []target {
	containers := map[string]string{
		"driver-controller": "hostpath", "driver": "hostpath", "csi-provisioner": "provisioner", "csi-attacher": "attacher", "csi-resizer": "resizer",
		"csi-snapshotter": "snapshotter", "snapshot-controller": "snapshot-controller",
		"csi-node-driver-registrar": "registrar", "livenessprobe": "livenessprobe",
	}
	var all []target
	for _, p := range processes {
		if p.HTTP == "" {
			continue
		}
		component, node, onNode := strings.Cut(p.Name, ".")
		labels := map[string]string{"namespace": deployed, "container": containers[component], "pod": "csi-hostpath-controller-0"}
		if onNode {
			labels["pod"] = "csi-hostpath-node-" + node
		}
		if component == "csi-node-agent" {
			labels = map[string]string{"job": "kubelet", "node": node}
		}
		all = append(all, target{address: strings.TrimPrefix(p.HTTP, "http://"), labels: labels})
	}
	return all
}

// waitScraped waits until Prometheus has asked every target for what is true now.
func (s *scene) waitScraped(p *Prometheus) {
	s.T.Helper()
	now := float64(time.Now().UnixMilli()) / 1000
	s.Wait("all targets to be scraped", func(ctx context.Context) (bool, error) {
		down, err := p.Query(ctx, "up == 0")
		if err != nil || len(down) > 0 {
			return false, errors.Join(err, fmt.Errorf("%d targets are down", len(down)))
		}
		oldest, err := p.Query(ctx, "min(timestamp(up))")
		return len(oldest) == 1 && oldest[0] > now, err
	})
}

// askProbes does what the kubelet does in a real cluster: it asks each livenessprobe whether its driver is alive.
func (s *scene) askProbes() {
	s.T.Helper()
	for _, p := range s.Dev.Processes {
		if !strings.HasPrefix(p.Name, "livenessprobe") {
			continue
		}
		s.Retry("ask "+p.Name, func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.HTTP+"/healthz", nil)
			if err != nil {
				return err
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return errors.New(resp.Status)
			}
			return nil
		})
	}
}

// live lets a claim be provisioned, attached, mounted on a node, expanded, unmounted, detached and deleted.
func (s *scene) live(node, name string) {
	s.T.Helper()
	s.CreateClaim(name, s.LateClass())
	s.CreatePodOn(node, name, testbed.FromClaim(name))
	s.WaitRunning(name)
	s.Grow(name, "32Mi")
	s.Retry("wait for the new size of "+name, func(ctx context.Context) error { return s.grown(ctx, name, "32Mi") })
	volume := s.Volume(name).Name
	s.DeletePod(name)
	s.WaitNoPod(name)
	s.DeleteClaim(name)
	s.Wait("volume "+volume+" to be deleted", func(ctx context.Context) (bool, error) {
		volumes, err := s.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		return err == nil && !slices.ContainsFunc(volumes.Items, func(v corev1.PersistentVolume) bool { return v.Name == volume }), err
	})
}

// snapshotOnce lets a snapshot be taken and deleted.
func (s *story) snapshotOnce() {
	s.T.Helper()
	s.createClaim()
	s.WaitBound("data")
	taken := s.TakeSnapshot("monday", "data")
	s.WaitSnapshotReady(taken)
	s.Delete(taken)
	s.WaitNoSnapshots()
	s.deleteClaim()
	s.Wait("claim data to be gone", func(ctx context.Context) (bool, error) {
		_, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, "data", metav1.GetOptions{})
		return apierrors.IsNotFound(err), testbed.IgnoreNotFound(err)
	})
}

// failEverywhere asks for what the driver refuses: a volume too large to be made, one to be attached and expanded that is not there, and
// one to be mounted with attributes that mean nothing. All is asked again and again until cleanFailures.
func (s *scene) failEverywhere(node string, round int) {
	s.T.Helper()
	name := fmt.Sprintf("%s-bad-%d", s.Namespace, round)
	large := testbed.Claim(s.Namespace, name, s.ImmediateClass())
	large.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1Pi")
	s.Retry("create a claim that is too large", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Create(ctx, large, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	gone := testbed.Claim(s.Namespace, name+"-gone", s.ImmediateClass())
	gone.Spec.VolumeName = name
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      gone.Spec.Resources.Requests,
			AccessModes:                   gone.Spec.AccessModes,
			StorageClassName:              *gone.Spec.StorageClassName,
			ClaimRef:                      &corev1.ObjectReference{Namespace: gone.Namespace, Name: gone.Name},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: s.Driver, VolumeHandle: "no-such-volume"}},
		},
	}
	s.Retry("create a volume that is not there", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	attachment := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: s.Driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}},
	}
	s.Retry("ask for it to be attached", func(ctx context.Context) error {
		_, err := s.Client.StorageV1().VolumeAttachments().Create(ctx, attachment, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	source := testbed.Inline(s.Driver)
	source.CSI.VolumeAttributes = map[string]string{"size": "nonsense"}
	s.CreatePodOn(node, name, source)
	s.AddClaim(gone)
	s.WaitBound(gone.Name)
	s.Grow(gone.Name, "32Mi")
	s.waitFailed(name)
}

// waitFailed waits until the driver has refused each of them once.
func (s *scene) waitFailed(name string) {
	s.T.Helper()
	s.Wait("the attachment to be refused", func(ctx context.Context) (bool, error) {
		a, err := s.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
		return err == nil && a.Status.AttachError != nil, err
	})
	s.waitEventOf("ProvisioningFailed", name)
	s.waitEventOf("FailedMount", name)
	s.waitEventOf("VolumeResizeFailed", name+"-gone")
}

func (s *scene) waitEventOf(reason, object string) {
	s.T.Helper()
	s.Wait("the event "+reason+" of "+object, func(ctx context.Context) (bool, error) {
		events, err := s.Client.CoreV1().Events(s.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Reason == reason && e.InvolvedObject.Name == object }), nil
	})
}

// interruptProvisioning kills the driver while it makes a volume: a failure that is nobody's wrong request.
func (s *story) interruptProvisioning(claim string) {
	s.T.Helper()
	s.Signal(controllerDriver, "STOP")
	s.CreateClaim(claim, s.ImmediateClass())
	s.waitEventOf("Provisioning", claim)
	s.Signal(controllerDriver, "KILL")
	s.WaitBound(claim)
	s.DeleteClaim(claim)
}

// failStaging asks the first node's driver to stage a volume that is not there. The node agent never would: it waits until a
// volume is attached.
func (s *scene) failStaging() {
	s.T.Helper()
	dir := s.Dev.NodeDirs[s.Dev.Nodes[0]]
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "plugins", s.Driver, "csi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.T.Fatal(err)
	}
	defer conn.Close()
	s.Wait("the driver to refuse a volume that is not there", func(ctx context.Context) (bool, error) {
		_, err := csi.NewNodeClient(conn).NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId:          "no-such-volume",
			StagingTargetPath: filepath.Join(dir, "plugins", "kubernetes.io", "csi", "no-such-volume", "globalmount"),
			VolumeCapability: &csi.VolumeCapability{
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			},
		})
		if code := status.Code(err); code != codes.NotFound && code != codes.FailedPrecondition {
			return false, err
		}
		return true, nil
	})
}

// cleanFailures takes back what failEverywhere has asked for.
func (s *scene) cleanFailures() {
	s.T.Helper()
	for round := 1; ; round++ {
		name := fmt.Sprintf("%s-bad-%d", s.Namespace, round)
		_, err := s.Client.CoreV1().PersistentVolumes().Get(s.T.Context(), name, metav1.GetOptions{})
		if testbed.IgnoreNotFound(err) == nil && err != nil {
			return
		}
		s.DeletePod(name)
		s.DeleteClaim(name)
		s.DeleteClaim(name + "-gone")
		s.Retry("delete attachment and volume "+name, func(ctx context.Context) error {
			return errors.Join(
				testbed.IgnoreNotFound(s.Client.StorageV1().VolumeAttachments().Delete(ctx, name, metav1.DeleteOptions{})),
				testbed.IgnoreNotFound(s.Client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{})))
		})
	}
}

// elected runs processes of the cluster with leader election until the test ends: a development cluster, where there is one of
// each, has none.
func (s *scene) elected(names ...string) {
	s.T.Helper()
	for _, name := range names {
		i := slices.IndexFunc(s.Dev.Processes, func(p devcluster.Process) bool { return p.Name == name })
		args, environ := s.commandLine(name)
		s.Retry("hold "+name, func(ctx context.Context) error { return s.Dev.Hold(ctx, name) })
		s.Wait(name+" to end", func(ctx context.Context) (bool, error) {
			status, err := s.Dev.Client.Status(ctx, 0)
			return err == nil && status.Processes[i].State == devcluster.ProcessHeld, err
		})
		cmd := exec.CommandContext(context.Background(), args[0], append(args[1:], "--leader-election")...)
		cmd.Env = environ // with the mark by which the cluster knows its processes
		log, err := os.OpenFile(s.Dev.Log(name), os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			cmd.Stdout, cmd.Stderr = log, log
			err = cmd.Start()
		}
		if err != nil {
			s.T.Fatal(errors.Join(err, s.Dev.Release(s.T.Context(), name)))
		}
		s.T.Cleanup(func() {
			err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait(), log.Close(), s.Dev.Release(context.Background(), name))
			if err != nil {
				s.T.Errorf("end %s: %v", name, err)
			}
		})
	}
}

// commandLine is how a process of the cluster was started, as soon as it runs.
func (s *scene) commandLine(name string) (args, environ []string) {
	s.T.Helper()
	s.Wait(name+" to run", func(ctx context.Context) (bool, error) {
		status, err := s.Dev.Client.Status(ctx, 0)
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(status.Processes, func(p devcluster.Process) bool { return p.Name == name })
		if i < 0 || status.Processes[i].State != devcluster.ProcessReady {
			return false, nil
		}
		proc := fmt.Sprintf("/proc/%d/", status.Processes[i].PID)
		line, err1 := os.ReadFile(proc + "cmdline")
		env, err2 := os.ReadFile(proc + "environ")
		args, environ = splitNul(line), splitNul(env)
		return len(args) > 1, errors.Join(err1, err2)
	})
	return args, environ
}

func splitNul(data []byte) []string {
	var all []string
	for part := range bytes.SplitSeq(bytes.TrimRight(data, "\x00"), []byte{0}) {
		all = append(all, string(part))
	}
	return all
}
