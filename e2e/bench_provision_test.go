package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/csitest"
)

// ticksPerSecond is the unit of processor times in /proc, which is the same on every machine.
const ticksPerSecond = 100

// provisioned is what one program needed for its claims: volumes are the times from the creation of a claim to its PersistentVolume, and took
// is the time to the last one. Claims ask for their volumes from the beginning, and bound is when kube-controller-manager has bound them:
// it does one thing at a time, and would set the pace.
type provisioned struct {
	claims, writes int
	took           time.Duration
	cpu            float64
	volumes, bound []time.Duration
}

// BenchmarkProvision gives claims to kubernetes-csi's provisioner and to ours in turn: with the default flags, with which kubernetes-csi's
// limits its own requests to 5 per second, and with this limit lifted; to a driver that answers at once, and to one that takes its time.
func BenchmarkProvision(b *testing.B) {
	both, n := programs(b), benchSetting(b, "N", 1000)
	for _, limit := range []struct {
		name   string
		claims int
		args   []string
	}{
		{"DefaultFlags", max(1, n/10), nil},
		{"LimitsLifted", n, []string{"--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=500"}},
	} {
		for _, delay := range []time.Duration{0, 200 * time.Millisecond} {
			b.Run(fmt.Sprintf("%s/CreateVolume%s/%dClaims", limit.name, delay, limit.claims), func(b *testing.B) {
				c := newContest(b, bed, csitest.Options{})
				if delay > 0 {
					c.driver.Inject(csitest.Fault{Method: "CreateVolume", Delay: delay})
				}
				var results [2]provisioned
				for b.Loop() {
					for i, p := range both {
						c.provision(p, &results[i], limit.claims, limit.args)
					}
				}
				compare(b, results[0].figures(), results[1].figures())
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
	times, audit, cpu, began := WatchTimes(ctx, c.b, c.Client, c.Namespace), c.Dev.AuditFrom(c.b), cpuSeconds(c.b, cmd.Process.Pid), time.Now()
	if err := each(ctx, n, func(ctx context.Context, i int) error {
		claim := Claim(c.Namespace, claimName(i), c.class)
		claim.Annotations = map[string]string{storageProvisioner: c.name}
		_, err := c.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Create(ctx, claim, metav1.CreateOptions{})
		return err
	}); err != nil {
		c.b.Fatal(err)
	}
	volumes, bound := times.WaitBound(c.b, n)
	result.took += times.LastVolume().Sub(began)
	result.cpu += cpuSeconds(c.b, cmd.Process.Pid) - cpu
	result.writes += audit().By(who(measuredUser))
	result.claims += n
	result.volumes, result.bound = append(result.volumes, volumes...), append(result.bound, bound...)
	end(cmd)
	c.clear()
}

func (p *provisioned) figures() []figure {
	all := []figure{{"claims/s", float64(p.claims) / p.took.Seconds()}}
	all = append(all, quantiles("volume", p.volumes)...)
	all = append(all, quantiles("bound", p.bound)...)
	n := float64(p.claims)
	return append(all, figure{"cpu-ms/claim", 1000 * p.cpu / n}, figure{"writes/claim", float64(p.writes) / n})
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
