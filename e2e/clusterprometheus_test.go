package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// clusterPrometheus is the Prometheus in the cluster, through the API server, or skips the test.
func clusterPrometheus(t *testing.T) *Prometheus {
	t.Helper()
	_, err := bed.Client.CoreV1().Services("monitoring").Get(t.Context(), "prometheus", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		t.Skip("needs Prometheus in the cluster: `make deploy MONITORING=1` installs it")
	}
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(bed.Config)
	if err != nil {
		t.Fatal(err)
	}
	client.Timeout = 10 * time.Second
	return &Prometheus{url: strings.TrimSuffix(bed.Config.Host, "/") + "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy", http: *client}
}

// TestPrometheusOfTheClusterHasAnswers: on real pods, found as any Prometheus finds them, every container is scraped, every metric of the
// documentation exists where it says, and every question of the dashboard and the alerts has an answer.
func TestPrometheusOfTheClusterHasAnswers(t *testing.T) {
	kubelet(t)
	prometheus := clusterPrometheus(t)
	s := newStory(t)
	s.waitEveryContainerScraped(prometheus)
	questions := dashboardQuestions(t, monitoringDir+"dashboard.json", map[string]string{"namespace": deployed, "driver": bed.Driver, "__rate_interval": "1m"})
	var rules []rule
	s.Wait("Prometheus to have its rules", func(ctx context.Context) (ok bool, err error) {
		rules, err = prometheus.Rules(ctx)
		return len(rules) >= 10, errors.Join(err, ruleErrors(rules))
	})
	questions = healthAside(slices.Concat(questions, alertQuestions(rules), documentedQuestions(t)))
	node := s.driverNodes()[0]
	s.failDeletion(node)
	s.failMount(node)
	var left []question
	for round, deadline := 1, time.Now().Add(2*testbed.Patience); round == 1 || len(left) > 0 && time.Now().Before(deadline); round++ {
		s.live(node, fmt.Sprintf("good-%d", round))
		s.failEverywhere(node, round)
		s.snapshotRound(round)
		s.waitScrapedSince(prometheus)
		left = unanswered(t, prometheus, questions)
		t.Logf("round %d: %d of %d questions have no answer", round, len(left), len(questions))
	}
	for _, q := range left {
		t.Errorf("%s has no answer to %s", q.who, q.promql)
	}
	s.cleanFailures()
}

// waitEveryContainerScraped waits until each container of the driver's pods is a target that answers, and the kubelets are.
func (s *scene) waitEveryContainerScraped(p *Prometheus) {
	s.T.Helper()
	s.Wait("every container of the driver to be scraped", func(ctx context.Context) (bool, error) {
		pods, err := s.Client.CoreV1().Pods(deployed).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=csi-hostpath"})
		if err != nil {
			return false, err
		}
		targets := []string{`up{job="kubelet"}`}
		for _, pod := range pods.Items {
			for _, c := range pod.Spec.Containers {
				targets = append(targets, fmt.Sprintf(`up{namespace=%q, pod=%q, container=%q}`, pod.Namespace, pod.Name, c.Name))
			}
		}
		for _, target := range targets {
			up, err := p.Query(ctx, target)
			if err != nil {
				return false, err
			}
			if len(up) == 0 || slices.Contains(up, 0) {
				return false, fmt.Errorf("%s is %v", target, up)
			}
		}
		return len(targets) > 5, nil
	})
}

// waitScrapedSince waits until Prometheus has scraped every container of the driver after now.
func (s *scene) waitScrapedSince(p *Prometheus) {
	s.T.Helper()
	now := float64(time.Now().UnixMilli()) / 1000
	s.Wait("all targets to be scraped", func(ctx context.Context) (bool, error) {
		oldest, err := p.Query(ctx, fmt.Sprintf(`min(timestamp(up{namespace=%q}))`, deployed))
		return len(oldest) == 1 && oldest[0] > now, err
	})
}

