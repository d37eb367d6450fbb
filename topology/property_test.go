package topology

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// event is one Node or CSINode event.
type event struct {
	name       string
	node       bool // of the Node object, not of the CSINode object
	deleted    bool
	labels     map[string]string
	registered bool
	keys       []string
}

func (e event) applyTo(x *Index) bool {
	switch {
	case e.node && e.deleted:
		return x.DeleteNode(e.name)
	case e.node:
		return x.SetNode(e.name, e.labels)
	case e.deleted:
		return x.DeleteCSINode(e.name)
	}
	return x.SetCSINode(e.name, e.registered, e.keys)
}

func (e event) applyToNaive(c naiveCluster) {
	switch {
	case e.node && e.deleted:
		delete(c.nodes, e.name)
	case e.node:
		c.nodes[e.name] = e.labels
	case e.deleted:
		delete(c.csiNodes, e.name)
	default:
		c.csiNodes[e.name] = naiveCSINode{registered: e.registered, keys: e.keys}
	}
}

func randomEvent(random *rand.Rand, nodes int) event {
	e := event{
		name:    fmt.Sprintf("n%d", random.IntN(nodes)),
		node:    random.IntN(2) == 0,
		deleted: random.IntN(8) == 0,
	}
	if e.node {
		e.labels = map[string]string{"noise": pick(random, "x", "y")}
		for _, key := range []string{"zone", "rack", "host"} {
			if random.IntN(8) > 0 {
				e.labels[key] = pick(random, "a", "b", "c")
			}
		}
		return e
	}
	e.registered = random.IntN(8) > 0
	e.keys = pick(random, nil, []string{"zone"}, []string{"zone"}, []string{"rack", "zone"},
		[]string{"zone", "rack"}, []string{"host"}, []string{"zone", "host", "zone"})
	return e
}

func randomRequest(random *rand.Rand, nodes int) Request {
	r := Request{
		Policy: Policy{
			Strict:        random.IntN(4) == 0,
			Immediate:     random.IntN(4) > 0,
			Spread:        pick(random, SpreadAnyName, SpreadAnyName, SpreadStatefulSets, SpreadOff),
			FilterAllowed: random.IntN(3) == 0,
			MaxSegments:   pick(random, 0, 0, 0, 1, 2, 5),
		},
		ClaimName: pick(random, "claim", "data-web-0", "data-web-1", "log-web-17", "x-1"),
	}
	if random.IntN(3) > 0 {
		r.SelectedNode = fmt.Sprintf("n%d", random.IntN(nodes))
	}
	if random.IntN(3) == 0 {
		for range 1 + random.IntN(3) {
			r.AllowedTopologies = append(r.AllowedTopologies, randomTerm(random))
		}
	}
	return r
}

func randomTerm(random *rand.Rand) corev1.TopologySelectorTerm {
	var t corev1.TopologySelectorTerm
	for _, key := range []string{"zone", "rack", "host"} {
		if random.IntN(2) == 0 {
			values := []string{"a", "b", "c", "d"}
			random.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
			t.MatchLabelExpressions = append(t.MatchLabelExpressions, in(key, values[:1+random.IntN(3)]...))
		}
	}
	return t
}

// ask returns the answer of the index in the form of the reference.
func ask(t *testing.T, x *Index, r Request) (answer, error) {
	t.Helper()
	requirement, err := x.Require(r)
	if err != nil && requirement != nil {
		t.Errorf("request %+v: got a requirement and error %v", r, err)
	}
	return answer{
		Requisite: texts(t, requirement.GetRequisite()),
		Preferred: texts(t, requirement.GetPreferred()),
	}, err
}

// compare checks an answer of the index against the reference.
func compare(t *testing.T, x *Index, c naiveCluster, r Request) {
	t.Helper()
	want, wantErr := c.require(r)
	got, err := ask(t, x, r)
	if !errors.Is(err, wantErr) {
		t.Fatalf("request %+v\ncluster %+v\ngot error %v, want %v", r, c, err, wantErr)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("request %+v\ncluster %+v\n-want +got\n%s", r, c, diff)
	}
}

func segmentTexts(x *Index) []string {
	var result []string
	for _, s := range x.Segments() {
		result = append(result, s.String())
	}
	return result
}

// TestAgainstNaive feeds random events, in whatever order, to the index and to
// the reference, and compares all answers after each.
func TestAgainstNaive(t *testing.T) {
	random := newRand(t)
	for range 60 {
		nodes := 1 + random.IntN(8)
		x := New(testDriver)
		c := naiveCluster{nodes: map[string]map[string]string{}, csiNodes: map[string]naiveCSINode{}}
		for range 60 {
			before := segmentTexts(x)
			e := randomEvent(random, nodes)
			changed := e.applyTo(x)
			e.applyToNaive(c)
			after := segmentTexts(x)
			if diff := cmp.Diff(c.segments(), after); diff != "" {
				t.Fatalf("segments after event %+v: -want +got\n%s", e, diff)
			}
			if changed == slices.Equal(before, after) {
				t.Fatalf("event %+v: changed = %v, segments before %q, after %q", e, changed, before, after)
			}
			for range 4 {
				compare(t, x, c, randomRequest(random, nodes))
			}
		}
	}
}

