package topology

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// threeZones returns an index of zones a, b and c with two racks in each.
func threeZones(tb testing.TB) *Index {
	tb.Helper()
	keys := []string{"rack", "zone"}
	return indexOf(tb,
		testNode{"a1", "zone=a,rack=1", keys}, testNode{"a2", "zone=a,rack=2", keys},
		testNode{"b1", "zone=b,rack=1", keys}, testNode{"b2", "zone=b,rack=2", keys},
		testNode{"c1", "zone=c,rack=1", keys}, testNode{"c2", "zone=c,rack=2", keys},
	)
}

// TestUpstreamTable has every row of the table of external-provisioner:
// binding, strictness, allowedTopologies and --immediate-topology.
func TestUpstreamTable(t *testing.T) {
	all := []string{"rack=1,zone=a", "rack=1,zone=b", "rack=1,zone=c", "rack=2,zone=a", "rack=2,zone=b", "rack=2,zone=c"}
	zonesBC := allow(term(in("zone", "c", "b")))
	cases := map[string]struct {
		reason  string
		request Request
		want    answer
	}{
		"WaitStrict": {
			"requisite and preferred are the selected node's segment",
			Request{Policy: Policy{Strict: true, Immediate: true}, SelectedNode: "b2"},
			answer{[]string{"rack=2,zone=b"}, []string{"rack=2,zone=b"}},
		},
		"WaitStrictAllowed": {
			"allowedTopologies are checked only",
			Request{Policy: Policy{Strict: true, Immediate: true}, SelectedNode: "b2", AllowedTopologies: zonesBC},
			answer{[]string{"rack=2,zone=b"}, []string{"rack=2,zone=b"}},
		},
		"WaitAggregate": {
			"all segments, begun at the selected node's",
			Request{Policy: DefaultPolicy(), SelectedNode: "b2"},
			answer{all, []string{"rack=2,zone=b", "rack=2,zone=c", "rack=1,zone=a", "rack=1,zone=b", "rack=1,zone=c", "rack=2,zone=a"}},
		},
		"WaitAllowed": {
			"flattened allowedTopologies, begun at the one around the selected node",
			Request{Policy: DefaultPolicy(), SelectedNode: "c1", AllowedTopologies: zonesBC},
			answer{[]string{"zone=b", "zone=c"}, []string{"zone=c", "zone=b"}},
		},
		"WaitIgnoresImmediate": {
			"the immediate flag does not matter with a selected node",
			Request{Policy: Policy{Immediate: false}, SelectedNode: "a1"},
			answer{all, all},
		},
		"ImmediateAllowed": {
			"flattened allowedTopologies, begun by the claim's name",
			Request{Policy: DefaultPolicy(), ClaimName: "data-web-1", AllowedTopologies: zonesBC},
			rotated([]string{"zone=b", "zone=c"}, (fnv1("web")+1)%2),
		},
		"ImmediateAllowedNoFlag": {
			"the immediate flag does not matter with allowedTopologies",
			Request{Policy: Policy{Immediate: false}, ClaimName: "data-web-1", AllowedTopologies: zonesBC},
			rotated([]string{"zone=b", "zone=c"}, (fnv1("web")+1)%2),
		},
		"ImmediateAggregate": {
			"all segments, begun by the claim's name",
			Request{Policy: DefaultPolicy(), ClaimName: "my-claim"},
			rotated(all, fnv1("my-claim")%6),
		},
		"ImmediateNoFlag": {
			"nothing is required",
			Request{Policy: Policy{Immediate: false}, ClaimName: "my-claim"},
			answer{},
		},
		"ImmediateStrict": {
			"strict needs a selected node",
			Request{Policy: Policy{Strict: true, Immediate: true}, ClaimName: "data-web-2"},
			rotated(all, (fnv1("web")+2)%6),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ask(t, threeZones(t), tc.request)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got\n%s", tc.reason, diff)
			}
		})
	}
}

// rotated returns the answer whose preferred list begins at place start.
func rotated(list []string, start uint32) answer {
	preferred := append(append([]string{}, list[start:]...), list[:start]...)
	return answer{Requisite: list, Preferred: preferred}
}

