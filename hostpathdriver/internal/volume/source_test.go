package volume

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSourceString(t *testing.T) {
	for want, s := range map[string]Source{`snapshot "s"`: {Snapshot: "s"}, `volume "v"`: {Volume: "v"}} {
		if s.String() != want {
			t.Errorf("%#v: %q, want %q", s, s, want)
		}
	}
}

func TestSourceIDs(t *testing.T) {
	cases := map[string]struct {
		in   *Source
		want []ID
	}{
		"None":     {},
		"Snapshot": {in: &Source{Snapshot: "s"}, want: []ID{"s"}},
		"Volume":   {in: &Source{Volume: "v"}, want: []ID{"v"}},
	}
	for name, c := range cases {
		if diff := cmp.Diff(c.want, c.in.IDs()); diff != "" {
			t.Errorf("%s: ids (-want +got):\n%s", name, diff)
		}
	}
}

func TestOrigin(t *testing.T) {
	v := &Volume{ID: "v", Capacity: 5, FSType: "xfs", Node: "n1", Filling: true}
	s := &Snapshot{ID: "s", Source: "v", Size: 5, Form: Form{Disk: true, FSType: "xfs"}, Node: "n1", Filling: true}
	image := Form{Disk: true, FSType: "xfs"}
	for name, c := range map[string]struct{ got, want *Origin }{
		"Volume":   {got: v.Origin(), want: &Origin{Source: Source{Volume: "v"}, Form: image, Size: 5, Node: "n1", Filling: true}},
		"Snapshot": {got: s.Origin(), want: &Origin{Source: Source{Snapshot: "s"}, Form: image, Size: 5, Node: "n1", Filling: true}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s: origin (-want +got):\n%s", name, diff)
		}
		if err := c.got.CheckFilled(); !errors.Is(err, ErrPrecondition) {
			t.Errorf("%s: error %v, want %v", name, err, ErrPrecondition)
		}
	}
	if err := v.CheckFilled(); !errors.Is(err, ErrPrecondition) {
		t.Errorf("volume: error %v, want %v", err, ErrPrecondition)
	}
	if err := (&Volume{}).CheckFilled(); err != nil {
		t.Errorf("a complete volume: %v", err)
	}
}

func TestOriginCheckCreate(t *testing.T) {
	const size = 1 << 20
	cases := map[string]struct {
		reason  string
		req     CreateRequest
		filling bool
		nowhere bool
		err     error
	}{
		"Unset":          {reason: "as large as the source"},
		"Same":           {reason: "the same size", req: CreateRequest{Range: Range{Required: size, Limit: size}}},
		"Larger":         {reason: "more is possible", req: CreateRequest{Range: Range{Required: 2 * size}}},
		"Smaller":        {reason: "the contents need their room", req: CreateRequest{Range: Range{Required: size - 1}}, err: ErrOutOfRange},
		"SmallerLimit":   {reason: "a limit below the source", req: CreateRequest{Range: Range{Limit: size - 1}}, err: ErrOutOfRange},
		"BetweenLimits":  {reason: "required below, limit above", req: CreateRequest{Range: Range{Required: 1, Limit: 2 * size}}, err: ErrOutOfRange},
		"Here":           {reason: "where the source is", req: CreateRequest{Requirements: Requirements{Requisite: onNode("n2", "n1")}}},
		"Elsewhere":      {reason: "the CO looks for another place", req: CreateRequest{Requirements: Requirements{Requisite: onNode("n2")}}, err: ErrExhausted},
		"FromEverywhere": {reason: "a source without node", req: CreateRequest{Requirements: Requirements{Requisite: onNode("n2")}}, nowhere: true},
		"Filling":        {reason: "nothing to copy yet", filling: true, err: ErrPrecondition},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := &Origin{Source: Source{Snapshot: "s"}, Size: size, Node: "n1", Filling: c.filling}
			if c.nowhere {
				o.Node = ""
			}
			if err := o.CheckCreate(&c.req); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
		})
	}
}
