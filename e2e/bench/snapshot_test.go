package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// snapshotPair are the two programs that take snapshots together.
type snapshotPair struct{ name, controller, snapshotter string }

// snapshotPairs returns the programs of kubernetes-csi, or those in the directory OTHER=, and ours as they are built for images.
func snapshotPairs(b *testing.B) [2]snapshotPair {
	b.Helper()
	if bed.Dev == nil {
		b.Fatalf("%s: must be empty: this benchmark needs a development cluster", testbed.KubeconfigEnv)
	}
	ours := b.TempDir()
	pairIn := func(name, dir string) snapshotPair {
		return snapshotPair{name, filepath.Join(dir, "snapshot-controller"), filepath.Join(dir, "csi-snapshotter")}
	}
	other, own := pairIn(otherName(), os.Getenv("BENCH_OTHER")), pairIn("ours", ours)
	if other.name == "upstream" {
		other.controller, other.snapshotter = testbed.UpstreamProgram(b, "snapshot-controller"), testbed.UpstreamProgram(b, "csi-snapshotter")
	}
	for _, name := range testbed.SnapshotPair() {
		buildOwn(b, filepath.Join(ours, name), name)
	}
	return [2]snapshotPair{other, own}
}

// BenchmarkSnapshot has kubernetes-csi's snapshot-controller and csi-snapshotter, and ours in turn, take and delete many snapshots, each of a
// claim of its own, that were asked for while the programs were stopped: with the default flags, with which kubernetes-csi's limit their
// own requests to 5 per second and client, and with this limit lifted. The driver answers at once. Then the requests of some snapshots are counted,
// reads included, and the memory is read. Nothing else uses the API server.
func BenchmarkSnapshot(b *testing.B) {
	both, n := snapshotPairs(b), benchSetting(b, "N", 500)
	lifted := []string{"--kube-api-qps=1000", "--kube-api-burst=2000"}
	for _, tc := range []struct {
		name      string
		snapshots [2]int // of kubernetes-csi's programs and ours
		args      []string
	}{
		{"DefaultFlags", [2]int{max(1, n/10), n}, nil},
		{"LimitsLifted", [2]int{n, n}, lifted},
	} {
		b.Run(fmt.Sprintf("%s/%dSnapshots", tc.name, n), func(b *testing.B) {
			c := newSnapshotContest(b, testbed.OwnCluster(b, 1, testbed.WithoutSnapshotPair), n)
			var results [2]snapshotted
			for round := 0; b.Loop(); round++ {
				for turn := range both {
					i := (turn + round) % len(both)
					c.measure(both[i], &results[i], tc.snapshots[i], tc.args)
				}
			}
			c.clear()
			compare(b, results[0].figures(), results[1].figures())
		})
	}
	for name, perClaim := range map[string]int{"OfOneClaimEach": 1, "OfOneClaim": counted} {
		b.Run(fmt.Sprintf("Requests/%d%s", counted, name), func(b *testing.B) {
			c := newSnapshotContest(b, testbed.OwnCluster(b, 1, testbed.WithoutSnapshotPair), counted/perClaim)
			c.perClaim = perClaim
			var results [2][]figure
			for b.Loop() {
				for i, p := range both {
					results[i] = c.countRequests(p, lifted)
				}
			}
			c.clear()
			compare(b, results[0], results[1])
		})
	}
	for _, objects := range []int{0, 20 * n} {
		b.Run(fmt.Sprintf("Memory/%dSnapshots", objects), func(b *testing.B) { rememberSnapshots(b, both, objects) })
	}
}

// snapshotContest is a contest of pairs.
type snapshotContest struct {
	*contest
	api   snapshotapi.Client
	times *snapshotTimes
	class string
	// perClaim is the number of snapshots of one claim.
	perClaim int
	// onNodes is the number of nodes that the contents belong to, 0 for none.
	onNodes int
	// kept is the number of snapshots that are there all the time.
	kept int
}

