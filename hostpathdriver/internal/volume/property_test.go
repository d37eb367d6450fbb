package volume

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// source returns random numbers whose seed is printed.
func source(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func pick[T any](random *rand.Rand, list []T) T {
	return list[random.IntN(len(list))]
}

// TestAttachmentsStayLegal does random attachments and detachments. However
// they come, a volume is on two nodes only when all its attachments allow
// that, and a repeated request never changes anything.
func TestAttachmentsStayLegal(t *testing.T) {
	random := source(t)
	nodes := []string{"n1", "n2", "n3"}
	v := &Volume{ID: "v"}
	verdicts := map[Verdict]int{}
	for range 20_000 {
		if random.IntN(4) == 0 && len(v.Published) > 0 {
			at := random.IntN(len(v.Published))
			v.Published = append(v.Published[:at:at], v.Published[at+1:]...)
			continue
		}
		req := PublishRequest{
			ID: "v", Node: pick(random, nodes), ReadOnly: random.IntN(2) == 0,
			Capability: Capability{Access: AccessMount, Mode: pick(random, AccessModes())},
		}
		verdict, err := v.CheckPublish(&req)
		verdicts[verdict]++
		if (err != nil) != (verdict == Refuse) {
			t.Fatalf("verdict %d with error %v", verdict, err)
		}
		if verdict == Proceed {
			v.Published = append(v.Published, Publication{Node: req.Node, ReadOnly: req.ReadOnly, Capability: req.Capability})
			if again, err := v.CheckPublish(&req); again != AlreadyDone || err != nil {
				t.Fatalf("the same request again: %d, %v", again, err)
			}
		}
		checkAttachments(t, v)
	}
	for _, verdict := range []Verdict{Refuse, Proceed, AlreadyDone} {
		if verdicts[verdict] == 0 {
			t.Errorf("verdict %d never came up", verdict)
		}
	}
}

func checkAttachments(t *testing.T, v *Volume) {
	t.Helper()
	seen := map[string]bool{}
	for _, p := range v.Published {
		if seen[p.Node] {
			t.Fatalf("node %s is there twice: %+v", p.Node, v.Published)
		}
		seen[p.Node] = true
		if len(v.Published) > 1 && !p.Capability.Mode.MultiNode() {
			t.Fatalf("%s shares the volume: %+v", p.Capability.Mode, v.Published)
		}
	}
}

// TestTargetsStayLegal is the same for the targets of one node.
func TestTargetsStayLegal(t *testing.T) {
	random := source(t)
	n := &NodeVolume{ID: "v"}
	for range 20_000 {
		if random.IntN(4) == 0 && len(n.Targets) > 0 {
			at := random.IntN(len(n.Targets))
			n.Targets = append(n.Targets[:at:at], n.Targets[at+1:]...)
			continue
		}
		want := Target{
			Path: fmt.Sprintf("/t%d", random.IntN(4)), Source: "/s", ReadOnly: random.IntN(2) == 0,
			Capability: Capability{Access: AccessMount, Mode: pick(random, AccessModes())},
		}
		verdict, err := n.CheckTarget(&want)
		if (err != nil) != (verdict == Refuse) {
			t.Fatalf("verdict %d with error %v", verdict, err)
		}
		if verdict == Proceed {
			n.Targets = append(n.Targets, want)
		}
		seen := map[string]bool{}
		for _, target := range n.Targets {
			if seen[target.Path] || (len(n.Targets) > 1 && !target.Capability.Mode.ManyTargets()) {
				t.Fatalf("illegal targets: %+v", n.Targets)
			}
			seen[target.Path] = true
		}
	}
}

// TestChosenNodesAreAllowed: whatever the requirements, a node that is chosen
// satisfies them, and the same volume satisfies the same request again.
func TestChosenNodesAreAllowed(t *testing.T) {
	random := source(t)
	segments := func() []Segment {
		list := make([]Segment, random.IntN(4))
		for i := range list {
			switch random.IntN(3) {
			case 0:
				list[i] = Segment{"zone": "a"}
			case 1:
				list[i] = Segment{TopologyKey: pick(random, []string{"n1", "n2", "n3"}), "zone": "a"}
			default:
				list[i] = Segment{TopologyKey: pick(random, []string{"n1", "n2", "n3"})}
			}
		}
		return list
	}
	chosen := map[string]int{}
	for range 20_000 {
		p := Placement{Enabled: true, Own: pick(random, []string{"", "n1"})}
		// The CO's preferred list is a permutation of the requisite one.
		r := Requirements{Requisite: segments()}
		r.Preferred = append(r.Preferred, r.Requisite...)
		random.Shuffle(len(r.Preferred), func(i, j int) { r.Preferred[i], r.Preferred[j] = r.Preferred[j], r.Preferred[i] })
		node, err := p.ChooseNode(r)
		if err != nil {
			if p.Own == "" || r.Allow(p.Own) {
				t.Fatalf("%+v refuses %+v: %v", p, r, err)
			}
			continue
		}
		chosen[node]++
		if !r.Allow(node) || (p.Own != "" && node != p.Own) {
			t.Fatalf("%+v chose %q for %+v", p, node, r)
		}
		v := &Volume{Node: node}
		if err := v.CheckSame(&CreateRequest{Requirements: r}); err != nil {
			t.Fatalf("the same request again: %v", err)
		}
	}
	if len(chosen) != 4 {
		t.Errorf("chosen: %v, want three nodes and none", chosen)
	}
}

// TestSizesAreAllowed: a size that is picked fits its range.
func TestSizesAreAllowed(t *testing.T) {
	random := source(t)
	const largest = 4 << 30
	picked := 0
	for range 20_000 {
		r := Range{Required: random.Int64N(6<<30) - 1<<28, Limit: random.Int64N(6<<30) - 1<<28}
		if random.IntN(3) == 0 {
			r.Limit = 0
		}
		size, err := r.Size(largest)
		if err != nil {
			continue
		}
		picked++
		if !r.Allow(size) || size <= 0 || size > largest {
			t.Fatalf("%+v: size %d", r, size)
		}
	}
	if picked == 0 {
		t.Error("no range was accepted")
	}
}