func TestRequireErrors(t *testing.T) {
	cases := map[string]struct {
		reason  string
		nodes   []testNode
		request Request
		class   error
		says    []string
	}{
		"NodeGone": {
			"the claim goes back to the scheduler", nil,
			Request{SelectedNode: "n1"}, ErrNodeNotFound, []string{`"n1"`, "select another node"},
		},
		"NodeWithoutKeys": {
			"the driver advertises topology, but reports none", []testNode{{"n1", "zone=a", nil}},
			Request{SelectedNode: "n1"}, ErrNoTopology, []string{`"n1"`, testDriver, "accessible_topology"},
		},
		"StrictExcluded": {
			"the message shows the node's segment and the terms", []testNode{{"n1", "zone=a", []string{"zone"}}},
			Request{Policy: Policy{Strict: true}, SelectedNode: "n1", AllowedTopologies: allow(term(in("zone", "b", "c")))},
			ErrNotAllowed, []string{`"n1"`, "zone=a", "(zone in b, c)"},
		},
		"Excluded": {
			"without strict mode as well", []testNode{{"n1", "zone=a", []string{"zone"}}},
			Request{SelectedNode: "n1", AllowedTopologies: allow(term(in("zone", "b", "c")))},
			ErrNotAllowed, []string{`"n1"`, "zone=a", "(zone in b, c)"},
		},
		"FilterExcluded": {
			"the node is filtered out, others are not", []testNode{{"n1", "zone=a", []string{"zone"}}, {"n2", "zone=b", []string{"zone"}}},
			Request{Policy: Policy{FilterAllowed: true}, SelectedNode: "n1", AllowedTopologies: allow(term(in("zone", "b")))},
			ErrNotAllowed, []string{`"n1"`, "zone=a"},
		},
		"FilterKeepsNothing": {
			"a key that is no topology key excludes everything", []testNode{{"n1", "zone=a,room=1", []string{"zone"}}},
			Request{Policy: Policy{FilterAllowed: true, Immediate: true}, AllowedTopologies: allow(term(in("room", "1")))},
			ErrNotAllowed, []string{"(room in 1)"},
		},
		"EmptyTerms": {
			"terms without expressions select nothing", []testNode{{"n1", "zone=a", []string{"zone"}}},
			Request{AllowedTopologies: allow(term())}, ErrNotAllowed, []string{"no segment satisfies"},
		},
		"MalformedTerm": {
			"the value is named", []testNode{{"n1", "zone=a", []string{"zone"}}},
			Request{AllowedTopologies: allow(term(in("zone", "a b")))}, ErrInvalid, []string{`"a b"`, "term 1"},
		},
		"NoNodes": {
			"the driver is still rolling out", nil,
			Request{Policy: DefaultPolicy()}, ErrNoTopology, []string{"registered on no node", testDriver},
		},
		"NoKeys": {
			"the driver reports no keys anywhere", []testNode{{"n1", "zone=a", nil}},
			Request{Policy: DefaultPolicy()}, ErrNoTopology, []string{"without topology keys"},
		},
		"NoLabels": {
			"no node has the labels yet", []testNode{{"n1", "", []string{"zone"}}},
			Request{Policy: DefaultPolicy()}, ErrNoTopology, []string{"wait for the kubelets"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ask(t, indexOf(t, tc.nodes...), tc.request)
			if !errors.Is(err, tc.class) {
				t.Fatalf("%s: got %v, %v, want %v", tc.reason, got, err, tc.class)
			}
			for _, text := range tc.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%s: error %q does not say %q", tc.reason, err, text)
				}
			}
		})
	}
}

// TestMixedKeySets checks that claims without a selected node always get the
// same answer when nodes report different keys, which is random in
// external-provisioner.
func TestMixedKeySets(t *testing.T) {
	cases := map[string]struct {
		reason string
		nodes  []testNode
		want   []string
	}{
		"Majority": {
			"each key set counts on the nodes for which the driver reports its keys",
			[]testNode{{"n1", "zone=a", []string{"zone"}}, {"n2", "zone=b", []string{"zone"}}, {"n3", "zone=c,host=h", []string{"host", "zone"}}},
			[]string{"zone=a", "zone=b", "zone=c", "host=h,zone=c"},
		},
		"Apart": {
			"a node for which the driver reports other keys is not in the segments of these",
			[]testNode{{"n1", "zone=a,rack=1", []string{"zone", "rack"}}, {"n2", "zone=b,rack=1", []string{"zone", "rack"}}, {"n3", "zone=c", []string{"zone"}}, {"n4", "zone=d,rack=9", nil}},
			[]string{"zone=a", "zone=b", "zone=c", "rack=1,zone=a", "rack=1,zone=b"},
		},
		"Two": {
			"no key set is the first",
			[]testNode{{"n1", "zone=a", []string{"zone"}}, {"n2", "zone=b,host=h", []string{"zone", "host"}}},
			[]string{"zone=a", "zone=b", "host=h,zone=b"},
		},
		"Unlabelled": {
			"nodes that lack the labels are in no segment",
			[]testNode{{"n1", "zone=a", []string{"zone"}}, {"n2", "zone=b", []string{"host"}}, {"n3", "zone=b", []string{"host"}}},
			[]string{"zone=a"},
		},
		"Keyless": {
			"labels of nodes without keys do not count",
			[]testNode{{"n1", "zone=a", []string{"zone"}}, {"n2", "zone=b", nil}, {"n3", "zone=b", nil}},
			[]string{"zone=a"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, offset := range []int{0, 1, 2} {
				nodes := append(append([]testNode{}, tc.nodes[offset%len(tc.nodes):]...), tc.nodes[:offset%len(tc.nodes)]...)
				got, err := ask(t, indexOf(t, nodes...), Request{Policy: DefaultPolicy(), ClaimName: "claim"})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, got.Requisite); diff != "" {
					t.Errorf("%s: -want +got\n%s", tc.reason, diff)
				}
			}
		})
	}
}

