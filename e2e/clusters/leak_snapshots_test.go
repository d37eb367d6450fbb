package clusters

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/e2e/apiproxy"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	// singleClaims are those of which snapshots are taken, and which are deleted and replaced meanwhile. groupClaims stay; a group snapshot is of
	// claimsPerGroup of them.
	singleClaims, groupClaims, claimsPerGroup = 8, 6, 3
	// groupLabel is the label by which a group snapshot selects its claims.
	groupLabel = "e2e.longshore.dev/group"
	// ours and theirs say whose program a half is.
	ours, theirs = "ours", "upstream"
)

// snapshotLeaks takes and deletes snapshots and group snapshots while its driver and the API server end calls in all ways, and kills the two
// programs.
type snapshotLeaks struct {
	*testbed.Scene
	api    snapshotapi.Client
	random *lockedRandom
	driver *snapshotFaults
	// class and retain are the classes of snapshots that are deleted with their objects, and of those that stay.
	class, retain string
	halves        []*half
	// claims are those that there are to take snapshots of.
	claims []string
	serial int
	// singles and groups are the objects that were created and not deleted.
	singles, groups []string
	// nextKill is when a half is killed next.
	nextKill time.Time
	counts   *counts
}

// TestSnapshotLeaks kills snapshot-controller and csi-snapshotter again and again while snapshots and groups of them come and go. In the end
// the driver has the snapshots that the contents name and no other, nothing is Terminating, and no claim has a finalizer of snapshots.
// `make soak TEST=snapshot-leaks` plays longer games, also with either half of kubernetes-csi: what these leak is reported, and no failure.
func TestSnapshotLeaks(t *testing.T) {
	dev(t)
	snapshots, err1 := strconv.Atoi(testbed.SoakSetting("N", "60"))
	groups, err2 := strconv.Atoi(testbed.SoakSetting("GROUPS", "6"))
	if err1 != nil || err2 != nil || snapshots < 1 || groups < 0 {
		t.Fatalf("N=%s, GROUPS=%s: must be numbers", testbed.SoakSetting("N", "60"), testbed.SoakSetting("GROUPS", "6"))
	}
	cluster := newCluster(t, 1, testbed.WithoutSnapshotPair)
	for _, pair := range strings.Split(testbed.SoakSetting("PAIRS", ours+"/"+ours), ",") {
		controller, snapshotter, ok := strings.Cut(pair, "/")
		if !ok || !isHalf(controller) || !isHalf(snapshotter) {
			t.Fatalf("PAIRS=%s: each must be of the form CONTROLLER/SNAPSHOTTER, with %s or %s for both", testbed.SoakSetting("PAIRS", ""), ours, theirs)
		}
		for _, seed := range seeds.All(t) {
			t.Run(fmt.Sprintf("%s-controller-%s-snapshotter/%d", controller, snapshotter, seed), func(t *testing.T) {
				t.Logf("seed %d: `make soak TEST=snapshot-leaks N=%d GROUPS=%d PAIRS=%s SEED=%d` plays the same game, as far as processes are alike",
					seed, snapshots, groups, pair, seed)
				newSnapshotLeaks(t, cluster, []string{controller, snapshotter}, seed).play(snapshots, groups)
			})
		}
	}
}

func claimName(n int) string { return fmt.Sprintf("claim-%d", n) }

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func isHalf(whose string) bool { return whose == ours || whose == theirs }

// lockedRandom is a source of numbers for several goroutines.
type lockedRandom struct {
	mu   sync.Mutex
	rand *rand.Rand
}

// in returns a number from 0 to n-1.
func (r *lockedRandom) in(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rand.IntN(n)
}

// once reports true one time of n.
func (r *lockedRandom) once(n int) bool { return r.in(n) == 0 }

// upTo returns a time.
func (r *lockedRandom) upTo(d time.Duration) time.Duration {
	return time.Duration(r.in(int(d/time.Millisecond)+1)) * time.Millisecond
}

// counts says how often what was done.
type counts struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counts) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[what]++
}

// String implements fmt.Stringer.
func (c *counts) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.TrimPrefix(fmt.Sprint(c.n), "map")
}

