package volume_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/disk"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/fsgroup"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/recovery"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// TestRandom lets pods come and go while calls fail, hang and lose their answers, the driver comes
// and goes, and the agent is killed between any two side effects. At every moment a volume that is
// staged is in use and a volume that a living pod was given is published; in the end all claims of living pods are expanded,
// and nothing is left anywhere. A failure prints its seed: SEED=N repeats the run.
func TestRandom(t *testing.T) {
	all := seeds.All(t)
	if testing.Short() {
		all = all[:min(20, len(all))]
	}
	for _, seed := range all {
		if !t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) { randomRun(t, seed) }) {
			t.Fatalf("failed with seed %d", seed)
		}
	}
}

func randomRun(t *testing.T, seed uint64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := &gambler{
			world: newWorld(t, csitest.Options{}), rand: rand.New(rand.NewPCG(seed, seed)),
			alive: map[string][]volume.Publication{}, given: map[string]string{},
		}
		for _, h := range randomVolumes {
			g.driver.AddVolume(csitest.Volume{ID: h, Capacity: 1 << 30})
			g.addClaim(h)
		}
		g.notAttachable = "vol-3"
		g.changeGroup = g.gambleGroup
		g.start()
		for range 40 {
			g.step()
			g.check()
		}
		g.settle()
		g.halt()
	})
}

// randomVolumes need an attachment, except vol-3; vol-4 is a raw block volume.
var randomVolumes = []string{"vol-1", "vol-2", "vol-3", "vol-4"}

// gambler acts on a world at random.
type gambler struct {
	*world
	rand *rand.Rand
	// alive has what each living pod wants.
	alive map[string][]volume.Publication
	// given has the target paths that living pods were given, with their volume.
	given map[string]string
	pods  int
	vas   int
	// brokenGroups is how many changes of a group fail.
	brokenGroups int
}

func (g *gambler) step() {
	steps := []func(){
		g.createPod, g.createPod, g.createPod, g.deletePod, g.deletePod, g.breakCalls, g.breakCalls, g.driver.Heal,
		func() { g.breakCalls(); g.createPod(); g.pause(); g.deletePod() },
		func() { g.breakCalls(); g.restart() },
		g.flipDriver, g.breakGroups, g.armCrash, g.armCrash, g.restart, g.flipAttachment, g.flipAttachment,
		g.grow, g.grow, g.breakClaims, func() { g.grow(); time.Sleep(2 * time.Minute) },
		func() { g.breakCalls(); g.breakCalls(); time.Sleep(2 * time.Minute) },
	}
	steps[g.rand.IntN(len(steps))]()
	g.pause()
	if g.hasCrashed() {
		g.restart()
	}
}

// pause lasts between nothing and seconds: shorter and longer than the backoff.
func (g *gambler) pause() {
	longest := []int{1, 300, 3000}[g.rand.IntN(3)]
	time.Sleep(time.Duration(g.rand.IntN(longest)) * time.Millisecond)
	synctest.Wait()
}

func (g *gambler) createPod() {
	g.pods++
	name := fmt.Sprintf("pod-%d", g.pods)
	var wants []volume.Publication
	for _, h := range randomVolumes {
		if g.rand.IntN(2) == 0 {
			p := persistentOf(name, h)
			if h == "vol-4" {
				p = blockOf(name, h)
			}
			p.Claim = volume.Claim{Namespace: "ns", Name: h, UID: types.UID("claim-" + h)}
			p.ReadOnly = g.rand.IntN(4) == 0
			p.Volume.Attachable = h != "vol-3"
			p.Republish = g.rand.IntN(3) == 0
			if h != "vol-4" {
				p.ChangeGroup, p.FSGroup = g.rand.IntN(2) == 0, &aGroup
			}
			wants = append(wants, p)
		}
	}
	if g.rand.IntN(2) == 0 {
		wants = append(wants, inlineOf(name, "scratch"))
	}
	g.alive[name] = wants
	for _, p := range wants {
		g.m.Want(p)
	}
}