func TestOnlyRegisteredNodesCount(t *testing.T) {
	x := indexOf(t, testNode{"n1", "zone=a", []string{"zone"}})
	x.SetNode("control-plane", map[string]string{"zone": "b"})
	x.SetNode("starting", map[string]string{"zone": "c"})
	x.SetCSINode("starting", false, nil)
	got, err := ask(t, x, Request{Policy: DefaultPolicy(), SelectedNode: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"zone=a"}, got.Requisite); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestFilterAllowed(t *testing.T) {
	policy := DefaultPolicy()
	policy.FilterAllowed = true
	cases := map[string]struct {
		reason  string
		request Request
		want    answer
	}{
		"Wait": {
			"the node's rack leads, other racks of the zone follow",
			Request{Policy: policy, SelectedNode: "b2", AllowedTopologies: allow(term(in("zone", "b")))},
			answer{[]string{"rack=1,zone=b", "rack=2,zone=b"}, []string{"rack=2,zone=b", "rack=1,zone=b"}},
		},
		"Immediate": {
			"the filter needs all segments, whatever the immediate flag says",
			Request{Policy: Policy{FilterAllowed: true}, ClaimName: "web-0", AllowedTopologies: allow(term(in("zone", "b")))},
			rotated([]string{"rack=1,zone=b", "rack=2,zone=b"}, fnv1("web")%2),
		},
		"NoTerms": {
			"nothing to filter by",
			Request{Policy: policy, SelectedNode: "a1"},
			rotated([]string{"rack=1,zone=a", "rack=1,zone=b", "rack=1,zone=c", "rack=2,zone=a", "rack=2,zone=b", "rack=2,zone=c"}, 0),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ask(t, threeZones(t), tc.request)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got\n%s", tc.reason, diff)
			}
		})
	}
}

func TestMaxSegments(t *testing.T) {
	cases := map[string]struct {
		reason  string
		limit   int
		request Request
		want    answer
	}{
		"Cut":      {"the selected node's segment stays", 2, Request{SelectedNode: "c2"}, answer{[]string{"rack=2,zone=c", "rack=1,zone=a"}, []string{"rack=2,zone=c", "rack=1,zone=a"}}},
		"Large":    {"a bound above the size changes nothing", 7, Request{SelectedNode: "c1", AllowedTopologies: allow(term(in("zone", "c")))}, answer{[]string{"zone=c"}, []string{"zone=c"}}},
		"Equal":    {"a bound of the size changes nothing", 1, Request{SelectedNode: "c1", AllowedTopologies: allow(term(in("zone", "c")))}, answer{[]string{"zone=c"}, []string{"zone=c"}}},
		"Negative": {"no bound", -1, Request{SelectedNode: "c1", AllowedTopologies: allow(term(in("zone", "c", "d")))}, answer{[]string{"zone=c", "zone=d"}, []string{"zone=c", "zone=d"}}},
		"NotPreferred": {"the cut goes by the name also when nothing is preferred", 1,
			Request{Policy: Policy{Spread: SpreadOff}, ClaimName: "web-1", AllowedTopologies: allow(term(in("zone", "a", "b")))},
			answer{rotated([]string{"zone=a", "zone=b"}, (fnv1("web")+1)%2).Preferred[:1], nil}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.request.MaxSegments = tc.limit
			got, err := ask(t, threeZones(t), tc.request)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got\n%s", tc.reason, diff)
			}
		})
	}
}

