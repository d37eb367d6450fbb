package clusters

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/protobuf/proto"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	// The lease of each program. A program that has not renewed it for longer than swapRenew ends, and nothing here starts it again.
	swapLease = 20 * time.Second
	swapRenew = 15 * time.Second
	swapRetry = time.Second
	// swappedSnapshots is the number of snapshots that are under way while the pair is swapped, of swappedVolumes.
	swappedSnapshots, swappedVolumes = 100, 10
	// takenBefore is the number of calls that the driver answers the first pair.
	takenBefore = 30
)

// snapshotSwap is a driver whose snapshots are taken and deleted by kubernetes-csi's pair and by ours.
type snapshotSwap struct {
	*testbed.Scene
	api    snapshotapi.Client
	driver *csitest.Driver
	class  string
	// flags are those of both programs, by program.
	flags map[string][]string
	// upstream are the paths of the programs of kubernetes-csi, by name.
	upstream map[string]string
}

// TestSwapSnapshottersAndBack kills kubernetes-csi's pair in the middle of many snapshots and starts ours, which finishes them; then it
// ends ours in the middle of as many new snapshots and of the deletion of the first, and starts kubernetes-csi's again: in the end each
// snapshot is ready, or deleted, and the driver has no other.
func TestSwapSnapshottersAndBack(t *testing.T) {
	dev(t)
	w := newSnapshotSwap(t)
	first, second := names("first"), names("second")
	endUpstream := w.startUpstream()
	w.holdAfter("CreateSnapshot", takenBefore)
	w.take(first)
	w.waitMiddle("CreateSnapshot")
	endUpstream()
	w.driver.Heal()
	endOurs := w.startOurs()
	w.waitAll(first)

	w.holdAfter("CreateSnapshot", takenBefore)
	w.holdAfter("DeleteSnapshot", takenBefore)
	w.take(second)
	w.remove(first)
	w.waitMiddle("CreateSnapshot")
	w.waitMiddle("DeleteSnapshot")
	endOurs()
	w.driver.Heal()
	endUpstream = w.startUpstream()
	w.waitAll(second)

	// And ours once more, which deletes what kubernetes-csi's has taken.
	w.holdAfter("DeleteSnapshot", takenBefore)
	w.remove(second)
	w.waitMiddle("DeleteSnapshot")
	endUpstream()
	w.driver.Heal()
	endOurs = w.startOurs()
	w.waitAll(nil)
	endOurs()
	for _, violation := range w.driver.Violations() {
		t.Errorf("against the life cycle of CSI: %s", violation)
	}
	for i := range swappedVolumes {
		w.DeleteClaim(claimName(i))
	}
	w.Wait("the volumes to be deleted", func(context.Context) (bool, error) { return len(w.driver.Volumes()) == 0, nil })
}

