package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/measure"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// quietTime is how long no event may be written before all count as written.
const quietTime = 15 * time.Second

// mostWrites is how many writes per claim our provisioner may make beside its events.
const mostWrites = 3.3

// BenchmarkWrites counts what our provisioner writes for many claims at once, from their creation to the deletion of their volumes: with an election, without, and on a
// node, for claims that the scheduler has given to it.
func BenchmarkWrites(b *testing.B) {
	if bed.Dev == nil {
		b.Skip("needs a development cluster: reads its audit log")
	}
	ours, n := ownProgram(b, "csi-provisioner"), benchSetting(b, "N", 1000)
	node := bed.Dev.Nodes[0]
	for _, form := range []struct {
		name     string
		options  csitest.Options
		args     []string
		selected string // the node that the scheduler has selected for each claim
	}{
		{name: "Elected"},
		{name: "Alone", args: []string{"--leader-election=false"}},
		{
			name: "Node", options: csitest.Options{NodeID: node, Topology: map[string]string{"example.com/node": node}},
			args: []string{"--leader-election=false", "--node-deployment"}, selected: node,
		},
	} {
		b.Run(fmt.Sprintf("%s/%dClaims", form.name, n), func(b *testing.B) {
			c := newContest(b, bed, form.options)
			cmd := c.start(ours, "a", form.args...)
			defer func() { testbed.Kill(cmd); c.clear() }()
			c.warmUp()
			user := testbed.ShortUser(measuredUser)
			for b.Loop() {
				writes := c.writesOf(n, form.selected)
				events := writes.Events(user)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(events)/float64(n), "events/claim")
				perClaim := float64(writes.By(user)-events) / float64(n)
				b.ReportMetric(perClaim, "writes/claim")
				if perClaim > mostWrites {
					b.Errorf("%.2f writes per claim, want at most %.1f", perClaim, mostWrites)
				}
				fmt.Printf("\n%s\n", measure.Writes{user: writes[user]}.Table(n))
			}
		})
	}
}

// writesOf creates so many claims, for which a node is selected or none, deletes them, and returns what was written until their events are.
func (c *contest) writesOf(n int, selected string) (writes measure.Writes) {
	c.b.Helper()
	left, audit := len(c.driver.Volumes()), measure.AuditFrom(c.b, c.Dev)
	times := measure.WatchTimes(c.b.Context(), c.b, c.Client, c.Namespace)
	claims := c.Client.CoreV1().PersistentVolumeClaims(c.Namespace)
	if err := each(c.b.Context(), n, func(ctx context.Context, i int) error {
		claim := testbed.Claim(c.Namespace, claimName(i), c.class)
		if selected != "" {
			claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": selected}
		}
		_, err := claims.Create(ctx, claim, metav1.CreateOptions{})
		return err
	}); err != nil {
		c.b.Fatal(err)
	}
	times.WaitBound(c.b, n)
	c.Retry("delete all claims", func(ctx context.Context) error {
		return claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
	c.Wait("all volumes to be deleted", func(context.Context) (bool, error) { return len(c.driver.Volumes()) == left, nil })
	// A burst has more events than the budget lets through in a minute: the wait lasts as long as there are more of them.
	for last, since := -1, time.Now(); time.Since(since) < quietTime; time.Sleep(time.Second) { // the log is long
		writes = audit()
		if now := writes.Events(testbed.ShortUser(measuredUser)); now != last {
			last, since = now, time.Now()
		}
	}
	return writes
}