// newSnapshotContest has so many claims.
func newSnapshotContest(b *testing.B, on *testbed.Bed, claims int) *snapshotContest {
	b.Helper()
	api, err := snapshotapi.New(on.Config)
	if err != nil {
		b.Fatal(err)
	}
	c := &snapshotContest{api: api, perClaim: 1, contest: newContest(b, on, csitest.Options{
		Controller: append(csitest.AllController(), csitest.AllSnapshots()...), Node: []csi.NodeServiceCapability_RPC_Type{},
	})}
	c.class = c.Namespace
	c.hold("kube-controller-manager", "kube-scheduler")
	c.HoldSnapshotPair()
	c.InstallSnapshotKinds()
	c.Retry("create the class", func(ctx context.Context) error {
		_, err := c.api.VolumeSnapshotClasses().Create(ctx, &snapshotv1.VolumeSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: c.class}, Driver: c.name, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	b.Cleanup(func() {
		_ = c.api.VolumeSnapshotClasses().Delete(context.Background(), c.class, metav1.DeleteOptions{})
	})
	c.createBound(claims)
	c.times = watchSnapshots(b, c.api, c.warm.Namespace)
	return c
}

// runningPair is a pair that runs.
type runningPair struct {
	c    *snapshotContest
	cmds map[string]*exec.Cmd
}

// startPair starts both programs and waits until they have taken and deleted a snapshot. kubeconfigs are by program.
func (c *snapshotContest) startPair(p snapshotPair, kubeconfigs map[string]string, args ...string) *runningPair {
	c.b.Helper()
	pair := &runningPair{c: c, cmds: map[string]*exec.Cmd{}}
	for name, path := range map[string]string{testbed.SnapshotPair()[0]: p.controller, testbed.SnapshotPair()[1]: p.snapshotter} {
		own := append([]string{"--kubeconfig=" + kubeconfigs[name]}, args...)
		if name == "csi-snapshotter" {
			own = append(own, "--csi-address="+c.address)
		}
		log, err := os.OpenFile(filepath.Join(c.logDir, p.name+"-"+name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			c.b.Fatal(err)
		}
		defer log.Close()
		cmd := exec.Command(path, own...)
		cmd.Env = []string{}
		cmd.Stdout, cmd.Stderr = log, log
		c.must(cmd.Start())
		c.b.Cleanup(func() { testbed.Kill(cmd) })
		pair.cmds[name] = cmd
	}
	c.ask(1)
	c.times.wait(c.b, "ready", 1)
	c.remove(1)
	c.times.wait(c.b, "gone", 1)
	c.waitNone()
	c.times.reset()
	return pair
}

func (p *runningPair) end() {
	for _, cmd := range p.cmds {
		testbed.Kill(cmd)
	}
}

// while has both programs stopped while do writes, and returns the time at which they go on.
func (p *runningPair) while(do func()) time.Time {
	p.c.b.Helper()
	p.signal(syscall.SIGSTOP)
	do()
	began := time.Now()
	p.signal(syscall.SIGCONT)
	return began
}

func (p *runningPair) signal(signal syscall.Signal) {
	p.c.b.Helper()
	for _, cmd := range p.cmds {
		p.c.must(cmd.Process.Signal(signal))
	}
}

// cpu returns the processor time of each program, in seconds.
func (p *runningPair) cpu() map[string]float64 {
	p.c.b.Helper()
	seconds := map[string]float64{}
	for name, cmd := range p.cmds {
		seconds[name] = cpuSeconds(p.c.b, cmd.Process.Pid)
	}
	return seconds
}

func snapshotName(i int) string { return fmt.Sprintf("snapshot-%d", i) }

// isAsked reports whether ask has created the snapshot.
func isAsked(s *snapshotv1.VolumeSnapshot) bool { return strings.HasPrefix(s.Name, "snapshot-") }

// ask creates n snapshots.
func (c *snapshotContest) ask(n int) {
	c.b.Helper()
	c.must(each(c.b.Context(), n, func(ctx context.Context, i int) error {
		s := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Name: snapshotName(i)}, Spec: snapshotv1.VolumeSnapshotSpec{
			VolumeSnapshotClassName: &c.class, Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: new(claimName(i / c.perClaim))},
		}}
		_, err := c.api.VolumeSnapshots(c.warm.Namespace).Create(ctx, s, metav1.CreateOptions{})
		return err
	}))
}

