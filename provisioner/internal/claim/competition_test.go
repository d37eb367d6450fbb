package claim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/reconciletest"
	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// fleet is one instance on each node, with a driver of its own, at one API server.
type fleet struct {
	*chaos
	// base is the shortest pause of the competition.
	base  time.Duration
	nodes map[string]*member
	// recorded says that the instances keep records on claims.
	recorded bool
	// moved says that a scheduler selects other nodes for claims whose volume is under way.
	moved bool
}

// member is one node.
type member struct {
	driver *csitest.Driver
	// segment is the part of the topology that the node is in, empty for one of its own.
	segment string
	conn    *cutConn
	session *kubetest.Session
	cancel  context.CancelFunc
	ended   chan error
	// dead says that the node does not exist any more.
	dead bool
}

// onFleet runs five nodes, each with that capacity in bytes.
func onFleet(t *testing.T, base time.Duration, capacity int64, recorded bool, random *rand.Rand, play func(t *testing.T, f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{chaos: &chaos{t: t, random: random, cluster: kubeapitest.NewCluster(fixtures.Class())}, base: base, recorded: recorded, nodes: map[string]*member{}}
		for i := range 5 {
			name := fmt.Sprintf("n%d", i)
			f.apply(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			f.nodes[name] = &member{driver: csitest.New(csitest.Options{NodeID: name, Topology: map[string]string{"node": name}, Capacity: capacity})}
			f.start(name)
		}
		synctest.Wait()
		play(t, f)
		for name, m := range f.nodes {
			if !m.dead {
				f.stop(name)
			}
		}
	})
}

// names returns the nodes that exist.
func (f *fleet) names() []string {
	names := slices.DeleteFunc(slices.Collect(maps.Keys(f.nodes)), func(name string) bool { return f.nodes[name].dead })
	slices.Sort(names)
	return names
}

// start runs the instance of a node.
func (f *fleet) start(name string) {
	m := f.nodes[name]
	ctx, cancel := context.WithCancel(fixtures.Quiet(f.t))
	m.session, m.cancel, m.ended = f.cluster.NewSession(), cancel, make(chan error, 1)
	m.conn = &cutConn{ClientConnInterface: m.driver.Conn()}
	env := &reconciletest.Env{
		Kube: m.session.Client(), Conn: m.conn, Driver: m.driver, Cluster: f.cluster,
		Args: map[string]string{"node": name, "base": f.base.String(), "value": cmp.Or(m.segment, name)},
	}
	go func() { m.ended <- runController(ctx, env) }()
}

// stop ends the instance of a node.
func (f *fleet) stop(name string) {
	f.t.Helper()
	f.nodes[name].cancel()
	if err := <-f.nodes[name].ended; err != nil && !f.nodes[name].dead {
		f.t.Errorf("the instance of node %s ended with %v", name, err)
	}
}

// kill takes a node away, with its instance and its volumes.
func (f *fleet) kill(name string) {
	f.t.Helper()
	f.nodes[name].dead = true
	f.crash(name)
	f.remove("nodes", "", name)
}

// crash ends the instance of a node, which cannot finish anything.
func (f *fleet) crash(name string) {
	f.t.Helper()
	m := f.nodes[name]
	m.session.Cut()
	m.conn.cut.Store(true)
	m.cancel()
	<-m.ended
}

// claimOf returns the name of a claim. Instances end and start again here, and what a process knows about a volume that may
// exist ends with it: so one half of the claims meets only outcomes that are unknown, and the other half only failures.
func claimOf(i int) string {
	return fmt.Sprintf("c%03d-%s", i, []string{"even", "odd"}[i%2])
}

// order makes claims.
func (f *fleet) order(from, to int) {
	for i := from; i < to; i++ {
		f.claimNamed(claimOf(i), "u-"+claimOf(i))
	}
}

// pass lets time go by, and the controller manager work.
func (f *fleet) pass(minutes int) {
	for range minutes {
		time.Sleep(time.Minute)
		f.manage()
	}
}

// settled compares claims, PersistentVolumes and the volumes of all nodes: each claim has one volume, on the node that its
// PersistentVolume names, and there are no others.
func (f *fleet) settled(claims int) {
	f.t.Helper()
	home := map[string]string{}
	for _, obj := range f.cluster.Objects("persistentvolumes") {
		if pv, ok := obj.(*corev1.PersistentVolume); ok {
			home[pv.Name] = pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
		}
	}
	for _, obj := range f.cluster.Objects("persistentvolumeclaims") {
		claim, ok := obj.(*corev1.PersistentVolumeClaim)
		if name := "pvc-" + string(obj.GetUID()); !ok || home[name] == "" || home[name] != view.SelectedNode(claim) && !f.moved {
			f.t.Errorf("volume %q is on node %q, its claim was taken by %q", name, home[name], view.SelectedNode(claim))
		}
	}
	if len(home) != claims {
		f.t.Errorf("%d PersistentVolumes, want %d", len(home), claims)
	}
	found := 0
	for name, m := range f.nodes {
		for _, v := range m.driver.Volumes() {
			if home[v.Name] == name {
				found++
			} else if !m.dead {
				f.t.Errorf("volume %q on node %s is leaked, its claim has one on node %q; events on the CSIDriver: %q", v.Name, name, home[v.Name], f.eventsOn("CSIDriver"))
			}
		}
	}
	if found != claims {
		f.t.Errorf("%d volumes of PersistentVolumes, want %d", found, claims)
	}
}

