package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/measure"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// ticksPerSecond is the unit of processor times in /proc, which is the same on every machine.
const ticksPerSecond = 100

// provisioned is what one program needed for its claims: volumes are the times until each has its PersistentVolume, and took is the time to
// the last one. Claims ask for their volumes from the beginning, and bound is when kube-controller-manager has bound them, the last after tookBound: it does one
// thing at a time.
type provisioned struct {
	claims, writes    int
	took, tookBound   time.Duration
	cpu, controlPlane float64 // in seconds
	volumes, bound    []time.Duration
}

// BenchmarkProvision gives claims to kubernetes-csi's provisioner and to ours in turn: with the default flags, with which kubernetes-csi's
// limits its own requests to 5 per second; and with this limit lifted, when all claims are there at once and nothing else uses the API server. The
// driver answers at once, or takes its time.
func BenchmarkProvision(b *testing.B) {
	both, n := programs(b, "csi-provisioner"), benchSetting(b, "N", 1000)
	for _, limit := range []struct {
		name   string
		claims int
		alone  bool
		args   []string
	}{
		{"DefaultFlags", max(1, n/10), false, nil},
		{"LimitsLifted", n, true, []string{"--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=500"}},
	} {
		for _, delay := range []time.Duration{0, 200 * time.Millisecond} {
			b.Run(fmt.Sprintf("%s/CreateVolume%s/%dClaims", limit.name, delay, limit.claims), func(b *testing.B) {
				c := newContest(b, bed, csitest.Options{})
				measure := c.provision
				if limit.alone {
					c.hold("kube-controller-manager", "kube-scheduler")
					measure = c.provisionAlone
				}
				if delay > 0 {
					c.driver.Inject(csitest.Fault{Method: "CreateVolume", Delay: delay})
				}
				var results [2]provisioned
				for b.Loop() {
					for i, p := range both {
						measure(p, &results[i], limit.claims, limit.args)
					}
				}
				compare(b, results[0].figures(), results[1].figures())
				if !limit.alone {
					c.reportMost(limit.claims)
				}
			})
		}
	}
}

// provision adds the claims of one run to a result. What a program still does when the last claim is bound, such as events that its limit
// holds back, is not counted.
func (c *contest) provision(p program, result *provisioned, n int, args []string) {
	c.b.Helper()
	cmd := c.start(p, "a", args...)
	c.warmUp()
	ctx, cancel := context.WithCancel(c.b.Context())
	defer cancel()
	times := measure.WatchTimes(ctx, c.b, c.Client, c.Namespace)
	stop := c.watchUse(cmd.Process.Pid, result)
	began := time.Now()
	c.ask(n)
	volumes, bound := times.WaitBound(c.b, n)
	stop()
	result.took += times.LastVolume().Sub(began)
	result.tookBound += times.LastBound().Sub(began)
	result.claims += n
	result.volumes, result.bound = append(result.volumes, volumes...), append(result.bound, bound...)
	testbed.Kill(cmd)
	c.clear()
}

// reportMost reports how many claims kube-controller-manager can bind in a second if no program provisions and each claim has a PersistentVolume as soon as it is there: no provisioner
// can be faster.
func (c *contest) reportMost(n int) {
	c.b.Helper()
	ctx, cancel := context.WithCancel(c.b.Context())
	defer cancel()
	times := measure.WatchTimes(ctx, c.b, c.Client, c.Namespace)
	began := time.Now()
	c.askWith(n, func(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
		claim.Spec.VolumeName = "pvc-" + string(claim.UID)
		_, err := c.Client.CoreV1().PersistentVolumes().Create(ctx, boundVolume(claim, c.name), metav1.CreateOptions{})
		return err
	})
	times.WaitBound(c.b, n)
	most := float64(n) / times.LastBound().Sub(began).Seconds()
	c.clear()
	c.b.ReportMetric(most, "most-bound-claims/s")
	fmt.Printf("bound-claims/s of volumes that are there: %.2f\n", most)
}

