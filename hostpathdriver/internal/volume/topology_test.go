package volume

import (
	"errors"
	"strings"
	"testing"
)

func onNode(names ...string) []Segment {
	segments := make([]Segment, 0, len(names))
	for _, name := range names {
		segments = append(segments, Segment{TopologyKey: name})
	}
	return segments
}

func TestPlacementChoose(t *testing.T) {
	zone := []Segment{{"topology.kubernetes.io/zone": "a"}}
	cases := map[string]struct {
		reason       string
		placement    Placement
		requirements Requirements
		want         string
		err          error
	}{
		"Disabled":           {reason: "without topology nothing counts", placement: Placement{Own: "n1"}, requirements: Requirements{Requisite: onNode("n2")}},
		"OwnNoRequirement":   {reason: "a driver with a node makes volumes for it", placement: Placement{Enabled: true, Own: "n1"}, want: "n1"},
		"OwnRequired":        {reason: "required and served", placement: Placement{Enabled: true, Own: "n1"}, requirements: Requirements{Requisite: onNode("n2", "n1")}, want: "n1"},
		"OwnNotRequired":     {reason: "upstream answers its own node all the same", placement: Placement{Enabled: true, Own: "n1"}, requirements: Requirements{Requisite: onNode("n2", "n3")}, err: ErrExhausted},
		"OwnOnlyPreferred":   {reason: "without requisite the preferred ones bind", placement: Placement{Enabled: true, Own: "n1"}, requirements: Requirements{Preferred: onNode("n2")}, err: ErrExhausted},
		"OwnNotPreferred":    {reason: "with requisite the preferred ones do not", placement: Placement{Enabled: true, Own: "n1"}, requirements: Requirements{Requisite: onNode("n1", "n2"), Preferred: onNode("n2")}, want: "n1"},
		"OwnForeignKey":      {reason: "a segment of another key is not reachable", placement: Placement{Enabled: true, Own: "n1"}, requirements: Requirements{Requisite: zone}, err: ErrExhausted},
		"FirstPreferred":     {reason: "the scheduler's choice comes first", placement: Placement{Enabled: true}, requirements: Requirements{Requisite: onNode("n1", "n2"), Preferred: onNode("n2", "n1")}, want: "n2"},
		"FirstRequisite":     {reason: "no preference", placement: Placement{Enabled: true}, requirements: Requirements{Requisite: onNode("n3", "n1")}, want: "n3"},
		"SkipsForeign":       {reason: "segments without the key say nothing", placement: Placement{Enabled: true}, requirements: Requirements{Preferred: zone, Requisite: onNode("n1")}, want: "n1"},
		"Everywhere":         {reason: "nothing required: every node reaches the shared directory", placement: Placement{Enabled: true}},
		"NoNode":             {reason: "a node has a directory, so its name must never be a path", placement: Placement{Enabled: true}, requirements: Requirements{Requisite: onNode("../../etc")}, err: ErrInvalid},
		"EverywhereByOthers": {reason: "only foreign keys: the same", placement: Placement{Enabled: true}, requirements: Requirements{Requisite: zone}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := c.placement.ChooseNode(c.requirements)
			if !errors.Is(err, c.err) || got != c.want {
				t.Errorf("%s: got %q, %v, want %q, %v", c.reason, got, err, c.want, c.err)
			}
		})
	}
}

func TestPlacementErrorNamesTheNodes(t *testing.T) {
	_, err := Placement{Enabled: true, Own: "n1"}.ChooseNode(Requirements{Requisite: onNode("n3", "n2", "n3")})
	if err == nil || !strings.Contains(err.Error(), "[n2 n3]") || !strings.Contains(err.Error(), "n1") {
		t.Errorf("error %v must name n1 and [n2 n3]", err)
	}
}

func TestRequirementsAllow(t *testing.T) {
	cases := map[string]struct {
		reason       string
		requirements Requirements
		node         string
		want         bool
	}{
		"None":           {reason: "no requirements", node: "n1", want: true},
		"Requisite":      {reason: "in the list", requirements: Requirements{Requisite: onNode("n1", "n2")}, node: "n2", want: true},
		"NotRequisite":   {reason: "not in the list", requirements: Requirements{Requisite: onNode("n1")}, node: "n2"},
		"Everywhere":     {reason: "reachable from every node", requirements: Requirements{Requisite: onNode("n1")}, node: "", want: true},
		"PreferredAlone": {reason: "binds without requisite", requirements: Requirements{Preferred: onNode("n1")}, node: "n2"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := c.requirements.Allow(c.node); got != c.want {
				t.Errorf("%s: Allow(%q) = %t, want %t", c.reason, c.node, got, c.want)
			}
		})
	}
}

func TestCheckReachable(t *testing.T) {
	if err := (&Volume{Node: "n1"}).CheckReachable("n1"); err != nil {
		t.Errorf("own node: %v", err)
	}
	if err := (&Volume{}).CheckReachable("n1"); err != nil {
		t.Errorf("everywhere: %v", err)
	}
	if err := (&Volume{Node: "n1"}).CheckReachable("n2"); !errors.Is(err, ErrPrecondition) {
		t.Errorf("another node: %v, want ErrPrecondition", err)
	}
}
