package bench

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/longshore-csi/longshore/e2e/apiproxy"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// counted is the number of snapshots of which all requests are counted, one by one.
const counted = 50

// countRequests counts what the snapshots of one run cost, by program and request, and prints it.
func (c *snapshotContest) countRequests(p snapshotPair, args []string) []figure {
	c.b.Helper()
	proxies, kubeconfigs := map[string]*apiproxy.Proxy{}, map[string]string{}
	for _, name := range testbed.SnapshotPair() {
		proxies[name] = apiproxy.New(c.b, c.kubeconfig)
		kubeconfigs[name] = proxies[name].Kubeconfig
	}
	pair := c.startPair(p, kubeconfigs, args...)
	defer pair.end()
	var steps [3]map[string]map[string]int
	steps[0] = c.settled(proxies)
	c.ask(counted)
	c.times.wait(c.b, "ready", counted)
	steps[1] = c.settled(proxies)
	c.remove(counted)
	c.times.wait(c.b, "gone", counted)
	c.waitNone()
	steps[2] = c.settled(proxies)
	c.times.reset()

	var text bytes.Buffer
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\tREQUEST\tMADE\tDELETED\tPER SNAPSHOT\n", strings.ToUpper(p.name))
	figures, total, events := []figure{}, 0.0, 0.0
	for _, name := range testbed.SnapshotPair() {
		sum := 0.0
		for _, what := range slices.Sorted(maps.Keys(steps[2][name])) {
			made, deleted := steps[1][name][what]-steps[0][name][what], steps[2][name][what]-steps[1][name][what]
			if made+deleted == 0 || strings.HasPrefix(what, "watch ") {
				continue
			}
			each := float64(made+deleted) / counted
			sum += each
			if strings.HasSuffix(what, " events") {
				events += each
			}
			fmt.Fprintf(t, "%s\t%s\t%.2f\t%.2f\t%.2f\n", name, what, float64(made)/counted, float64(deleted)/counted, each)
		}
		total += sum
		figures = append(figures, figure{name + "-requests/snapshot", sum})
	}
	_ = t.Flush()
	fmt.Printf("\n%s\n", text.String())
	return append(figures, figure{"requests/snapshot", total}, figure{"of-these-events/snapshot", events})
}

// settled returns the requests as soon as there are no more of them.
func (c *snapshotContest) settled(proxies map[string]*apiproxy.Proxy) map[string]map[string]int {
	c.b.Helper()
	const quiet = 3 * time.Second
	var last map[string]map[string]int
	since := time.Now()
	c.Wait("the requests to end", func(context.Context) (bool, error) {
		now := map[string]map[string]int{}
		for name, p := range proxies {
			now[name] = p.Counts()
		}
		if !maps.EqualFunc(now, last, maps.Equal) {
			last, since = now, time.Now()
		}
		return time.Since(since) > quiet, nil
	})
	return last
}