// documentedQuestions ask for each metric of docs/monitoring.md at each component that serves it by the table, and that `make deploy` installs.
func documentedQuestions(t *testing.T) []question {
	t.Helper()
	containers := map[string]string{
		"provisioner": "provisioner", "attacher": "attacher", "resizer": "resizer", "snapshotter": "snapshotter", "registrar": "registrar",
		"livenessprobe": "livenessprobe", "driver": "hostpath", "snapshot-controller": "snapshot-controller",
	}
	elsewhere := []string{"cluster driver registrar", "metadata service", "with `--leader-election`"}
	data, err := os.ReadFile("../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(data), "## Metrics")
	table, _, _ = strings.Cut(table, "\n## ")
	metric, link := regexp.MustCompile("`([a-z0-9_]+\\*?)`"), regexp.MustCompile(`\[(.*?)\]\(.*?\)`)
	var all []question
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		servers := strings.Split(strings.TrimSpace(link.ReplaceAllString(cells[2], "$1")), ", ")
		if servers[0] == "all" {
			servers = slices.Collect(maps.Keys(containers))
		}
		for _, m := range metric.FindAllStringSubmatch(cells[1], -1) {
			name := strings.TrimSuffix(m[1], "*")
			for _, server := range servers {
				container, served := containers[server]
				switch namespace := deployed; {
				case served:
					if server == "snapshot-controller" {
						namespace = metav1.NamespaceSystem
					}
					all = append(all, question{"docs/monitoring.md", fmt.Sprintf(`count({__name__=~"%s.*", namespace=%q, container=%q})`, name, namespace, container)})
				case strings.HasPrefix(server, "kubelet"):
					all = append(all, question{"docs/monitoring.md", fmt.Sprintf(`count({__name__=~"%s.*", job="kubelet"})`, name)})
				case !slices.Contains(elsewhere, server):
					t.Fatalf("docs/monitoring.md: %s is served by %q, which is no component", m[1], server)
				}
			}
		}
	}
	if len(all) < 20 {
		t.Fatalf("found %d metrics in docs/monitoring.md", len(all))
	}
	return all
}

// failDeletion has the provisioner delete a volume that a pod uses, by a second PersistentVolume with the same handle.
func (s *scene) failDeletion(node string) {
	s.T.Helper()
	s.CreateClaim("used", s.LateClass())
	s.CreatePodOn(node, "used", testbed.FromClaim("used"))
	s.WaitRunning("used")
	volume := s.Volume("used")
	surplus := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace + "-surplus", Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": s.Driver}},
		Spec:       *volume.Spec.DeepCopy(),
	}
	surplus.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: s.Namespace, Name: "deleted", UID: "deleted"}
	s.Retry("create a second PersistentVolume of "+volume.Name, func(ctx context.Context) error {
		_, err := s.Client.CoreV1().PersistentVolumes().Create(ctx, surplus, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	s.T.Cleanup(func() {
		// The second one comes last: its change ends the pause after the last failure, which may be one of minutes.
		err := testbed.Poll(context.Background(), func(ctx context.Context) (bool, error) {
			zero := int64(0)
			err := errors.Join(
				testbed.IgnoreNotFound(s.Client.CoreV1().Pods(s.Namespace).Delete(ctx, "used", metav1.DeleteOptions{GracePeriodSeconds: &zero})),
				testbed.IgnoreNotFound(s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Delete(ctx, "used", metav1.DeleteOptions{})))
			if err != nil {
				return false, err
			}
			if _, err := s.Client.CoreV1().PersistentVolumes().Get(ctx, volume.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return false, err
			}
			err = testbed.IgnoreNotFound(s.Client.CoreV1().PersistentVolumes().Delete(ctx, surplus.Name, metav1.DeleteOptions{}))
			return err == nil, err
		})
		if err != nil {
			s.T.Errorf("delete PersistentVolume %s: %v", surplus.Name, err)
		}
	})
	s.Wait("the driver to refuse the deletion", func(ctx context.Context) (bool, error) {
		events, err := s.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "VolumeFailedDelete" && e.InvolvedObject.Name == surplus.Name
		}), nil
	})
}

// failMount has the node's driver mount a volume with an option that no file system knows.
func (s *scene) failMount(node string) {
	s.T.Helper()
	class := s.createClass("unmountable", func(c *storagev1.StorageClass) {
		c.Parameters = map[string]string{"csi.storage.k8s.io/fstype": "ext4"}
		c.MountOptions = []string{"nonsense=1"}
	})
	claim := testbed.Claim(s.Namespace, "unmountable", class)
	s.AddClaim(claim)
	s.CreatePodOn(node, "unmountable", testbed.FromClaim("unmountable"))
	s.waitEventOf("FailedMount", "unmountable")
}
