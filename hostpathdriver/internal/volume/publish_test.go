package volume

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCheckPublish(t *testing.T) {
	capable := func(m AccessMode) Capability { return Capability{Access: AccessMount, Mode: m} }
	on := func(node string, m AccessMode) []Publication {
		return []Publication{{Node: node, Capability: capable(m)}}
	}
	cases := map[string]struct {
		reason    string
		published []Publication
		req       PublishRequest
		want      Verdict
		err       error
	}{
		"First":        {reason: "free volume", req: PublishRequest{Node: "n1", Capability: capable(SingleNodeWriter)}, want: Proceed},
		"Again":        {reason: "the same call", published: on("n1", SingleNodeWriter), req: PublishRequest{Node: "n1", Capability: capable(SingleNodeWriter)}, want: AlreadyDone},
		"ReadOnly":     {reason: "same node, other flag", published: on("n1", SingleNodeWriter), req: PublishRequest{Node: "n1", ReadOnly: true, Capability: capable(SingleNodeWriter)}, err: ErrExists},
		"OtherMode":    {reason: "same node, other capability", published: on("n1", SingleNodeWriter), req: PublishRequest{Node: "n1", Capability: capable(MultiNodeMultiWriter)}, err: ErrExists},
		"SecondNode":   {reason: "one node only", published: on("n1", SingleNodeWriter), req: PublishRequest{Node: "n2", Capability: capable(SingleNodeWriter)}, err: ErrInUse},
		"SecondMulti":  {reason: "many nodes", published: on("n1", MultiNodeMultiWriter), req: PublishRequest{Node: "n2", Capability: capable(MultiNodeMultiWriter)}, want: Proceed},
		"MixedSingle":  {reason: "the first one was promised to be alone", published: on("n1", SingleNodeWriter), req: PublishRequest{Node: "n2", Capability: capable(MultiNodeReaderOnly)}, err: ErrInUse},
		"MixedMulti":   {reason: "the second one wants to be alone", published: on("n1", MultiNodeReaderOnly), req: PublishRequest{Node: "n2", Capability: capable(SingleNodeWriter)}, err: ErrInUse},
		"ManyWritersX": {reason: "many writers of one node are one node", published: on("n1", SingleNodeMultiWriter), req: PublishRequest{Node: "n2", Capability: capable(SingleNodeMultiWriter)}, err: ErrInUse},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			v := &Volume{ID: "v", Published: c.published}
			got, err := v.CheckPublish(&c.req)
			if !errors.Is(err, c.err) || got != c.want {
				t.Errorf("%s: got %d, %v, want %d, %v", c.reason, got, err, c.want, c.err)
			}
			if errors.Is(err, ErrInUse) && !strings.Contains(err.Error(), "n1") {
				t.Errorf("%s: error %v must name the node n1", c.reason, err)
			}
		})
	}
}

func TestCheckStage(t *testing.T) {
	capability := Capability{Access: AccessMount, Mode: SingleNodeWriter}
	staged := NodeVolume{ID: "v", Stage: &Stage{Path: "/s", Capability: capability}}
	cases := map[string]struct {
		reason string
		known  NodeVolume
		want   Stage
		result Verdict
		err    error
	}{
		"First":     {reason: "not staged", known: NodeVolume{ID: "v"}, want: Stage{Path: "/s", Capability: capability}, result: Proceed},
		"Again":     {reason: "the same call", known: staged, want: Stage{Path: "/s", Capability: capability}, result: AlreadyDone},
		"OtherMode": {reason: "same path, other capability", known: staged, want: Stage{Path: "/s", Capability: Capability{Access: AccessMount, Mode: MultiNodeMultiWriter}}, err: ErrExists},
		"OtherPath": {reason: "a volume is staged once", known: staged, want: Stage{Path: "/t", Capability: capability}, err: ErrPrecondition},
		"Inline":    {reason: "inline volumes have no stage", known: NodeVolume{ID: "v", Ephemeral: &Ephemeral{}}, want: Stage{Path: "/s", Capability: capability}, err: ErrPrecondition},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := c.known.CheckStage(&c.want)
			if !errors.Is(err, c.err) || got != c.result {
				t.Errorf("%s: got %d, %v, want %d, %v", c.reason, got, err, c.result, c.err)
			}
		})
	}
}

// TestCheckTargetTable goes through the second table of CSI v1.13,
// "NodePublishVolume": every access mode, same or other path, same or other
// arguments.
func TestCheckTargetTable(t *testing.T) {
	many := map[AccessMode]bool{
		SingleNodeMultiWriter: true, MultiNodeReaderOnly: true, MultiNodeSingleWriter: true, MultiNodeMultiWriter: true,
	}
	for _, mode := range AccessModes() {
		first := Target{Path: "/t1", Source: "/s", Capability: Capability{Access: AccessMount, Mode: mode}}
		known := NodeVolume{ID: "v", Targets: []Target{first}}
		otherPath, otherArgs, otherBoth := first, first, first
		otherPath.Path, otherBoth.Path = "/t2", "/t2"
		otherArgs.ReadOnly, otherBoth.ReadOnly = true, true

		elsewhere, elsewhereErr := Refuse, ErrPrecondition
		if many[mode] {
			elsewhere, elsewhereErr = Proceed, nil
		}
		for _, c := range []struct {
			column string
			want   Target
			result Verdict
			err    error
		}{
			{"T1=T2, P1=P2", first, AlreadyDone, nil},
			{"T1=T2, P1!=P2", otherArgs, Refuse, ErrExists},
			{"T1!=T2, P1=P2", otherPath, elsewhere, elsewhereErr},
			{"T1!=T2, P1!=P2", otherBoth, elsewhere, elsewhereErr},
		} {
			t.Run(fmt.Sprintf("%s/%s", mode, c.column), func(t *testing.T) {
				got, err := known.CheckTarget(&c.want)
				if !errors.Is(err, c.err) || got != c.result {
					t.Errorf("got %d, %v, want %d, %v", got, err, c.result, c.err)
				}
			})
		}
	}
}