// calledAt counts the calls of a method on all nodes.
func (f *fleet) calledAt(method string) map[string]int {
	count := map[string]int{}
	for _, m := range f.nodes {
		for _, call := range m.driver.Calls() {
			switch request := call.Request.(type) {
			case *csi.CreateVolumeRequest:
				if method == "CreateVolume" {
					count[request.GetName()]++
				}
			case *csi.DeleteVolumeRequest:
				if method == "DeleteVolume" {
					count[request.GetVolumeId()]++
				}
			}
		}
	}
	return count
}

// once fails the test unless a method was called once for each of so many volumes.
func (f *fleet) once(method string, volumes int) {
	f.t.Helper()
	count := f.calledAt(method)
	if len(count) != volumes {
		f.t.Errorf("%s was called for %d volumes, want %d", method, len(count), volumes)
	}
	for volume, n := range count {
		if n != 1 {
			f.t.Errorf("%s was called %d times for volume %q", method, n, volume)
		}
	}
}

// TestCompetition has five nodes compete for 200 claims: each claim is taken by one of them, costs one update, and its volume
// is made, and deleted, on that node alone. All nodes get their share.
func TestCompetition(t *testing.T) {
	const n = 200
	onFleet(t, 20*time.Second, 0, false, nil, func(t *testing.T, f *fleet) {
		f.order(0, n)
		f.pass(2)
		f.settled(n)
		f.once("CreateVolume", n)
		if got := f.tally()["update persistentvolumeclaims"]; got != n {
			t.Errorf("%d updates of %d claims, want one of each", got, n)
		}
		for name, m := range f.nodes {
			if share := len(m.driver.Volumes()); share < n/20 || share > n/2 {
				t.Errorf("node %s has %d volumes of %d, want about a fifth", name, share, n)
			}
		}
		for i := range n {
			f.remove("persistentvolumeclaims", "team", claimOf(i))
		}
		f.pass(2)
		f.settled(0)
		f.once("DeleteVolume", n)
	})
}

// TestConflictsLoseNothing has all nodes take all claims at the same moment, at a slow API: one of them is let through.
func TestConflictsLoseNothing(t *testing.T) {
	const n = 50
	onFleet(t, time.Nanosecond, 0, false, nil, func(t *testing.T, f *fleet) {
		f.cluster.Inject(kubetest.Fault{Verb: "update", Resource: "persistentvolumeclaims", Delay: 20 * time.Millisecond})
		f.order(0, n)
		f.pass(5)
		conflicts, taken := 0, 0
		for _, w := range f.cluster.Writes() {
			switch {
			case w.Resource != "persistentvolumeclaims":
			case apierrors.IsConflict(w.Err):
				conflicts++
			case w.Err == nil && w.Verb == "update":
				taken++
			}
		}
		if conflicts < n || taken != n {
			t.Errorf("%d conflicts and %d updates, want many conflicts and %d updates", conflicts, taken, n)
		}
		f.settled(n)
		f.once("CreateVolume", n)
	})
}

// TestCompetitionUnderStress lets nodes run out of capacity, restart and disappear, and the API and the drivers fail, while claims are
// made: in the end each claim has one volume, and no node has another.
func TestCompetitionUnderStress(t *testing.T) {
	for name, recorded := range map[string]bool{"Unrecorded": false, "Recorded": true} {
		t.Run(name, func(t *testing.T) {
			seeds.Each(t, func(t *testing.T, seed uint64) { stress(t, recorded, seed) })
		})
	}
}

// stress plays one game, with records on claims or without; with them, instances do not end by themselves but are killed. There is
// capacity for 240 volumes on four nodes, so that the last claims have to search.
func stress(t *testing.T, recorded bool, seed uint64) {
	t.Helper()
	const n = 200
	onFleet(t, 5*time.Second, 60<<30, recorded, rand.New(rand.NewPCG(seed, 0)), func(_ *testing.T, f *fleet) {
		for i := range 20 {
			f.order(10*i, 10*i+10)
			for range 3 {
				f.disturb()
				time.Sleep(time.Duration(f.random.IntN(10000)) * time.Millisecond)
				f.manage()
			}
			if i == 10 {
				f.kill("n4")
			}
		}
		f.cluster.Heal()
		for _, m := range f.nodes {
			m.driver.Heal()
		}
		f.pass(75) // a claim in doubt on a node that is full by now waits for an hour
		f.settled(n)
	})
}