// provisionAlone is provision for claims that are there before the program, which is stopped meanwhile, sees the first one.
func (c *contest) provisionAlone(p program, result *provisioned, n int, args []string) {
	c.b.Helper()
	cmd := c.start(p, "a", args...)
	ctx, cancel := context.WithCancel(c.b.Context())
	defer cancel()
	times := measure.WatchTimes(ctx, c.b, c.Client, c.Namespace)
	c.ask(1)
	times.WaitVolumes(c.b, 1)
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		c.b.Fatal(err)
	}
	c.ask(n + 1) // the first is there
	stop := c.watchUse(cmd.Process.Pid, result)
	began := time.Now()
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		c.b.Fatal(err)
	}
	volumes := times.WaitVolumes(c.b, n+1)
	stop()
	for _, at := range volumes {
		if at.After(began) {
			result.volumes = append(result.volumes, at.Sub(began))
		}
	}
	result.took += times.LastVolume().Sub(began)
	result.claims += n
	testbed.Kill(cmd)
	c.clear()
}

// ask creates claims that ask for volumes, as far as they do not exist.
func (c *contest) ask(n int) {
	c.b.Helper()
	c.askWith(n, func(context.Context, *corev1.PersistentVolumeClaim) error { return nil })
}

// askWith is ask; then is called with each claim that was created.
func (c *contest) askWith(n int, then func(context.Context, *corev1.PersistentVolumeClaim) error) {
	c.b.Helper()
	err := each(c.b.Context(), n, func(ctx context.Context, i int) error {
		claim := testbed.Claim(c.Namespace, claimName(i), c.class)
		claim.Annotations = map[string]string{measure.StorageProvisioner: c.name}
		created, err := c.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Create(ctx, claim, metav1.CreateOptions{})
		if err != nil {
			return testbed.IgnoreExists(err)
		}
		return then(ctx, created)
	})
	if err != nil {
		c.b.Fatal(err)
	}
}

// watchUse begins to count what a program writes, and the processor time of the program and of the control plane, until stop is called.
func (c *contest) watchUse(pid int, result *provisioned) (stop func()) {
	c.b.Helper()
	audit, own, plane := measure.AuditFrom(c.b, c.Dev), cpuSeconds(c.b, pid), c.controlPlaneSeconds()
	return func() {
		result.cpu += cpuSeconds(c.b, pid) - own
		result.controlPlane += c.controlPlaneSeconds() - plane
		result.writes += audit().By(testbed.ShortUser(measuredUser))
	}
}

// controlPlaneSeconds returns the processor time that the API server and its database have used.
func (c *contest) controlPlaneSeconds() (seconds float64) {
	c.b.Helper()
	for _, p := range c.Dev.Processes {
		if p.Name == "kube-apiserver" || p.Name == "etcd" {
			seconds += cpuSeconds(c.b, p.PID)
		}
	}
	return seconds
}

func (p *provisioned) figures() []figure {
	all := []figure{{"claims/s", float64(p.claims) / p.took.Seconds()}}
	all = append(all, quantiles("volume", p.volumes)...)
	if len(p.bound) > 0 {
		all = append(append(all, figure{"bound-claims/s", float64(p.claims) / p.tookBound.Seconds()}), quantiles("bound", p.bound)...)
	}
	n := float64(p.claims)
	return append(all, figure{"cpu-ms/claim", 1000 * p.cpu / n}, figure{"control-plane-cpu-ms/claim", 1000 * p.controlPlane / n},
		figure{"writes/claim", float64(p.writes) / n})
}

// cpuSeconds returns the processor time that a process has used.
func cpuSeconds(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	// The name of the program, in parentheses, is the second field. User and system time are the 14th and the 15th.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	user, err1 := strconv.ParseFloat(fields[11], 64)
	system, err2 := strconv.ParseFloat(fields[12], 64)
	if err := errors.Join(err1, err2); err != nil {
		b.Fatal(err)
	}
	return (user + system) / ticksPerSecond
}