// names are those of the snapshots that are taken together.
func names(prefix string) []string {
	list := make([]string, swappedSnapshots)
	for i := range list {
		list[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return list
}

// newSnapshotSwap has the claims bound.
func newSnapshotSwap(t *testing.T) *snapshotSwap {
	t.Helper()
	upstream := map[string]string{}
	for _, name := range testbed.SnapshotPair() {
		upstream[name] = testbed.UpstreamProgram(t, name)
	}
	s := newCluster(t, 1, testbed.WithoutSnapshotPair).NewScene(t)
	s.HoldSnapshotPair()
	s.InstallSnapshotKinds()
	api, err := snapshotapi.New(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	name := s.Namespace + ".example.com"
	w := &snapshotSwap{Scene: s, api: api, upstream: upstream, class: s.Namespace, driver: csitest.New(csitest.Options{
		Name: name, Node: []csi.NodeServiceCapability_RPC_Type{}, Controller: append(csitest.AllController(), csitest.AllSnapshots()...),
	})}
	address := w.driver.Serve(t)
	common := []string{
		"-v=5", "--worker-threads=20", "--retry-interval-max=5s", "--kube-api-qps=100", "--kube-api-burst=200", "--kubeconfig=" + s.Kubeconfig,
		"--leader-election", "--leader-election-namespace=" + devcluster.Namespace,
		"--leader-election-lease-duration=" + swapLease.String(),
		"--leader-election-renew-deadline=" + swapRenew.String(),
		"--leader-election-retry-period=" + swapRetry.String(),
	}
	w.flags = map[string][]string{
		"snapshot-controller": common,
		"csi-snapshotter":     append(slices.Clone(common), "--csi-address="+address, "--timeout=10s"),
	}
	class := testbed.Class(w.Namespace+"-swapped", name, storagev1.VolumeBindingImmediate)
	w.AddClass(class)
	w.Retry("create the class of snapshots", func(ctx context.Context) error {
		_, err := w.api.VolumeSnapshotClasses().Create(ctx, &snapshotv1.VolumeSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: w.class}, Driver: name, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	w.Run("csi-provisioner", "--csi-address="+address, "--kubeconfig="+w.Dev.KubeconfigOf("csi-provisioner"))
	for i := range swappedVolumes {
		w.CreateClaim(claimName(i), class.Name)
	}
	for i := range swappedVolumes {
		w.WaitBound(claimName(i))
	}
	return w
}

// startUpstream starts kubernetes-csi's pair. The function that it returns kills both.
func (w *snapshotSwap) startUpstream() (kill func()) {
	w.T.Helper()
	var cmds []*exec.Cmd
	for name, flags := range w.flags {
		cmd := exec.Command(w.upstream[name], flags...)
		w.Background(cmd)
		cmds = append(cmds, cmd)
	}
	return func() {
		for _, cmd := range cmds {
			testbed.Kill(cmd)
		}
	}
}

// startOurs starts our pair with the same flags. The function that it returns ends both in good order.
func (w *snapshotSwap) startOurs() (stop func()) {
	w.T.Helper()
	var ends []func()
	for name, flags := range w.flags {
		ends = append(ends, w.Run(name, flags...))
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

// holdAfter has the driver answer the first n calls of a method, and not the others.
func (w *snapshotSwap) holdAfter(method string, n int) {
	var mu sync.Mutex
	w.driver.Inject(csitest.Fault{Method: method, Hang: true, Match: func(proto.Message) bool {
		mu.Lock()
		defer mu.Unlock()
		n--
		return n < 0
	}})
}

// waitMiddle waits until the driver does not answer a call.
func (w *snapshotSwap) waitMiddle(method string) {
	w.T.Helper()
	w.Wait("a call of "+method+" that hangs", func(context.Context) (bool, error) {
		calls := slices.DeleteFunc(w.driver.Calls(), func(c csitest.Call) bool { return c.Method != method })
		if len(calls) < takenBefore {
			return false, fmt.Errorf("%d calls", len(calls))
		}
		return slices.ContainsFunc(calls, func(c csitest.Call) bool { return !c.Done }), nil
	})
}

// take asks for snapshots.
func (w *snapshotSwap) take(names []string) {
	w.T.Helper()
	w.driver.ResetCalls()
	for i, name := range names {
		claim := claimName(i % swappedVolumes)
		w.Retry("create snapshot "+name, func(ctx context.Context) error {
			_, err := w.api.VolumeSnapshots(w.Namespace).Create(ctx, &snapshotv1.VolumeSnapshot{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: &w.class, Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
			}, metav1.CreateOptions{})
			return testbed.IgnoreExists(err)
		})
	}
}

// remove asks for the end of snapshots.
func (w *snapshotSwap) remove(names []string) {
	w.T.Helper()
	for _, name := range names {
		w.Retry("delete snapshot "+name, func(ctx context.Context) error {
			return testbed.IgnoreNotFound(w.api.VolumeSnapshots(w.Namespace).Delete(ctx, name, metav1.DeleteOptions{}))
		})
	}
}

// waitAll waits until these snapshots are ready, and neither others, nor contents, nor snapshots of the driver are left, nor finalizers on claims.
func (w *snapshotSwap) waitAll(names []string) {
	w.T.Helper()
	w.Wait(fmt.Sprintf("%d snapshots to be ready, and no others to be left", len(names)), func(ctx context.Context) (bool, error) {
		world, err := readSnapshots(ctx, w.Scene, w.api, w.driver)
		if err != nil {
			return false, err
		}
		wrong := world.disorder()
		if n := len(names); len(world.snapshots) != n || len(world.contents) != n || len(world.taken) != n {
			wrong = append(wrong, "there are "+world.String())
		}
		for _, problem := range wrong {
			err = errors.Join(err, errors.New(problem))
		}
		return err == nil, err
	})
}
