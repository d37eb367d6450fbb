package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	// scrapes and nodeChanges are how often each is measured.
	scrapes, nodeChanges = 20, 20
	// snapshotNodes is the number of nodes that the contents belong to.
	snapshotNodes = 100
	// changesSettle is how long a controller may take for the changes of nodes. The same time without a change is deducted.
	changesSettle = 20 * time.Second
)

// BenchmarkScrape has many snapshots, of which each belongs to a node, and the snapshot-controllers of kubernetes-csi and ours in turn, or with OTHER= another
// version of ours: the processor time for a scrape of the metrics, and for a CSINode that gets another driver.
func BenchmarkScrape(b *testing.B) {
	both, n := programs(b, "snapshot-controller"), benchSetting(b, "N", 20_000)
	c := newSnapshotContest(b, testbed.OwnCluster(b, 1, testbed.WithoutSnapshotPair), n/snapshotsPerClaim+1)
	c.perClaim, c.onNodes = snapshotsPerClaim, snapshotNodes
	c.createNodes()
	c.createReady(n)
	var results [2][]figure
	for b.Loop() {
		for i, p := range both {
			results[i] = c.scrape(p)
		}
	}
	compare(b, results[0], results[1])
}

func snapshotNode(i int) string { return fmt.Sprintf("measured-%d", i%snapshotNodes) }

// createNodes creates nodes that have the driver.
func (c *snapshotContest) createNodes() {
	c.b.Helper()
	c.must(each(c.b.Context(), snapshotNodes, func(ctx context.Context, i int) error {
		node, err := c.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: snapshotNode(i)}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
		_, err = c.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{owner}},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: c.name, NodeID: node.Name}}},
		}, metav1.CreateOptions{})
		return err
	}))
}

// scrape measures one program.
func (c *snapshotContest) scrape(p program) []figure {
	c.b.Helper()
	address := freeAddress(c.b)
	cmd := exec.CommandContext(c.b.Context(), p.path, "--kubeconfig="+c.kubeconfig, "--http-endpoint="+address, "--enable-distributed-snapshotting")
	cmd.Env = []string{}
	c.must(cmd.Start())
	defer testbed.Kill(cmd)
	c.waitQuiet(cmd)

	before := cpuSeconds(c.b, cmd.Process.Pid)
	for range scrapes {
		c.must(get(c.b.Context(), "http://"+address+"/metrics"))
	}
	scraped := cpuSeconds(c.b, cmd.Process.Pid) - before

	idle := c.cpuWhile(cmd, func() {})
	changed := c.cpuWhile(cmd, func() {
		c.must(each(c.b.Context(), nodeChanges, func(ctx context.Context, i int) error { return c.toggleDriver(ctx, snapshotNode(i)) }))
	})
	return []figure{{"cpu-ms/scrape", 1000 * scraped / scrapes}, {"cpu-ms/CSINode", 1000 * max(0, changed-idle) / nodeChanges}}
}

// waitQuiet waits until a program has done what its start causes.
func (c *snapshotContest) waitQuiet(cmd *exec.Cmd) {
	c.b.Helper()
	last := 0.0
	c.Wait("the program to have nothing to do", func(context.Context) (bool, error) {
		const moment = 5 * time.Second
		time.Sleep(moment)
		now := cpuSeconds(c.b, cmd.Process.Pid)
		quiet := now > 0.1 && now-last < 0.05*moment.Seconds()
		last = now
		return quiet, nil
	})
}

// cpuWhile returns the processor time of a program, in seconds, for a change and the time after it.
func (c *snapshotContest) cpuWhile(cmd *exec.Cmd, change func()) float64 {
	c.b.Helper()
	before := cpuSeconds(c.b, cmd.Process.Pid)
	change()
	time.Sleep(changesSettle)
	return cpuSeconds(c.b, cmd.Process.Pid) - before
}

// toggleDriver gives a node another driver, or takes it away.
func (c *snapshotContest) toggleDriver(ctx context.Context, node string) error {
	const other = "other.example.com"
	for {
		csiNode, err := c.Client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if drivers := csiNode.Spec.Drivers; len(drivers) > 1 {
			csiNode.Spec.Drivers = drivers[:1]
		} else {
			csiNode.Spec.Drivers = append(drivers, storagev1.CSINodeDriver{Name: other, NodeID: node})
		}
		if _, err = c.Client.StorageV1().CSINodes().Update(ctx, csiNode, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// freeAddress returns an address that nothing listens on.
func freeAddress(b *testing.B) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// get reads what an address serves.
func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	reply, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", url, reply.Status)
	}
	_, err = io.Copy(io.Discard, reply.Body)
	return err
}