// TestEventOrderDoesNotMatter checks that the same state is reached through
// any order of events, with detours and repetitions.
func TestEventOrderDoesNotMatter(t *testing.T) {
	random := newRand(t)
	for range 100 {
		const nodes = 6
		c := naiveCluster{nodes: map[string]map[string]string{}, csiNodes: map[string]naiveCSINode{}}
		for range 3 * nodes {
			e := randomEvent(random, nodes)
			e.applyToNaive(c)
		}
		straight, winding := New(testDriver), New(testDriver)
		for range 30 {
			randomEvent(random, nodes).applyTo(winding)
		}
		for _, e := range finalEvents(random, c, nodes) {
			e.applyTo(winding)
			winding.State()
		}
		for _, e := range finalEvents(random, c, nodes) {
			e.applyTo(straight)
		}
		if diff := cmp.Diff(straight.State(), winding.State()); diff != "" {
			t.Fatalf("cluster %+v: state differs: %s", c, diff)
		}
		for range 20 {
			r := randomRequest(random, nodes)
			compare(t, straight, c, r)
			compare(t, winding, c, r)
		}
	}
}

// finalEvents returns, in random order, events that lead to the cluster from
// any state.
func finalEvents(random *rand.Rand, c naiveCluster, nodes int) []event {
	var events []event
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		labels, hasNode := c.nodes[name]
		csiNode, hasCSINode := c.csiNodes[name]
		events = append(events,
			event{name: name, node: true, deleted: !hasNode, labels: labels},
			event{name: name, deleted: !hasCSINode, registered: csiNode.registered, keys: csiNode.keys})
	}
	random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	return events
}

// TestRequestOrderDoesNotMatter checks that terms, expressions and values of
// allowedTopologies may come in any order.
func TestRequestOrderDoesNotMatter(t *testing.T) {
	random := newRand(t)
	x := New(testDriver)
	for i := range 20 {
		name := fmt.Sprintf("n%d", i)
		x.SetNode(name, map[string]string{"zone": pick(random, "a", "b", "c"), "rack": pick(random, "a", "b", "c")})
		x.SetCSINode(name, true, []string{"zone", "rack"})
	}
	for range 300 {
		r := randomRequest(random, 20)
		want, wantErr := ask(t, x, r)
		r.AllowedTopologies = shuffled(random, r.AllowedTopologies)
		got, err := ask(t, x, r)
		if !errors.Is(err, class(wantErr)) {
			t.Fatalf("request %+v: got error %v, want %v", r, err, wantErr)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("request %+v: order matters: -want +got\n%s", r, diff)
		}
	}
}

func shuffled(random *rand.Rand, terms []corev1.TopologySelectorTerm) []corev1.TopologySelectorTerm {
	result := make([]corev1.TopologySelectorTerm, len(terms))
	for to, from := range random.Perm(len(terms)) {
		source := terms[from].DeepCopy()
		expressions := source.MatchLabelExpressions
		random.Shuffle(len(expressions), func(i, j int) { expressions[i], expressions[j] = expressions[j], expressions[i] })
		for _, e := range expressions {
			random.Shuffle(len(e.Values), func(i, j int) { e.Values[i], e.Values[j] = e.Values[j], e.Values[i] })
		}
		result[to] = *source
	}
	return result
}

// TestRequirementLaws checks what CSI v1.13, message TopologyRequirement,
// demands of every requirement, and seed 001 of the preferred list.
func TestRequirementLaws(t *testing.T) {
	random := newRand(t)
	x := New(testDriver)
	for range 200 {
		randomEvent(random, 12).applyTo(x)
	}
	for range 1000 {
		r := randomRequest(random, 12)
		a, err := ask(t, x, r)
		if err != nil || a.Requisite == nil {
			continue
		}
		seen := map[string]bool{}
		for _, text := range a.Requisite {
			if seen[text] {
				t.Fatalf("request %+v: %q is twice in requisite", r, text)
			}
			seen[text] = true
		}
		if a.Preferred == nil && (r.SelectedNode != "" || r.Spread == SpreadAnyName) {
			t.Fatalf("request %+v: nothing preferred", r)
		}
		if a.Preferred != nil && len(a.Preferred) != len(a.Requisite) {
			t.Fatalf("request %+v: %d preferred of %d requisite", r, len(a.Preferred), len(a.Requisite))
		}
		for _, text := range a.Preferred {
			if !seen[text] {
				t.Fatalf("request %+v: preferred %q is not requisite, or twice", r, text)
			}
			delete(seen, text)
		}
	}
}