func TestClaimUIDStandsInForName(t *testing.T) {
	x := threeZones(t)
	unnamed, err := ask(t, x, Request{Policy: DefaultPolicy(), ClaimUID: "0b1c"})
	if err != nil {
		t.Fatal(err)
	}
	if want := rotated(unnamed.Requisite, fnv1("0b1c")%6); !cmp.Equal(want, unnamed) {
		t.Errorf("got %v, want %v", unnamed, want)
	}
	named, err := ask(t, x, Request{Policy: DefaultPolicy(), ClaimName: "claim", ClaimUID: "0b1c"})
	if err != nil {
		t.Fatal(err)
	}
	if want := rotated(named.Requisite, fnv1("claim")%6); !cmp.Equal(want, named) {
		t.Errorf("got %v, want %v", named, want)
	}
}

// TestRetryGetsTheSameAnswer checks that an answer depends on nothing but the
// request and the cluster, so that a restarted provisioner repeats it.
func TestRetryGetsTheSameAnswer(t *testing.T) {
	request := Request{Policy: DefaultPolicy(), ClaimName: "claim"}
	first, err := ask(t, threeZones(t), request)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		again, err := ask(t, threeZones(t), request)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, again); diff != "" {
			t.Fatalf("-first +again\n%s", diff)
		}
	}
}

// TestSourceAccessible has where the source of a volume can be reached, of the three zones with two racks each.
func TestSourceAccessible(t *testing.T) {
	strict := Policy{Strict: true, Immediate: true}
	zonesBC := allow(term(in("zone", "b", "c")))
	cases := map[string]struct {
		request    Request
		accessible []string
		want       answer
		err        error
	}{
		"TheSelectedNodeComesFirst": {
			Request{Policy: DefaultPolicy(), SelectedNode: "b2"}, []string{"zone=b"},
			answer{[]string{"rack=1,zone=b", "rack=2,zone=b"}, []string{"rack=2,zone=b", "rack=1,zone=b"}}, nil,
		},
		"ASelectedNodeElsewhereDoesNotCount": {
			Request{Policy: DefaultPolicy(), SelectedNode: "a1"}, []string{"zone=c", "rack=1,zone=b"},
			answer{[]string{"rack=1,zone=b", "rack=1,zone=c", "rack=2,zone=c"}, []string{"rack=1,zone=b", "rack=1,zone=c", "rack=2,zone=c"}}, nil,
		},
		"Strict": {
			Request{Policy: strict, SelectedNode: "b2"}, []string{"zone=b"},
			answer{[]string{"rack=2,zone=b"}, []string{"rack=2,zone=b"}}, nil,
		},
		"StrictElsewhere": {
			Request{Policy: strict, SelectedNode: "a1", AllowedTopologies: zonesBC}, []string{"rack=2,zone=c", "rack=2,zone=a"},
			answer{[]string{"rack=2,zone=c"}, []string{"rack=2,zone=c"}}, nil,
		},
		"StrictNowhere": {
			Request{Policy: strict, SelectedNode: "b1", AllowedTopologies: zonesBC}, []string{"zone=a"}, answer{}, ErrUnreachable,
		},
		"AllowedIsNarrowed": {
			Request{Policy: Policy{}, AllowedTopologies: zonesBC}, []string{"rack=1,zone=c", "zone=a"},
			answer{[]string{"rack=1,zone=c"}, []string{"rack=1,zone=c"}}, nil,
		},
		"AllowedExcludesIt": {
			Request{Policy: DefaultPolicy(), AllowedTopologies: zonesBC}, []string{"zone=a"}, answer{}, ErrUnreachable,
		},
		"NothingElseIsRequired": {
			Request{Policy: Policy{}}, []string{"zone=b", "zone=a"},
			answer{[]string{"zone=a", "zone=b"}, []string{"zone=b", "zone=a"}}, nil,
		},
		"NoNodeIsThere": {
			Request{Policy: DefaultPolicy(), SelectedNode: "a1"}, []string{"zone=d"}, answer{}, ErrUnreachable,
		},
		"Everywhere": {
			Request{Policy: strict, SelectedNode: "b2"}, []string{""},
			answer{[]string{"rack=2,zone=b"}, []string{"rack=2,zone=b"}}, nil,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, text := range tc.accessible {
				segment, err := Parse(text)
				if err != nil {
					t.Fatal(err)
				}
				tc.request.Accessible = append(tc.request.Accessible, segment)
			}
			got, err := ask(t, threeZones(t), tc.request)
			if !errors.Is(err, tc.err) {
				t.Fatalf("got error %v, want %v", err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); err == nil && diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