// newSnapshotLeaks returns a game with a driver of its own. whose are the halves.
func newSnapshotLeaks(t *testing.T, on *testbed.Bed, whose []string, seed uint64) *snapshotLeaks {
	t.Helper()
	s := on.NewScene(t)
	s.HoldSnapshotPair()
	s.InstallSnapshotKinds()
	api, err := snapshotapi.New(on.Config)
	if err != nil {
		t.Fatal(err)
	}
	l := &snapshotLeaks{
		Scene: s, api: api, random: &lockedRandom{rand: rand.New(rand.NewPCG(seed, 0))}, counts: &counts{n: map[string]int{}},
		class: s.Namespace + "-deleted", retain: s.Namespace + "-retained",
	}
	l.driver = newSnapshotFaults(l, "leaktest.example.com")
	address := l.driver.address
	for i, name := range testbed.SnapshotPair() {
		h := &half{l: l, name: name, whose: whose[i], log: filepath.Join(t.TempDir(), "log"), proxy: apiproxy.New(t, on.Kubeconfig)}
		h.command = []string{on.Dev.Program, "run", name}
		if h.whose == theirs {
			h.command = []string{testbed.UpstreamProgram(t, name)}
		}
		h.command = append(h.command, "--kubeconfig="+h.proxy.Kubeconfig, "--retry-interval-max=5s", "-v=2")
		if name == "csi-snapshotter" {
			h.command = append(h.command, "--csi-address="+address, "--timeout="+driverTimeout.String())
		}
		if h.whose == theirs { // ours has to do without: what it would find then is not lost, but late
			h.command = append(h.command, "--resync-period=30s")
		}
		l.halves = append(l.halves, h)
	}
	l.prepare()
	return l
}