func TestCheckTargetArguments(t *testing.T) {
	first := Target{Path: "/t1", Source: "/s", Capability: Capability{Access: AccessMount, Mode: SingleNodeMultiWriter}}
	cases := map[string]struct {
		reason string
		change func(*Target)
		want   Verdict
		err    error
	}{
		"Staging":    {reason: "another staging path is another argument", change: func(x *Target) { x.Source = "/other" }, err: ErrExists},
		"Capability": {reason: "another mode is another argument", change: func(x *Target) { x.Capability.Mode = MultiNodeMultiWriter }, err: ErrExists},
		"MixedModes": {reason: "a lonely writer does not join others", change: func(x *Target) { x.Path = "/t2"; x.Capability.Mode = SingleNodeSingleWriter }, err: ErrPrecondition},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			known := NodeVolume{ID: "v", Targets: []Target{first}}
			want := first
			c.change(&want)
			got, err := known.CheckTarget(&want)
			if !errors.Is(err, c.err) || got != c.want {
				t.Errorf("%s: got %d, %v, want %d, %v", c.reason, got, err, c.want, c.err)
			}
		})
	}
}

func TestCheckInline(t *testing.T) {
	inline := NodeVolume{ID: "v", Ephemeral: &Ephemeral{Attributes: map[string]string{"size": "1Gi"}}}
	cases := map[string]struct {
		reason string
		known  NodeVolume
		req    *InlineRequest
		err    error
	}{
		"Same":         {reason: "the same call", known: inline, req: &InlineRequest{Attributes: map[string]string{"size": "1Gi"}}},
		"OtherPodName": {reason: "pod information is not compared", known: inline, req: &InlineRequest{Attributes: map[string]string{"size": "1Gi"}, Pod: "ns/other"}},
		"OtherSize":    {reason: "other attributes", known: inline, req: &InlineRequest{Attributes: map[string]string{"size": "2Gi"}}, err: ErrExists},
		"Persistent":   {reason: "an inline volume is not published as persistent", known: inline, err: ErrExists},
		"NotInline":    {reason: "nor the other way round", known: NodeVolume{ID: "v"}, req: &InlineRequest{}, err: ErrExists},
		"BothNot":      {reason: "two persistent ones", known: NodeVolume{ID: "v"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := c.known.CheckInline(c.req); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
		})
	}
}

func TestNodeVolumeClone(t *testing.T) {
	original := func() *NodeVolume {
		return &NodeVolume{ID: "v", Stage: &Stage{Path: "/s"}, Targets: []Target{{Path: "/t"}}}
	}
	n := original()
	c := n.Clone()
	c.Stage.Path = "/x"
	c.Targets[0].Path = "/x"
	if diff := cmp.Diff(original(), n); diff != "" {
		t.Errorf("a change of the clone reached the original (-want +got):\n%s", diff)
	}
	if !n.At("/s") || !n.At("/t") || n.At("/x") {
		t.Errorf("At: /s %t, /t %t, /x %t", n.At("/s"), n.At("/t"), n.At("/x"))
	}
	if n.Unused() || !(&NodeVolume{ID: "v"}).Unused() {
		t.Error("Unused: must be true only when nothing is left")
	}
}

// TestOneNodeWritesWithMultiNodeSingleWriter: the others attach read-only.
func TestOneNodeWritesWithMultiNodeSingleWriter(t *testing.T) {
	single, multi := Capability{Access: AccessMount, Mode: MultiNodeSingleWriter}, Capability{Access: AccessMount, Mode: MultiNodeMultiWriter}
	for name, c := range map[string]struct {
		reason    string
		published Publication
		want      PublishRequest
		err       error
	}{
		"TwoWriters":  {"one node writes", Publication{Node: "n1", Capability: single}, PublishRequest{Node: "n2", Capability: single}, ErrInUse},
		"OtherMode":   {"whichever capability says so", Publication{Node: "n1", Capability: single}, PublishRequest{Node: "n2", Capability: multi}, ErrInUse},
		"OtherModes":  {"whichever capability says so", Publication{Node: "n1", Capability: multi}, PublishRequest{Node: "n2", Capability: single}, ErrInUse},
		"Reader":      {"a reader beside the writer", Publication{Node: "n1", Capability: single}, PublishRequest{Node: "n2", Capability: single, ReadOnly: true}, nil},
		"FirstWriter": {"a writer beside a reader", Publication{Node: "n1", Capability: single, ReadOnly: true}, PublishRequest{Node: "n2", Capability: single}, nil},
		"ManyWriters": {"the mode that allows them", Publication{Node: "n1", Capability: multi}, PublishRequest{Node: "n2", Capability: multi}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			v := &Volume{ID: "v", Published: []Publication{c.published}}
			if _, err := v.CheckPublish(&c.want); !errors.Is(err, c.err) {
				t.Errorf("%s: %v, want %v", c.reason, err, c.err)
			}
		})
	}
}
