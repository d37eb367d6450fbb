package volume

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGroupRequestCheck(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     GroupRequest
		err    error
	}{
		"One":        {reason: "a group of one is a group", in: GroupRequest{Sources: []ID{"a"}}},
		"Two":        {reason: "nothing wrong", in: GroupRequest{Sources: []ID{"a", "b"}}},
		"None":       {reason: "nothing to make", in: GroupRequest{}, err: ErrInvalid},
		"Twice":      {reason: "one moment has one snapshot", in: GroupRequest{Sources: []ID{"a", "b", "a"}}, err: ErrInvalid},
		"Parameters": {reason: "the same as those of snapshots", in: GroupRequest{Sources: []ID{"a"}, Parameters: map[string]string{"x": "y"}}, err: ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := c.in.Check(); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
		})
	}
}

func testGroup() *Group {
	return &Group{
		ID: "g", Name: "group", Parameters: map[string]string{"ignoreFailedRead": "x"}, Members: []ID{"s1", "s2"},
		Snapshots: []*Snapshot{{ID: "s1", Source: "a"}, {ID: "s2", Source: "b"}},
	}
}

func TestGroupCheckSame(t *testing.T) {
	parameters := testGroup().Parameters
	cases := map[string]struct {
		reason string
		in     GroupRequest
		err    error
	}{
		"Same":            {reason: "what was asked for", in: GroupRequest{Sources: []ID{"a", "b"}, Parameters: parameters}},
		"OtherOrder":      {reason: "the order does not count", in: GroupRequest{Sources: []ID{"b", "a"}, Parameters: parameters}},
		"Fewer":           {reason: "a part is another group", in: GroupRequest{Sources: []ID{"a"}, Parameters: parameters}, err: ErrExists},
		"More":            {reason: "so is more", in: GroupRequest{Sources: []ID{"a", "b", "c"}, Parameters: parameters}, err: ErrExists},
		"Others":          {reason: "so are others", in: GroupRequest{Sources: []ID{"a", "c"}, Parameters: parameters}, err: ErrExists},
		"OtherParameters": {reason: "the specification names them", in: GroupRequest{Sources: []ID{"a", "b"}}, err: ErrExists},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := append([]ID(nil), c.in.Sources...)
			if err := testGroup().CheckSame(&c.in); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
			if diff := cmp.Diff(before, c.in.Sources); diff != "" {
				t.Errorf("comparing has sorted its argument:\n%s", diff)
			}
		})
	}
}

func TestGroupCheckMembers(t *testing.T) {
	cases := map[string]struct {
		reason string
		list   []ID
		err    error
	}{
		"Same":       {reason: "all of them", list: []ID{"s1", "s2"}},
		"OtherOrder": {reason: "in any order", list: []ID{"s2", "s1"}},
		"Unknown":    {reason: "nobody has listed them"},
		"Empty":      {reason: "a CO that lists none", list: []ID{}, err: ErrInvalid},
		"Fewer":      {reason: "one is missing", list: []ID{"s1"}, err: ErrInvalid},
		"More":       {reason: "one is too many", list: []ID{"s1", "s2", "s3"}, err: ErrInvalid},
		"Twice":      {reason: "one is missing, another there twice", list: []ID{"s1", "s1"}, err: ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := testGroup().CheckMembers(c.list)
			if !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
			if err != nil && !strings.Contains(err.Error(), "[s1 s2]") {
				t.Errorf("%s: %q does not name the members", c.reason, err)
			}
		})
	}
}

func TestGroupIsFillingWithAMember(t *testing.T) {
	g := testGroup()
	if g.Filling() {
		t.Error("a group of complete snapshots is filling")
	}
	g.Snapshots[1].Filling = true
	if !g.Filling() {
		t.Error("a group with an incomplete snapshot is not filling")
	}
}

func TestGroupCloneSharesNothing(t *testing.T) {
	g := testGroup()
	c := g.Clone()
	c.Parameters["ignoreFailedRead"], c.Members[0], c.Snapshots[0] = "y", "s9", nil
	if diff := cmp.Diff(testGroup(), g); diff != "" {
		t.Errorf("a change of the clone reached the original (-want +got):\n%s", diff)
	}
	if id, name := g.Key(); id != "g" || name != "group" || g.RecordID() != "g" {
		t.Errorf("key %q %q", id, name)
	}
}
