package bench

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/measure"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// failedOver is how long claims waited that were made when the leader got its signal.
type failedOver struct{ called, bound []time.Duration }

// BenchmarkFailover ends the leader of two replicas, with the default timings of the election, and makes a claim at that moment.
func BenchmarkFailover(b *testing.B) {
	both := programs(b, "csi-provisioner")
	for _, way := range []struct {
		name   string
		signal syscall.Signal
		// hung: one call hangs in the driver when the signal comes.
		hung bool
	}{
		{"SIGTERM", syscall.SIGTERM, false},
		{"SIGKILL", syscall.SIGKILL, false},
		{"SIGTERMWithHungCall", syscall.SIGTERM, true},
	} {
		b.Run(way.name, func(b *testing.B) {
			c := newContest(b, bed, csitest.Options{})
			var results [2]failedOver
			for b.Loop() {
				for i, p := range both {
					c.failover(p, way.signal, way.hung, &results[i])
				}
			}
			compare(b, results[0].figures(), results[1].figures())
		})
	}
}

// failover ends one leader.
func (c *contest) failover(p program, signal syscall.Signal, hung bool, result *failedOver) {
	c.b.Helper()
	ctx, cancel := context.WithCancel(c.b.Context())
	defer cancel()
	times := measure.WatchTimes(ctx, c.b, c.Client, c.Namespace)
	leader := c.start(p, "a", "--timeout=60s")
	c.warmUp()
	standby := c.start(p, "b", "--timeout=60s")
	c.warmUp()
	if hung {
		c.hang()
	}
	began := time.Now()
	if err := leader.Process.Signal(signal); err != nil {
		c.b.Fatal(err)
	}
	c.CreateClaim("next", c.class)
	result.called = append(result.called, c.called(c.Scene, "next").Sub(began))
	_, bound := times.WaitBound(c.b, 1)
	result.bound = append(result.bound, bound...)
	testbed.Kill(leader)
	testbed.Kill(standby)
	c.clear()
}

// hang makes a claim whose call hangs in the driver for as long as its program waits.
func (c *contest) hang() {
	c.b.Helper()
	c.driver.Inject(csitest.Fault{Method: "CreateVolume", Hang: true, Times: 1})
	c.warm.CreateClaim("hung", c.class)
	c.called(c.warm, "hung")
}

func (f *failedOver) figures() []figure {
	return append(quantiles("next-call", f.called), quantiles("bound", f.bound)...)
}
