package bench

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/measure"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// growth is what each run adds to the claims, in MiB. They begin with that.
const growth = 16

// resized is what one program needed for its claims: capacities are the times until each had its new capacity.
type resized struct {
	claims, writes, conflicts int
	took                      time.Duration
	cpu                       float64 // in seconds
	capacities                []time.Duration
}

// BenchmarkResize lets kubernetes-csi's resizer and ours in turn expand many volumes that were asked for while the program was stopped: with the
// default flags, with which kubernetes-csi's limits its own requests to 5 per second, and with this limit lifted. The driver answers at once
// and does the whole expansion in its controller. Nothing else uses the API server. With the limit lifted, this is the limit: between the two,
// the least controller shows how many expansions it takes with the three patches that the API wants for each.
func BenchmarkResize(b *testing.B) {
	both, n := programs(b, "csi-resizer"), benchSetting(b, "N", 1000)
	for _, limit := range []struct {
		name   string
		claims int
		args   []string
	}{
		{"DefaultFlags", max(1, n/10), nil},
		{"LimitsLifted", n, []string{"--kube-api-qps=1000", "--kube-api-burst=2000"}},
	} {
		b.Run(fmt.Sprintf("%s/%dClaims", limit.name, limit.claims), func(b *testing.B) {
			c := newContest(b, bed, csitest.Options{Node: []csi.NodeServiceCapability_RPC_Type{}})
			c.hold("kube-controller-manager", "kube-scheduler")
			var results [2]resized
			size := int64(growth)
			c.createBound(limit.claims + 1)
			var bound written
			turns := []func(){
				func() { c.resize(both[0], &results[0], limit.claims, size, limit.args) },
				func() { c.resize(both[1], &results[1], limit.claims, size, limit.args) },
			}
			if limit.args != nil { // There and back again, for claims that were expanded before have longer objects.
				turns = []func(){turns[0], func() { bound = c.leastExpansions(limit.claims, size) }, turns[1]}
				turns = append(turns, turns[2], turns[1], turns[0])
			}
			for b.Loop() {
				for _, turn := range turns {
					size += growth
					turn()
				}
			}
			c.clear()
			if bound.took > 0 {
				bound.report(b, limit.claims, "claim")
			}
			compare(b, results[0].figures(), results[1].figures())
		})
	}
}

// createBound creates claims that are bound to volumes of the driver. The last one is for warming up.
func (c *contest) createBound(n int) {
	c.b.Helper()
	err := each(c.b.Context(), n, func(ctx context.Context, i int) error {
		c.driver.AddVolume(csitest.Volume{ID: "vol-pvc-" + claimName(i), Capacity: growth << 20})
		return c.createPair(ctx, claimName(i), c.name, c.class)
	})
	if err != nil {
		c.b.Fatal(err)
	}
}

// request asks for a capacity of a claim, in MiB.
func (c *contest) request(ctx context.Context, claim string, size int64) error {
	patch := fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":"%dMi"}}}}`, size)
	_, err := c.Client.CoreV1().PersistentVolumeClaims(c.warm.Namespace).Patch(ctx, claim, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// leastExpansions expands volumes as the least controller, and returns what that took.
func (c *contest) leastExpansions(n int, size int64) written {
	c.b.Helper()
	l := newLeast(c, corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), corev1.SchemeGroupVersion.WithResource("persistentvolumes"))
	defer l.stop()
	c.must(each(c.b.Context(), n, func(ctx context.Context, i int) error { return c.request(ctx, claimName(i), size) }))
	capacity := fmt.Sprintf(`{"storage":"%dMi"}`, size)
	return l.work(n, func(i int) []patched {
		return []patched{{"persistentvolumeclaims", claimName(i), "status", `{"status":{"allocatedResources":` + capacity + `,"allocatedResourceStatuses":{"storage":"ControllerResizeInProgress"},
			"conditions":[{"type":"Resizing","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`}}
	}, func(ctx context.Context, i int) error {
		_, err := l.controller.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: "vol-pvc-" + claimName(i), CapacityRange: &csi.CapacityRange{RequiredBytes: size << 20}})
		return err
	}, func(i int) []patched {
		return []patched{
			{"persistentvolumes", "pvc-" + claimName(i), "", `{"spec":{"capacity":` + capacity + `}}`},
			{"persistentvolumeclaims", claimName(i), "status", `{"status":{"capacity":` + capacity + `,"allocatedResourceStatuses":null,"conditions":[{"$patch":"replace"}]}}`},
		}
	})
}

