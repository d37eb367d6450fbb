package bench

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/longshore-csi/longshore/e2e/measure"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	// podsOfANode is how many pods a node of this benchmark takes.
	podsOfANode = 1100
	// mostMiBPerNode is the aim for the process that is all nodes, and mostMiB that for the whole cluster.
	mostMiBPerNode, mostMiB = 4, 8 << 10
	// nodeTopology is the topology key of the reference driver.
	nodeTopology = "topology.hostpath.csi/node"
)

// bedOfManyNodes is the number of nodes of the bed for BenchmarkManyNodes, and its flags. For all other tests it is zero.
func bedOfManyNodes() (n int, flags []string) {
	n, _ = strconv.Atoi(os.Getenv("BENCH_NODES"))
	return n, []string{fmt.Sprintf("--nodes-per-agent=%d", n), fmt.Sprintf("--max-pods=%d", podsOfANode), "--audit=false", "--v=2"}
}

// podLoad are pods that are created when their volumes are provisioned.
type podLoad struct {
	name string
	pods int
	// rate is the number of pods that are created in a second; 0: all at once.
	rate int
	// aims are the most that half of the pods, 99 % of them, and the last one may take until they run; zero: they are only reported.
	aims [3]time.Duration
	// node is that of all volumes; empty: they are on all nodes.
	node string
	// shared says that all pods use one ReadWriteMany volume.
	shared bool
}

// manyNodes is the cluster of BenchmarkManyNodes.
type manyNodes struct {
	nodes  int
	agents []int
	// missed are the aims that were missed. They are reported when all has been measured.
	missed []string
}