// remove deletes the first n snapshots.
func (c *snapshotContest) remove(n int) {
	c.b.Helper()
	c.must(each(c.b.Context(), n, func(ctx context.Context, i int) error {
		return c.api.VolumeSnapshots(c.warm.Namespace).Delete(ctx, snapshotName(i), metav1.DeleteOptions{})
	}))
}

// waitNone waits until there are no contents, other than those that are kept, and no snapshots in the driver.
func (c *snapshotContest) waitNone() {
	c.b.Helper()
	c.Wait("all snapshots to be deleted", func(ctx context.Context) (bool, error) {
		contents, err := c.api.VolumeSnapshotContents().List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return false, err
		}
		n := len(contents.Items)
		if more := contents.RemainingItemCount; more != nil {
			n += int(*more)
		}
		return n == c.kept && len(c.driver.Snapshots()) == 0, nil
	})
}

// snapshotted is what one pair needed for its snapshots: took are the times until all were ready, and until all were deleted.
type snapshotted struct {
	snapshots    int
	ready, gone  []time.Duration
	took, tookTo time.Duration
	cpu          map[string]float64 // in seconds
	controlPlane float64            // in seconds
	peak         map[string]float64 // in MiB
}

// measure adds the snapshots of one run to a result. What a program still does when the last snapshot is ready, or deleted, such as events
// that its limit holds back, is not counted.
func (c *snapshotContest) measure(p snapshotPair, result *snapshotted, n int, args []string) {
	c.b.Helper()
	pair := c.startPair(p, map[string]string{testbed.SnapshotPair()[0]: c.kubeconfig, testbed.SnapshotPair()[1]: c.kubeconfig}, args...)
	defer pair.end()
	before, plane := pair.cpu(), c.controlPlaneSeconds()
	began := pair.while(func() { c.ask(n) })
	ready := c.times.wait(c.b, "ready", n)
	for _, at := range ready {
		result.ready = append(result.ready, at.Sub(began))
	}
	result.took += slices.MaxFunc(ready, time.Time.Compare).Sub(began)
	began = pair.while(func() { c.remove(n) })
	gone := c.times.wait(c.b, "gone", n)
	for _, at := range gone {
		result.gone = append(result.gone, at.Sub(began))
	}
	result.tookTo += slices.MaxFunc(gone, time.Time.Compare).Sub(began)
	result.snapshots += n
	result.controlPlane += c.controlPlaneSeconds() - plane
	if result.cpu == nil {
		result.cpu, result.peak = map[string]float64{}, map[string]float64{}
	}
	for name, seconds := range pair.cpu() {
		result.cpu[name] += seconds - before[name]
		result.peak[name] = max(result.peak[name], procMiB(c.b, pair.cmds[name].Process.Pid, "VmHWM"))
	}
	c.waitNone()
	pair.end()
	c.times.reset()
}

func (r *snapshotted) figures() []figure {
	n := float64(r.snapshots)
	all := []figure{{"ready/s", n / r.took.Seconds()}, {"deleted/s", n / r.tookTo.Seconds()}}
	all = append(append(all, quantiles("ready", r.ready)...), quantiles("deleted", r.gone)...)
	total := 0.0
	for _, name := range testbed.SnapshotPair() {
		total += r.cpu[name]
		all = append(all, figure{name + "-cpu-ms/snapshot", 1000 * r.cpu[name] / n}, figure{name + "-peak-MiB", r.peak[name]})
	}
	return append(all, figure{"cpu-ms/snapshot", 1000 * total / n}, figure{"control-plane-cpu-ms/snapshot", 1000 * r.controlPlane / n})
}

// clear removes the claims, and the finalizers that a benchmark that has failed leaves.
func (c *snapshotContest) clear() {
	c.b.Helper()
	c.waitNone()
	c.contest.clear()
}