func (g *gambler) deletePod() {
	names := slices.Sorted(maps.Keys(g.alive))
	if len(names) == 0 {
		return
	}
	name := names[g.rand.IntN(len(names))]
	for _, p := range g.alive[name] {
		delete(g.given, g.target(p))
	}
	delete(g.alive, name)
	g.m.Drop(podOf(name))
}

func podOf(name string) volume.Pod {
	return volume.Pod{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}
}

func (g *gambler) breakCalls() {
	methods := []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "NodeGetCapabilities", "NodeExpandVolume"}
	all := []codes.Code{
		codes.Internal, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.InvalidArgument,
		codes.FailedPrecondition, codes.ResourceExhausted, codes.Unknown,
	}
	f := csitest.Fault{
		Method: methods[g.rand.IntN(len(methods))], Code: all[g.rand.IntN(len(all))], Times: 1 + g.rand.IntN(5),
	}
	switch f.Code {
	case codes.InvalidArgument, codes.FailedPrecondition: // a refusal has no effect, by its meaning
	default:
		f.After = g.rand.IntN(2) == 0
		f.Hang = g.rand.IntN(8) == 0
	}
	g.driver.Inject(f)
}

func (g *gambler) flipDriver() {
	g.set(func() { g.registered = !g.registered })
	g.m.DriverChanged(testDriver)
}

// flipAttachment attaches a volume, or detaches one that is not in use, as the controller would.
func (g *gambler) flipAttachment() {
	handle := []string{"vol-1", "vol-2", "vol-4"}[g.rand.IntN(3)]
	name := layout.Unique(testDriver, handle)
	detached := false
	g.set(func() {
		if g.attached[name] != nil && !g.inUse[name] {
			delete(g.attached, name)
			detached = true
		}
	})
	if !detached && !g.Attached(name) {
		g.vas++
		g.attach(handle, types.UID(fmt.Sprintf("va-%d", g.vas)))
	}
}

func (g *gambler) armCrash() {
	all := fault.All()
	g.set(func() { g.crashAt = all[g.rand.IntN(len(all))] })
}

func (g *gambler) hasCrashed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.crashed
}

// aGroup is the fsGroup of all pods.
var aGroup = int64(7)

func (g *gambler) breakGroups() { g.set(func() { g.brokenGroups = g.rand.IntN(4) }) }

// gambleGroup is a change of a group that may fail, in the middle or at once, and takes a second.
func (g *gambler) gambleGroup(ctx context.Context, _ fsgroup.Change, _ *atomic.Int64) (done fsgroup.Result, err error) {
	g.set(func() {
		if g.brokenGroups > 0 {
			g.brokenGroups--
			err = errors.New("input/output error")
		}
	})
	select {
	case <-ctx.Done():
		return done, ctx.Err()
	case <-time.After(time.Second):
		return done, err
	}
}

func (g *gambler) isGrouped(path string) (is bool) {
	g.set(func() { is = g.grouped[path] })
	return is
}

// restart kills the agent and starts another over what it has left.
func (g *gambler) restart() {
	g.halt()
	g.set(func() { g.crashed, g.crashAt = false, "" })
	found, err := recovery.Scan(g.root, func(string) ([]volume.MountPoint, error) { return nil, nil })
	if err != nil {
		g.t.Fatal(err)
	}
	for _, dir := range found.Unused {
		if err := (&disk.Disk{Root: g.root}).SweepStaging(dir); err != nil {
			g.t.Error(err)
		}
	}
	g.m = g.manager()
	g.m.Adopt(found.Volumes)
	g.set(func() { // what the publisher writes first
		clear(g.inUse)
		for _, name := range g.m.InUse() {
			g.inUse[name] = true
		}
	})
	for _, v := range found.Volumes {
		for _, k := range v.Targets {
			if name := string(k.Pod)[len("uid-"):]; g.alive[name] == nil {
				g.m.Drop(podOf(name))
			}
		}
	}
	g.start()
	g.pause() // the volumes of living pods are not known yet
	for _, name := range slices.Sorted(maps.Keys(g.alive)) {
		for _, p := range g.alive[name] {
			p.Running = g.given[g.target(p)] != ""
			g.m.Want(p)
		}
	}
}