// TestHandOvers has a scheduler select one node after the other for claims with late binding, while drivers leave open what has
// become of their volumes: wherever a volume is made in the end, all others are deleted.
func TestHandOvers(t *testing.T) {
	for name, recorded := range map[string]bool{"Unrecorded": false, "Recorded": true} {
		t.Run(name, func(t *testing.T) {
			seeds.Each(t, func(t *testing.T, seed uint64) { handOver(t, recorded, seed) })
		})
	}
}

func handOver(t *testing.T, recorded bool, seed uint64) {
	t.Helper()
	const n = 60
	onFleet(t, time.Second, 0, recorded, rand.New(rand.NewPCG(seed, 0)), func(_ *testing.T, f *fleet) {
		class := fixtures.Class()
		late(class)
		f.apply(class)
		f.moved = true
		f.order(0, n)
		for i := range 400 {
			f.schedule()
			if f.recorded && i%20 == 0 {
				name := f.names()[f.random.IntN(len(f.names()))]
				f.crash(name)
				f.start(name)
			}
			if i%4 == 0 {
				f.doubt()
			}
			if time.Sleep(time.Duration(f.random.IntN(500)) * time.Millisecond); i%3 == 0 {
				f.manage()
			}
		}
		for _, m := range f.nodes {
			m.driver.Heal()
		}
		for range n {
			f.schedule()
		}
		f.pass(30)
		f.assignNodes()
		f.pass(30)
		f.settled(n)
	})
}

// unbound returns the claims without a volume.
func (f *fleet) unbound() []*corev1.PersistentVolumeClaim {
	var found []*corev1.PersistentVolumeClaim
	for _, obj := range f.cluster.Objects("persistentvolumeclaims") {
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok && claim.Spec.VolumeName == "" {
			found = append(found, claim)
		}
	}
	return found
}

// schedule selects some node for a claim without a volume.
func (f *fleet) schedule() {
	if claims := f.unbound(); len(claims) > 0 {
		f.selectFor(claims[f.random.IntN(len(claims))])
	}
}

// assignNodes selects a node for all claims that have none.
func (f *fleet) assignNodes() {
	for _, claim := range f.unbound() {
		if view.SelectedNode(claim) == "" {
			f.selectFor(claim)
		}
	}
}

// selectFor selects some node for a claim.
func (f *fleet) selectFor(claim *corev1.PersistentVolumeClaim) {
	names := f.names()
	claim.Annotations[view.AnnSelectedNode] = names[f.random.IntN(len(names))]
	f.apply(claim)
}

// doubt makes the next CreateVolume calls of a node fail with an unknown outcome, with or without effect.
func (f *fleet) doubt() {
	names := f.names()
	f.nodes[names[f.random.IntN(len(names))]].driver.Inject(csitest.Fault{
		Method: "CreateVolume", Times: 1 + f.random.IntN(3), After: f.random.IntN(2) == 0, Delay: time.Duration(f.random.IntN(1500)) * time.Millisecond,
		Code: []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Aborted}[f.random.IntN(3)],
	})
}

// disturb does one thing that goes wrong.
func (f *fleet) disturb() {
	names := f.names()
	name := names[f.random.IntN(len(names))]
	switch f.random.IntN(6) {
	case 0:
		if f.recorded {
			f.crash(name)
		} else {
			f.stop(name)
		}
		f.start(name)
	case 1:
		f.cluster.BreakWatches()
	case 2:
		f.cluster.Inject(f.fault())
	case 3:
		f.nodes[name].driver.Inject(csitest.Fault{
			Method: "CreateVolume", Times: 1 + f.random.IntN(3), After: f.random.IntN(2) == 0,
			Match: ofHalf("even"),
			Code:  []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Aborted}[f.random.IntN(3)],
		})
	case 4:
		f.nodes[name].driver.Inject(csitest.Fault{Method: "CreateVolume", Times: 1 + f.random.IntN(3), Code: codes.ResourceExhausted, Match: ofHalf("odd")})
	case 5:
		f.nodes[name].driver.Inject(csitest.Fault{Method: "GetCapacity", Times: 1 + f.random.IntN(3), Code: codes.Internal})
	}
}

// fault returns something that goes wrong on the way to the API server when a claim is taken or given back.
func (f *fleet) fault() kubetest.Fault {
	return kubetest.Fault{
		Verb: []string{"get", "update"}[f.random.IntN(2)], Resource: "persistentvolumeclaims", Times: 1 + f.random.IntN(5), After: f.random.IntN(2) == 0,
		Err: []error{apierrors.NewServiceUnavailable("away"), apierrors.NewTooManyRequests("busy", 1)}[f.random.IntN(2)],
	}
}