// resize adds the expansions of one run to a result. What a program still does when the last claim has its capacity, such as events that
// its limit holds back, is not counted.
func (c *contest) resize(p program, result *resized, n int, size int64, args []string) {
	c.b.Helper()
	ctx, cancel := context.WithCancel(c.b.Context())
	defer cancel()
	seen := c.watchCapacities(ctx, size)
	cmd := c.start(p, "a", args...)
	c.must(c.request(ctx, claimName(n), size))
	seen.wait(c.b, 1)
	c.must(cmd.Process.Signal(syscall.SIGSTOP))
	c.must(each(ctx, n, func(ctx context.Context, i int) error { return c.request(ctx, claimName(i), size) }))
	audit, cpu := measure.AuditFrom(c.b, c.Dev), cpuSeconds(c.b, cmd.Process.Pid)
	began, last := time.Now(), time.Duration(0)
	c.must(cmd.Process.Signal(syscall.SIGCONT))
	for _, at := range seen.wait(c.b, n+1) {
		if at.After(began) {
			result.capacities = append(result.capacities, at.Sub(began))
			last = max(last, at.Sub(began))
		}
	}
	result.took += last
	writes := audit()
	result.cpu += cpuSeconds(c.b, cmd.Process.Pid) - cpu
	result.writes += writes.By(testbed.ShortUser(measuredUser))
	result.conflicts += writes.Conflicts(testbed.ShortUser(measuredUser))
	result.claims += n
	fmt.Printf("%s\n%s", p.name, writes.Table(n))
	testbed.Kill(cmd)
	c.deleteLeases()
}

func (c *contest) must(err error) {
	c.b.Helper()
	if err != nil {
		c.b.Fatal(err)
	}
}

func (r *resized) figures() []figure {
	n := float64(r.claims)
	all := append([]figure{{"claims/s", float64(len(r.capacities)) / r.took.Seconds()}}, quantiles("capacity", r.capacities)...)
	return append(all, figure{"cpu-ms/claim", 1000 * r.cpu / n}, figure{"writes/claim", float64(r.writes) / n}, figure{"conflicts/claim", float64(r.conflicts) / n})
}

// capacities has the time at which each claim had a capacity.
type capacities struct {
	mu      sync.Mutex
	at      map[string]time.Time
	changed chan struct{}
}

// watchCapacities watches the claims until ctx ends.
func (c *contest) watchCapacities(ctx context.Context, size int64) *capacities {
	c.b.Helper()
	seen := &capacities{at: map[string]time.Time{}, changed: make(chan struct{}, 1)}
	see := func(obj any) {
		claim, ok := obj.(*corev1.PersistentVolumeClaim)
		if capacity := claim.Status.Capacity.Storage(); !ok || capacity.Value() < size<<20 {
			return
		}
		seen.mu.Lock()
		first(seen.at, claim.Name, time.Now())
		seen.mu.Unlock()
		select {
		case seen.changed <- struct{}{}:
		default:
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(c.Client, 0, informers.WithNamespace(c.warm.Namespace))
	_, err := factory.Core().V1().PersistentVolumeClaims().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) }})
	c.must(err)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return seen
}

// wait returns the times as soon as there are n.
func (s *capacities) wait(b *testing.B, n int) []time.Time {
	b.Helper()
	deadline := time.NewTimer(10 * time.Minute)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		var all []time.Time
		for _, at := range s.at {
			all = append(all, at)
		}
		s.mu.Unlock()
		if len(all) >= n {
			return all
		}
		select {
		case <-s.changed:
		case <-deadline.C:
			b.Fatalf("%d of %d claims have their new capacity", len(all), n)
		}
	}
}
