package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/measure"
	"github.com/longshore-csi/longshore/e2e/testbed"
	"github.com/longshore-csi/longshore/provisioner"
)

const (
	// heldClaims is the number of claims that a node with a dead driver has taken.
	heldClaims = 100
	// instanceKey is the label of the topology, of which each instance has a segment of its own.
	instanceKey = "topology.example.com/node"
)

// BenchmarkNodes counts what the instances of a provisioner on many nodes ask of the API server of a cluster of its own while one node, whose
// driver is dead, holds many claims.
func BenchmarkNodes(b *testing.B) {
	if bed.Dev == nil {
		b.Skip("needs a development cluster: reads its audit log")
	}
	n, minutes := benchSetting(b, "N", 1000), benchSetting(b, "MINUTES", 10)
	b.Run(fmt.Sprintf("%dNodes/%dClaims/%dMinutes", n, heldClaims, minutes), func(b *testing.B) {
		cluster := testbed.OwnCluster(b, 1, "--without=csi-snapshotter,snapshot-controller")
		f := newFleet(b, cluster)
		f.removeSnapshotKinds()
		for i := range n {
			f.start(b, i)
		}
		f.waitQuiet()
		f.addHeldClaims("node-0")
		for b.Loop() {
			from := f.asked()
			time.Sleep(time.Duration(minutes) * time.Minute)
			f.report(b, from, time.Duration(minutes)*time.Minute)
		}
	})
}

// fleet is one instance of the provisioner on each of many nodes.
type fleet struct {
	*testbed.Scene
	b           *testing.B
	name, class string
}

func newFleet(b *testing.B, on *testbed.Bed) *fleet {
	b.Helper()
	s := on.NewScene(b)
	f := &fleet{Scene: s, b: b, name: s.Namespace + ".example.com", class: s.Namespace + "-fleet"}
	f.AddClass(testbed.Class(f.class, f.name, storagev1.VolumeBindingImmediate))
	for _, process := range []string{"csi-provisioner", "csi-attacher"} {
		f.Retry("stop "+process, func(ctx context.Context) error { return f.Dev.Hold(ctx, process) })
		b.Cleanup(func() {
			if err := f.Dev.Release(context.Background(), process); err != nil {
				b.Errorf("start %s: %v", process, err)
			}
		})
	}
	f.Retry("allow instances for one node to read nodes", func(ctx context.Context) error {
		_, err1 := f.Client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: f.class}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
		}}, metav1.CreateOptions{})
		_, err2 := f.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: f.class}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: f.class},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: testbed.ComponentUser + "csi-provisioner"}},
		}, metav1.CreateOptions{})
		return errors.Join(testbed.IgnoreExists(err1), testbed.IgnoreExists(err2))
	})
	return f
}

// removeSnapshotKinds removes the definitions of snapshots, which many clusters lack.
func (f *fleet) removeSnapshotKinds() {
	f.b.Helper()
	files, err := filepath.Glob(testbed.Path("deploy/crds/snapshot/*_*.yaml"))
	if err != nil || len(files) == 0 {
		f.b.Fatalf("no definitions: %q, %v", files, err)
	}
	for _, file := range files {
		f.Retry("remove the definition in "+file, func(ctx context.Context) error {
			return f.NewWriter(f.b).Delete(ctx, testbed.ReadManifest(f.b, file)...)
		})
	}
}

// start starts the instance of a node, with a driver that can make snapshots, of which this cluster has no kind. The driver of
// the first node is dead.
func (f *fleet) start(b *testing.B, i int) {
	b.Helper()
	name := fmt.Sprint("node-", i)
	driver := csitest.New(csitest.Options{
		Name: f.name, NodeID: name, Topology: map[string]string{instanceKey: name},
		Controller: append(csitest.AllController(), csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT),
	})
	if i == 0 {
		driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Unavailable})
	}
	o := provisioner.NewOptions()
	o.CSI.Address, o.Kube.Kubeconfig = driver.Serve(b), f.Dev.KubeconfigOf("csi-provisioner")
	o.Node.Enabled, o.Node.Name = true, name
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Logger{}))
	var running sync.WaitGroup
	running.Go(func() {
		if err := provisioner.Run(ctx, o); err != nil {
			b.Errorf("provisioner of %s: %v", name, err)
		}
	})
	b.Cleanup(func() { cancel(); running.Wait() })
}

// addHeldClaims creates claims that a node has taken.
func (f *fleet) addHeldClaims(node string) {
	f.b.Helper()
	f.Retry("create node "+node, func(ctx context.Context) error {
		_, err := f.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{Unschedulable: true}}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	f.b.Cleanup(func() { _ = f.Client.CoreV1().Nodes().Delete(context.Background(), node, metav1.DeleteOptions{}) })
	for i := range heldClaims {
		claim := testbed.Claim(f.Namespace, claimName(i), f.class)
		claim.Annotations = map[string]string{measure.StorageProvisioner: f.name, "volume.kubernetes.io/selected-node": node}
		f.AddClaim(claim)
	}
}

// asked returns what the instances have asked of the API server, by verb and kind.
func (f *fleet) asked() map[string]int {
	f.b.Helper()
	text, err := os.ReadFile(f.Dev.Log("audit"))
	if err != nil {
		f.b.Fatal(err)
	}
	requests := map[string]int{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			testbed.AuditEvent
			Stage string
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.User.Username != testbed.ComponentUser+"csi-provisioner" {
			continue // another user, or a line that is being written
		}
		if e.Verb != "watch" || e.Stage == "ResponseStarted" { // a watch is in the log when it begins and when it ends
			requests[e.Verb+" "+e.ObjectRef.Resource]++
		}
	}
	return requests
}

// waitQuiet waits until all instances have what they watch.
func (f *fleet) waitQuiet() {
	f.b.Helper()
	last, since := map[string]int{}, time.Now()
	f.Wait("all instances to watch", func(context.Context) (bool, error) {
		time.Sleep(time.Second) // the log is long
		if now := f.asked(); !maps.Equal(now, last) {
			last, since = now, time.Now()
		}
		return time.Since(since) > quietTime, nil
	})
	fmt.Printf("at the start: %v\n", last)
}

// report prints what was asked since from.
func (f *fleet) report(b *testing.B, from map[string]int, in time.Duration) {
	b.Helper()
	total, now := 0, f.asked()
	fmt.Printf("\n%s\n", b.Name())
	for _, what := range slices.Sorted(maps.Keys(now)) {
		if n := now[what] - from[what]; n > 0 {
			fmt.Printf("%8d  %s\n", n, what)
			total += n
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(total)/in.Seconds(), "requests/s")
}
