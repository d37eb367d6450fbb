package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/e2e/measure"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// BenchmarkClaim measures how long it takes from the creation of a claim until it is bound, and until its pod runs with the
// volume mounted, with so many claims at once; and how many API writes that costs, by who makes them.
func BenchmarkClaim(b *testing.B) {
	if bed.Dev == nil {
		b.Skip("needs a development cluster: reads its audit log")
	}
	for _, concurrent := range []int{1, 100} {
		b.Run(fmt.Sprintf("Concurrent%d", concurrent), func(b *testing.B) {
			// One claim at a time says nothing about a 99th percentile: many rounds of few, few rounds of many.
			rounds := max(1, 20/concurrent)
			var bound, mounted []time.Duration
			writes := measure.Writes{}
			s := bed.NewScene(b)
			for b.Loop() {
				for round := range rounds {
					r := lifeOfMany(b, s, fmt.Sprintf("bench-%d", round), concurrent)
					bound, mounted = append(bound, r.bound...), append(mounted, r.mounted...)
					writes.Add(r.writes)
				}
			}
			report(b, "bound", bound)
			report(b, "mounted", mounted)
			b.ReportMetric(0, "ns/op") // the whole of it says nothing
			ours := writes.By("csi-provisioner") + writes.By("csi-attacher") + writes.By("csi-node-agent")
			b.ReportMetric(float64(ours)/float64(len(bound)), "writes/claim")
			fmt.Printf("\nAPI writes of %d claims, %d at once, from creation to removal:\n%s\n", len(bound), concurrent, writes.Table(len(bound)))
		})
	}
}

type lives struct {
	bound, mounted []time.Duration
	writes         measure.Writes
}

// lifeOfMany creates claims and pods at once, waits until all pods run, and removes everything.
func lifeOfMany(b *testing.B, s *testbed.Scene, prefix string, n int) lives {
	audit := measure.AuditFrom(b, bed.Dev)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	times := measure.WatchTimes(ctx, b, bed.Client, s.Namespace)
	var making sync.WaitGroup
	for i := range n {
		making.Go(func() {
			name := fmt.Sprintf("%s-%d", prefix, i)
			s.CreateClaim(name, s.ImmediateClass())
			s.CreatePod(name, testbed.FromClaim(name))
		})
	}
	making.Wait()
	bound, mounted := times.Wait(b, n)
	if err := bed.Client.CoreV1().Pods(s.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		b.Fatal(err)
	}
	if err := bed.Client.CoreV1().PersistentVolumeClaims(s.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		b.Fatal(err)
	}
	s.WaitNothingLeft()
	return lives{bound: bound, mounted: mounted, writes: audit()}
}

func report(b *testing.B, what string, times []time.Duration) {
	for _, p := range []float64{0.5, 0.99} {
		b.ReportMetric(float64(measure.Percentile(times, p).Microseconds())/1000, fmt.Sprintf("%s-p%.0f-ms", what, 100*p))
	}
}