func (g *gambler) target(p volume.Publication) string {
	if p.Volume.Device != "" {
		return g.root.DeviceTarget(p.Pod.UID, p.SpecName)
	}
	return g.root.Target(p.Pod.UID, p.SpecName)
}

// check looks at the invariants.
func (g *gambler) check() {
	synctest.Wait()
	if g.hasCrashed() {
		return // nobody is there to hold them
	}
	g.checkCalls()
	published := map[string]bool{}
	for _, v := range g.driver.Volumes() {
		for _, m := range v.Published {
			published[m.Path] = true
		}
		name := layout.Unique(testDriver, v.ID)
		g.set(func() {
			if len(v.Staged) > 0 && v.ID != "vol-3" && !g.inUse[name] {
				g.t.Errorf("volume %q is staged but not in use", v.ID)
			}
		})
	}
	for target, v := range g.given {
		if !published[target] {
			g.t.Errorf("volume %q was taken from a living pod: %s", v, target)
		}
	}
	for _, wants := range g.alive {
		for _, p := range wants {
			if st, ok := g.m.Status(p.Volume.Name, p.Key()); ok && st.Published {
				g.given[g.target(p)] = p.Volume.Name
				if p.ChangeGroup && !p.ReadOnly && !g.isGrouped(g.target(p)) {
					g.t.Errorf("volume %q was given to pod %q without its group", p.Volume.Name, p.Pod.Name)
				}
			}
		}
	}
}

// checkCalls looks for calls that took a volume from a living pod, if only for a moment.
func (g *gambler) checkCalls() {
	for _, c := range g.driver.Calls() {
		r, ok := c.Request.(*csi.NodeUnpublishVolumeRequest)
		if v := g.given[r.GetTargetPath()]; ok && v != "" {
			g.t.Errorf("volume %q of a living pod was unpublished: %s", v, r.GetTargetPath())
		}
	}
	g.driver.ResetCalls()
}

// settle lets everything work again and expects the pods to be served, and then to leave nothing.
func (g *gambler) settle() {
	g.driver.Heal()
	g.api.Heal()
	g.set(func() { g.brokenGroups = 0 })
	for _, h := range randomVolumes {
		g.handOver(h) // as a resizer does again with what was infeasible
	}
	g.restart()
	g.set(func() { g.registered = true })
	g.m.DriverChanged(testDriver)
	for _, h := range []string{"vol-1", "vol-2", "vol-4"} {
		if !g.Attached(layout.Unique(testDriver, h)) {
			g.attach(h, "va-last")
		}
	}
	time.Sleep(20 * time.Minute)
	g.check()
	for _, wants := range g.alive {
		for _, p := range wants {
			g.expectPublished(p, true)
		}
	}
	g.expectExpanded()
	for _, name := range slices.Sorted(maps.Keys(g.alive)) {
		delete(g.alive, name)
		g.m.Drop(podOf(name))
	}
	clear(g.given)
	time.Sleep(20 * time.Minute)
	synctest.Wait()
	g.cleanPods()
	g.expectClean()
}

// cleanPods does what package pods does when a pod has no volumes any more.
func (g *gambler) cleanPods() {
	dirs, err := filepath.Glob(filepath.Join(string(g.root), "pods", "*"))
	if err != nil {
		g.t.Fatal(err)
	}
	for _, dir := range dirs {
		if err := (&disk.Disk{Root: g.root}).CleanPod(types.UID(filepath.Base(dir))); err != nil {
			g.t.Error(err)
		}
	}
}