// prepare creates classes and claims.
func (l *snapshotLeaks) prepare() {
	l.T.Helper()
	class := testbed.Class(l.Namespace+"-leaks", l.driver.name, storagev1.VolumeBindingImmediate)
	l.AddClass(class)
	for name, policy := range map[string]snapshotv1.DeletionPolicy{l.class: snapshotv1.VolumeSnapshotContentDelete, l.retain: snapshotv1.VolumeSnapshotContentRetain} {
		l.Retry("create class "+name, func(ctx context.Context) error {
			_, err := l.api.VolumeSnapshotClasses().Create(ctx, &snapshotv1.VolumeSnapshotClass{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Driver: l.driver.name, DeletionPolicy: policy,
			}, metav1.CreateOptions{})
			return testbed.IgnoreExists(err)
		})
	}
	l.Retry("create the class of groups", func(ctx context.Context) error {
		_, err := l.api.VolumeGroupSnapshotClasses().Create(ctx, &groupv1.VolumeGroupSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: l.class}, Driver: l.driver.name, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
		}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	l.T.Cleanup(func() {
		ctx := context.Background()
		_ = l.api.VolumeSnapshotClasses().Delete(ctx, l.class, metav1.DeleteOptions{})
		_ = l.api.VolumeSnapshotClasses().Delete(ctx, l.retain, metav1.DeleteOptions{})
		_ = l.api.VolumeGroupSnapshotClasses().Delete(ctx, l.class, metav1.DeleteOptions{})
	})
	l.Run("csi-provisioner", "--csi-address="+l.driver.address, "--kubeconfig="+l.Dev.KubeconfigOf("csi-provisioner"))
	for range singleClaims {
		l.addClaim()
	}
	for i := range groupClaims {
		claim := testbed.Claim(l.Namespace, fmt.Sprintf("grouped-%d", i), class.Name)
		claim.Labels = map[string]string{groupLabel: groupName(i / claimsPerGroup)}
		l.AddClaim(claim)
		l.WaitBound(claim.Name)
	}
	for _, claim := range l.claims {
		l.WaitBound(claim)
	}
}

func groupName(i int) string { return fmt.Sprintf("group-%d", i) }

// addClaim creates one more claim to take snapshots of.
func (l *snapshotLeaks) addClaim() {
	l.T.Helper()
	l.serial++
	l.claims = append(l.claims, claimName(l.serial))
	l.CreateClaim(claimName(l.serial), l.Namespace+"-leaks")
}

// play plays one game.
func (l *snapshotLeaks) play(snapshots, groups int) {
	l.T.Helper()
	l.T.Cleanup(l.forceClear)
	l.T.Cleanup(func() {
		if l.T.Failed() {
			l.T.Logf("what the logs say of the snapshots that were leaked, and their ends:\n%s", l.excerpt())
		}
	})
	for _, h := range l.halves {
		h.start()
		defer h.kill()
	}
	l.setFaults()
	for n := range snapshots {
		l.takeSnapshot(n)
		if (n+1)*groups/snapshots > n*groups/snapshots {
			l.takeGroup(n)
		}
		l.deleteMaybe()
		l.disturb()
		pause(l.T.Context(), l.random.upTo(200*time.Millisecond))
	}
	l.heal()
	l.judge()
}

// takeSnapshot asks for a snapshot.
func (l *snapshotLeaks) takeSnapshot(n int) {
	l.T.Helper()
	class := l.class
	if l.random.once(5) {
		class = l.retain
	}
	name, claim := fmt.Sprint("snapshot-", n), l.claims[l.random.in(len(l.claims))]
	l.Retry("create snapshot "+name, func(ctx context.Context) error {
		_, err := l.api.VolumeSnapshots(l.Namespace).Create(ctx, &snapshotv1.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: &class, Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}},
		}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	l.singles = append(l.singles, name)
	l.counts.add("snapshots")
}

// takeGroup asks for a group snapshot.
func (l *snapshotLeaks) takeGroup(n int) {
	l.T.Helper()
	name := fmt.Sprintf("groupsnapshot-%d", n)
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{groupLabel: groupName(l.random.in(groupClaims / claimsPerGroup))}}
	l.Retry("create group snapshot "+name, func(ctx context.Context) error {
		_, err := l.api.VolumeGroupSnapshots(l.Namespace).Create(ctx, &groupv1.VolumeGroupSnapshot{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       groupv1.VolumeGroupSnapshotSpec{VolumeGroupSnapshotClassName: &l.class, Source: groupv1.VolumeGroupSnapshotSource{Selector: selector}},
		}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	l.groups = append(l.groups, name)
	l.counts.add("groups")
}

// deleteMaybe deletes a snapshot, or a group snapshot, or none: the newest, of which the driver may be working, or any.
func (l *snapshotLeaks) deleteMaybe() {
	l.T.Helper()
	if l.random.once(2) {
		l.singles = l.deleteOf(l.singles, l.deleteSingle)
	}
	if l.random.once(20) {
		l.groups = l.deleteOf(l.groups, l.deleteGroup)
	}
}

func (l *snapshotLeaks) deleteOf(names []string, remove func(string)) []string {
	if len(names) == 0 {
		return names
	}
	at := l.random.in(len(names))
	if l.random.once(2) {
		at = len(names) - 1 - l.random.in(min(3, len(names)))
	}
	remove(names[at])
	return slices.Delete(names, at, at+1)
}

func (l *snapshotLeaks) deleteSingle(name string) {
	l.T.Helper()
	l.Retry("delete snapshot "+name, func(ctx context.Context) error {
		return testbed.IgnoreNotFound(l.api.VolumeSnapshots(l.Namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	})
	l.counts.add("snapshots-deleted")
}

func (l *snapshotLeaks) deleteGroup(name string) {
	l.T.Helper()
	l.Retry("delete group snapshot "+name, func(ctx context.Context) error {
		return testbed.IgnoreNotFound(l.api.VolumeGroupSnapshots(l.Namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	})
	l.counts.add("groups-deleted")
}

// disturb kills a half when it is time to, starts those that have ended, ends watches, has the driver end, and replaces a claim, now and then.
func (l *snapshotLeaks) disturb() {
	l.T.Helper()
	if now := time.Now(); now.After(l.nextKill) {
		h := l.halves[l.random.in(len(l.halves))]
		if !l.nextKill.IsZero() {
			h.kill()
			l.counts.add("kill " + h.name)
			h.startAt = now.Add(l.random.upTo(time.Second))
		}
		l.nextKill = now.Add(500*time.Millisecond + l.random.upTo(3*time.Second))
	}
	l.restart()
	switch l.random.in(40) {
	case 0:
		l.driver.crash()
	case 1:
		for _, h := range l.halves {
			h.proxy.EndWatches()
		}
		l.counts.add("watches ended")
	case 2:
		l.DeleteClaim(l.claims[0])
		l.claims = l.claims[1:]
		l.addClaim()
		l.counts.add("claims-deleted")
	}
}

// restart starts halves that have ended, as a kubelet does.
func (l *snapshotLeaks) restart() {
	for _, h := range l.halves {
		if h.hasEnded() && time.Now().After(h.startAt) {
			h.start()
		}
	}
}

// setFaults has the API server fail some requests of both halves.
func (l *snapshotLeaks) setFaults() {
	for _, h := range l.halves {
		h.proxy.SetFault(func(what string) (f apiproxy.Fault) {
			f.Delay = l.random.upTo(20 * time.Millisecond)
			switch l.random.in(100) {
			case 0, 1:
				f.Code = 429
			case 2:
				f.Code = 503
			case 3:
				f.Code = 500
			case 4, 5:
				f.Lost = !strings.HasPrefix(what, "watch ")
			case 6, 7:
				f.Delay = l.random.upTo(time.Second)
			default:
				return f
			}
			l.counts.add("api faults")
			return f
		})
	}
}

// heal ends all faults.
func (l *snapshotLeaks) heal() {
	l.T.Helper()
	for _, h := range l.halves {
		h.proxy.SetFault(nil)
	}
	l.driver.heal()
}
