package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/measure"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// failingFor is how long a driver fails.
const failingFor = 2 * time.Minute

// awayWrites is how many writes ours may make in that time while its driver is away, whatever kubernetes-csi's program writes before it ends: ours stores what it knows of volumes in
// progress, and an elected one gives the Lease back, so that another instance takes over at once.
const awayWrites = 2

// settling is how long a program works before its driver goes away: what it has begun by then is written.
const settling = 20 * time.Second

// failures is what one program did meanwhile: its calls for each claim, by the code that it got, and its writes.
type failures struct {
	calls  map[codes.Code]int
	writes int
}

// BenchmarkFailing has a driver fail with each gRPC code, or refuse connections: no claim may be asked for more often, and the API server not be written to more often, than by
// kubernetes-csi's program in the same run.
func BenchmarkFailing(b *testing.B) {
	both := programs(b, "csi-provisioner")
	node := bed.Dev.Nodes[0]
	for _, form := range []struct {
		name    string
		options csitest.Options
		args    []string
	}{
		{"Elected", csitest.Options{}, nil},
		{"Alone", csitest.Options{}, []string{"--leader-election=false"}},
		{"Node", csitest.Options{NodeID: node, Topology: map[string]string{"example.com/node": node}}, []string{"--leader-election=false", "--node-deployment"}},
	} {
		for _, away := range []bool{false, true} {
			b.Run(form.name+map[bool]string{true: "Away"}[away], func(b *testing.B) {
				c := newContest(b, bed, form.options)
				class := testbed.Class(c.class+"-failing", c.name, storagev1.VolumeBindingWaitForFirstConsumer)
				c.AddClass(class)
				var results [2]failures
				for b.Loop() {
					for i, p := range both {
						results[i] = c.failing(p, class.Name, node, away, form.args)
					}
				}
				most := results[0].writes
				if away {
					most = awayWrites
				}
				compareFailures(b, results[0], results[1], most)
			})
		}
	}
}

// failing runs a program with a claim for each code, and returns what it did.
func (c *contest) failing(p program, class, node string, away bool, args []string) failures {
	c.b.Helper()
	names := map[string]codes.Code{}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		claim := testbed.Claim(c.Namespace, "claim-"+strings.ToLower(code.String()), class)
		claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": node}
		c.AddClaim(claim)
		names["pvc-"+string(c.Claim(claim.Name).UID)] = code
	}
	of := func(request proto.Message) (codes.Code, bool) {
		create, ok := request.(*csi.CreateVolumeRequest)
		code, known := names[create.GetName()]
		return code, ok && known
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		c.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: code, Match: func(request proto.Message) bool { got, ok := of(request); return ok && got == code }})
	}
	if away {
		address := c.address
		defer func() { c.address = address }()
		c.address = c.b.TempDir() + "/csi.sock"
		stop := c.driver.ServeAt(c.b, c.address)
		defer func() { stop() }()
		cmd := c.start(p, "a", args...)
		defer testbed.Kill(cmd)
		time.Sleep(settling)
		stop()
		stop = func() {}
	} else {
		defer testbed.Kill(c.start(p, "a", args...))
	}
	audit, before := measure.AuditFrom(c.b, c.Dev), 0
	if away {
		before = len(c.driver.Calls())
	}
	time.Sleep(failingFor)
	result := failures{calls: map[codes.Code]int{}, writes: audit().By(testbed.ShortUser(measuredUser))}
	for _, call := range c.driver.Calls()[before:] {
		if code, ok := of(call.Request); ok {
			result.calls[code]++
		}
	}
	for _, name := range names {
		c.Retry("delete the claim of "+name.String(), func(ctx context.Context) error {
			return testbed.IgnoreNotFound(c.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Delete(ctx, "claim-"+strings.ToLower(name.String()), metav1.DeleteOptions{}))
		})
	}
	c.Wait("the claims to be gone", func(ctx context.Context) (bool, error) {
		list, err := c.Client.CoreV1().PersistentVolumeClaims(c.Namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, err
	})
	c.deleteLeases()
	return result
}

// compareFailures prints what both programs did side by side, and fails where ours did more than it may.
func compareFailures(b *testing.B, upstream, ours failures, mostWrites int) {
	b.Helper()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(upstream.writes), otherName()+"-writes")
	b.ReportMetric(float64(ours.writes), "ours-writes")
	fmt.Printf("\n%s, in %v\n", b.Name(), failingFor)
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\t%s\tours\t\n", otherName())
	fmt.Fprintf(t, "writes\t%d\t%d\t\n", upstream.writes, ours.writes)
	if ours.writes > mostWrites {
		b.Errorf("%d writes, want at most %d", ours.writes, mostWrites)
	}
	var all []codes.Code
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		all = append(all, code)
	}
	slices.SortFunc(all, func(a, z codes.Code) int { return cmp.Compare(a.String(), z.String()) })
	for _, code := range all {
		fmt.Fprintf(t, "calls that got %s\t%d\t%d\t\n", code, upstream.calls[code], ours.calls[code])
		if ours.calls[code] > upstream.calls[code] {
			b.Errorf("%d calls for a claim whose driver answers %s, kubernetes-csi's program makes %d", ours.calls[code], code, upstream.calls[code])
		}
	}
	t.Flush()
}