// BenchmarkManyNodes measures the time from the creation of pods with volumes until they run, in a cluster whose nodes and their drivers are one process, and the
// memory of that process. It checks that nothing is left when they are deleted. All processes together take 60 ms of processor time for a pod until it runs, half of it in
// the API server and a sixth in the node agents with their drivers, so two cores run no more than 30 pods in a second: the aims hold for pods that are created at half that rate.
func BenchmarkManyNodes(b *testing.B) {
	nodes, pods := benchSetting(b, "NODES", 0), benchSetting(b, "PODS", 1000)
	if nodes == 0 || bed.Dev == nil {
		b.Skip("is run by make bench BENCH=manynodes, in a cluster of its own")
	}
	m := &manyNodes{nodes: nodes, agents: agentsOf(b)}
	for _, load := range []podLoad{
		{name: "Spread", pods: pods, rate: benchSetting(b, "RATE", 15), aims: [3]time.Duration{5 * time.Second, 20 * time.Second, 30 * time.Second}},
		{name: "SpreadAtOnce", pods: pods},
		{name: "OneNode", pods: 1000, node: "node-1"},
		{name: "OneVolume", pods: 300, node: "node-1", shared: true},
	} {
		b.Run(load.name, func(b *testing.B) {
			m.reportMemory(b, "idle")
			for b.Loop() {
				m.run(b, load)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
	for _, text := range m.missed {
		b.Error(text)
	}
}

func (m *manyNodes) run(b *testing.B, l podLoad) {
	b.Helper()
	s := bed.NewScene(b)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	times := measure.WatchTimes(ctx, b, bed.Client, s.Namespace)
	began := time.Now()
	claims := l.createClaims(b, s)
	times.WaitClaims(b, claims)
	fmt.Printf("%s: %d volumes are provisioned and bound in %s\n", b.Name(), claims, time.Since(began).Round(time.Second))

	cpu := cpuOf(b)
	created := l.createPods(b, s)
	took := times.WaitPods(b, l.pods, created)
	reportCPU(b, "pods that run", l.pods, cpu)
	m.reportTimes(b, l.aims, took)
	m.reportMemory(b, "loaded")

	began = time.Now()
	err := each(ctx, l.pods, func(ctx context.Context, i int) error {
		return bed.Client.CoreV1().Pods(s.Namespace).Delete(ctx, fmt.Sprint("p-", i), metav1.DeleteOptions{})
	})
	if err != nil {
		b.Fatal(err)
	}
	waitNone(b, "pods", func() (int, error) {
		left, err := bed.Client.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
		return len(left.Items), err
	})
	fmt.Printf("%s: the pods are gone after %s\n", b.Name(), time.Since(began).Round(time.Second))
	err = each(ctx, claims, func(ctx context.Context, i int) error {
		return bed.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Delete(ctx, fmt.Sprint("p-", i), metav1.DeleteOptions{})
	})
	if err != nil {
		b.Fatal(err)
	}
	waitNone(b, "attachments", func() (int, error) {
		left, err := bed.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		return len(left.Items), err
	})
	waitNone(b, "volumes", func() (int, error) {
		left, err := bed.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		return len(left.Items), err
	})
	s.WaitNothingLeft()
	fmt.Printf("%s: no mount, record, attachment or volume in use is left after %s\n", b.Name(), time.Since(began).Round(time.Second))
}

// waitNone waits until none of some objects are left, and gives up when they have not become fewer for as long as a state is waited for.
func waitNone(b *testing.B, what string, count func() (int, error)) {
	b.Helper()
	tick := time.NewTicker(time.Second) // the lists are long
	defer tick.Stop()
	last, since := -1, time.Now()
	for {
		n, err := count()
		switch {
		case err == nil && n == 0:
			return
		case err == nil && n != last:
			last, since = n, time.Now()
		case time.Since(since) > testbed.Patience:
			b.Fatalf("%d %s are left: %v", last, what, err)
		}
		select {
		case <-tick.C:
		case <-b.Context().Done():
		}
	}
}

// createClaims creates the claims of the volumes, and returns their number.
func (l podLoad) createClaims(b *testing.B, s *testbed.Scene) int {
	b.Helper()
	class := s.ImmediateClass()
	if l.node != "" {
		class = s.Namespace + "-here"
		here := testbed.Class(class, bed.Driver, storagev1.VolumeBindingImmediate)
		here.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: nodeTopology, Values: []string{l.node}}}}}
		s.AddClass(here)
	}
	n := l.pods
	if l.shared {
		n = 1
	}
	err := each(b.Context(), n, func(ctx context.Context, i int) error {
		claim := testbed.Claim(s.Namespace, fmt.Sprint("p-", i), class)
		if l.shared {
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}
		_, err := bed.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Create(ctx, claim, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// createPods creates the pods, and returns when each was.
func (l podLoad) createPods(b *testing.B, s *testbed.Scene) map[string]time.Time {
	b.Helper()
	var mu sync.Mutex
	created := map[string]time.Time{}
	limit := flowcontrol.NewFakeAlwaysRateLimiter()
	if l.rate > 0 {
		limit = flowcontrol.NewTokenBucketRateLimiter(float32(l.rate), 1)
	}
	err := each(b.Context(), l.pods, func(ctx context.Context, i int) error {
		name := fmt.Sprint("p-", i)
		claim := name
		if l.shared {
			claim = "p-0"
		}
		if err := limit.Wait(ctx); err != nil {
			return err
		}
		mu.Lock()
		created[name] = time.Now()
		mu.Unlock()
		_, err := bed.Client.CoreV1().Pods(s.Namespace).Create(ctx, testbed.Pod(s.Namespace, name, testbed.FromClaim(claim)), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return created
}

func (m *manyNodes) miss(format string, args ...any) {
	m.missed = append(m.missed, fmt.Sprintf(format, args...))
}

func (m *manyNodes) reportTimes(b *testing.B, aims [3]time.Duration, times []time.Duration) {
	b.Helper()
	for i, share := range []float64{0.5, 0.99, 1} {
		took, what := measure.Percentile(times, share), []string{"p50", "p99", "max"}[i]
		b.ReportMetric(took.Seconds(), "running-"+what+"-s")
		if aim := aims[i]; aim > 0 && took > aim {
			m.miss("%s: %s of the time from the creation of a pod until it runs is %s, must be at most %s", b.Name(), what, took.Round(10*time.Millisecond), aim)
		}
	}
}

// processes are the processes of the cluster that run, with their PIDs.
func processes(b *testing.B) map[string]int {
	b.Helper()
	status, err := bed.Dev.Client.Status(b.Context(), 0)
	if err != nil {
		b.Fatal(err)
	}
	all := map[string]int{}
	for _, p := range status.Processes {
		if p.PID != 0 {
			all[p.Name] = p.PID
		}
		if p.Restarts > 0 {
			b.Errorf("%s was started %d times again: %s", p.Name, p.Restarts, p.LastExit)
		}
	}
	return all
}

// cpuOf is the processor time of each process so far.
func cpuOf(b *testing.B) map[string]time.Duration {
	b.Helper()
	all := map[string]time.Duration{}
	for name, pid := range processes(b) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			b.Fatal(err)
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, ticks := range fields[11:13] { // of user and system
			n, err := strconv.Atoi(ticks)
			if err != nil {
				b.Fatalf("processor time in /proc/%d/stat: %v", pid, err)
			}
			all[name] += time.Duration(n) * time.Second / 100
		}
	}
	return all
}

// reportCPU reports the processor time since an earlier moment: on a machine that others use as well, it says more than the time on the clock.
func reportCPU(b *testing.B, what string, n int, from map[string]time.Duration) {
	b.Helper()
	now, total := cpuOf(b), time.Duration(0)
	var list []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		took := now[name] - from[name]
		total += took
		list = append(list, fmt.Sprintf("%s %.1f s", name, took.Seconds()))
	}
	fmt.Printf("%s: %d %s took %.1f s of processor time: %s\n", b.Name(), n, what, total.Seconds(), strings.Join(list, ", "))
	b.ReportMetric(float64(total.Milliseconds())/float64(n), "cpu-ms/pod")
}

// agentsOf are the processes of the node agents.
func agentsOf(b *testing.B) []int {
	b.Helper()
	var all []int
	for name, pid := range processes(b) {
		if strings.HasPrefix(name, "csi-node-agent.") {
			all = append(all, pid)
		}
	}
	return all
}

// reportMemory reports the memory of a node, and of the whole cluster.
func (m *manyNodes) reportMemory(b *testing.B, when string) {
	b.Helper()
	now, total := 0.0, 0.0
	for _, pid := range m.agents {
		now += procMiB(b, pid, "VmRSS")
	}
	of := processes(b)
	var list []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		peak := procMiB(b, of[name], "VmHWM")
		total += peak
		list = append(list, fmt.Sprintf("%s %.0f", name, peak))
	}
	perNode := now / float64(m.nodes)
	fmt.Printf("%s, %s: %.0f MiB for %d nodes, %.2f MiB each; peak of all processes %.0f MiB: %s\n", b.Name(), when, now, m.nodes, perNode, total, strings.Join(list, ", "))
	b.ReportMetric(perNode, when+"-MiB/node")
	b.ReportMetric(total, "cluster-peak-MiB")
	if perNode > mostMiBPerNode {
		m.miss("%s: %s: a node takes %.2f MiB, must be at most %d", b.Name(), when, perNode, mostMiBPerNode)
	}
	if total > mostMiB {
		m.miss("%s: %s: the processes take up to %.0f MiB, must be at most %d", b.Name(), when, total, mostMiB)
	}
}
