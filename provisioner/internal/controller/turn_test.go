package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/provisioner/internal/view"
)

// newNode returns the node of an instance with the defaults of the binary.
func newNode() Node {
	return Node{Node: view.Node{Name: "n1", Segments: map[string]string{"node": "n1"}}, Immediate: true, BaseDelay: 20 * time.Second, MaxDelay: time.Minute}
}

func TestPlanNode(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	group := "example.com"
	cases := map[string]struct {
		reason string
		change func(s *claimState)
		want   claimVerb
		after  time.Duration
		why    string
	}{
		"WholeCluster": {reason: "Without a node there is no competition.", change: func(s *claimState) { s.node = Node{} }, want: claimCreate},
		"Own":          {reason: "A claim for the own node is provisioned.", change: selects("n1"), want: claimCreate},
		"OwnUnasked":   {reason: "Also where this node does not compete.", change: func(s *claimState) { selects("n1")(s); s.node.Immediate = false }, want: claimCreate},
		"OwnExcluded":  {reason: "Also where it would not have: CreateVolume decides.", change: func(s *claimState) { selects("n1")(s); s.excluded = errors.New("no") }, want: claimCreate},
		"LateUnselected": {
			reason: "The scheduler comes first.", change: func(s *claimState) { late(s.class) }, want: claimLeave, why: "no node was selected yet",
		},
		"LateOther": {
			reason: "With late binding there is no competition.", change: func(s *claimState) { late(s.class); selects("n2")(s); s.turn.gone = true }, want: claimLeave, why: `"n2"`,
		},
		"LateOwn": {reason: "With late binding the scheduler has selected.", change: func(s *claimState) { late(s.class); selects("n1")(s) }, want: claimCreate},
		"Off":     {reason: "The flag says not to compete.", change: func(s *claimState) { s.node.Immediate = false }, want: claimLeave, why: "left to other nodes"},
		"OffOther": {
			reason: "Nor to look after others.", change: func(s *claimState) { s.node.Immediate = false; selects("n2")(s) }, want: claimLeave, why: "left to other nodes",
		},
		"Excluded": {reason: "The class allows other nodes only.", change: func(s *claimState) { s.excluded = errors.New("not in zone") }, want: claimLeave, why: "not in zone"},
		"Populator": {
			reason: "A volume populator does it.",
			change: func(s *claimState) {
				s.claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: "Backup"}
			},
			want: claimLeave, why: "populator",
		},
		"New":        {reason: "The first look begins a turn.", change: func(*claimState) {}, want: claimBegin},
		"NewUnfit":   {reason: "A claim that is to be refused is refused by the node that takes it.", change: func(s *claimState) { s.caps.create = false }, want: claimBegin},
		"NotYet":     {reason: "A turn that is not due is waited for.", change: func(s *claimState) { s.turn.due = now.Add(3 * time.Second) }, want: claimDelay, after: 3 * time.Second},
		"Due":        {reason: "A turn that is due is taken.", change: func(s *claimState) { s.turn.due = now }, want: claimCompete},
		"Overtaken":  {reason: "Another node was faster: this turn is over.", change: func(s *claimState) { selects("n2")(s); s.turn.due = now }, want: claimBegin},
		"GivenBack":  {reason: "The other node has given it back: a new turn begins.", change: func(s *claimState) { s.turn = turn{holder: "n2", due: now} }, want: claimBegin},
		"Handed":     {reason: "The other node has given it to a third.", change: func(s *claimState) { selects("n3")(s); s.turn = turn{holder: "n2", due: now, gone: true} }, want: claimBegin},
		"HeldNotYet": {reason: "The other node gets time.", change: func(s *claimState) { selects("n2")(s); s.turn = turn{holder: "n2", due: now.Add(time.Second)} }, want: claimDelay, after: time.Second},
		"HeldLong":   {reason: "Then it is looked whether it exists.", change: func(s *claimState) { selects("n2")(s); s.turn = turn{holder: "n2", due: now} }, want: claimSeek},
		"HeldByGone": {reason: "If it does not, its claim is competed for.", change: func(s *claimState) { selects("n2")(s); s.turn = turn{holder: "n2", due: now, gone: true} }, want: claimCompete},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := claimState{driver: driver, caps: capabilities{create: true}, claim: newClaim(), class: newClass(), node: newNode(), now: now}
			tc.change(&s)
			got := planClaim(s)
			if got.verb != tc.want || got.after != tc.after || !strings.Contains(got.why, tc.why) || got.why == "" {
				t.Errorf("%s\nplan %+v, want verb %d after %v because of %q", tc.reason, got, tc.want, tc.after, tc.why)
			}
		})
	}
}

// selects returns a change that selects a node.
func selects(node string) func(*claimState) {
	return func(s *claimState) { s.claim.Annotations[view.AnnSelectedNode] = node }
}

// TestNoClaimIsServedByTwoNodes goes through all that a claim can say: of two nodes at most one asks for its volume, and
// none does before the claim names it.
func TestNoClaimIsServedByTwoNodes(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	flags(5, func(on func(int) bool) {
		for _, selected := range []string{"", "n1", "n2", "n3"} {
			creates := 0
			for _, name := range []string{"n1", "n2"} {
				s := claimState{driver: driver, caps: capabilities{create: true}, claim: newClaim(), class: newClass(), node: newNode(), now: now}
				s.node.Name, s.node.Immediate = name, on(0)
				if on(1) {
					late(s.class)
				}
				if selected != "" {
					selects(selected)(&s)
				}
				if on(2) {
					s.turn.due = now
				}
				if on(3) {
					s.turn.holder, s.turn.gone = selected, true
				}
				if on(4) {
					s.excluded = errors.New("no")
				}
				plan := planClaim(s)
				if plan.verb == claimCreate {
					creates++
					if selected != name {
						t.Errorf("node %s asks for a volume of a claim that names %q", name, selected)
					}
				}
				if plan.verb == claimCompete && (on(1) || !on(0) || on(4) || !on(2)) {
					t.Errorf("node %s competes: immediate %v, late %v, due %v, excluded %v", name, on(0), on(1), on(2), on(4))
				}
			}
			if creates > 1 {
				t.Errorf("a claim that names %q is served by %d nodes", selected, creates)
			}
		}
	})
}

// TestPauses follows the pauses of many claims: they double up to the longest, are shortened by less than the
// shortest, and nodes come apart.
func TestPauses(t *testing.T) {
	n := newNode()
	most := []time.Duration{20 * time.Second, 40 * time.Second, time.Minute, time.Minute, time.Minute}
	first := map[string]int{}
	for i := range 1000 {
		claim := types.UID(fmt.Sprintf("u%d", i))
		for tries, most := range most {
			if got := n.pause(claim, tries); got > most || got < most-n.BaseDelay || got <= 0 {
				t.Errorf("pause %d of claim %s is %v, want %v less at most %v", tries, claim, got, most, n.BaseDelay)
			}
		}
		fastest, least := "", time.Hour
		for _, name := range []string{"n1", "n2", "n3", "n4", "n5"} {
			n.Name = name
			if got := n.pause(claim, 0); got < least {
				fastest, least = name, got
			}
		}
		first[fastest]++
	}
	for name, count := range first {
		if count < 120 || count > 280 {
			t.Errorf("node %s is the first for %d of 1000 claims, want about 200", name, count)
		}
	}
}

// TestPausesNeverEnd tries pauses that are hardly any, and many attempts: a claim always comes back.
func TestPausesNeverEnd(t *testing.T) {
	for _, n := range []Node{
		{Node: view.Node{Name: "n"}, BaseDelay: 1, MaxDelay: 1}, {Node: view.Node{Name: "n"}, BaseDelay: time.Second, MaxDelay: time.Second}, {Node: view.Node{Name: "n"}, BaseDelay: 1, MaxDelay: 1 << 62},
	} {
		for _, tries := range []int{0, 1, 61, 62, 63, 64, 10000} {
			if got := n.pause("u", tries); got < soon || got > max(soon, n.MaxDelay) {
				t.Errorf("pause %d between %v and %v is %v", tries, n.BaseDelay, n.MaxDelay, got)
			}
		}
	}
}

func TestTurns(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	n := newNode()
	t.Run("Longer", func(t *testing.T) {
		at := n.firstTurn("u", now)
		warnings := 0
		for i := range 5 {
			next := n.nextTurn(at, "u", at.due)
			if next.tries != i+1 || next.due.Sub(at.due) != n.pause("u", i+1) {
				t.Errorf("turn %+v after %+v", next, at)
			}
			if n.worthWarning(next) {
				warnings++
				next.warned = true
				if next.tries != 2 {
					t.Errorf("the user is warned after %d pauses, want when they grow no more", next.tries)
				}
			}
			at = next
		}
		if warnings != 1 {
			t.Errorf("the user is warned %d times", warnings)
		}
	})
	t.Run("Held", func(t *testing.T) {
		at := turn{holder: "n2", due: now}
		next := n.afterHolderGone(at, "u", at.due)
		if want := (turn{holder: "n2", gone: true, due: at.due.Add(n.pause("u", 0))}); next != want {
			t.Errorf("turn %+v after the node was not found, want %+v", next, want)
		}
	})
	t.Run("Behind", func(t *testing.T) {
		for tries := range 5 {
			for i := range 100 {
				claim := types.UID(fmt.Sprint("u", i))
				mine := n.afterNoCapacity(turn{holder: "n3", gone: true, tries: tries, warned: true}, claim, now)
				other := Node{Node: view.Node{Name: "n2"}, BaseDelay: n.BaseDelay, MaxDelay: n.MaxDelay}.firstTurn(claim, now)
				if !mine.due.After(other.due) || mine.holder != "" || mine.gone || mine.tries != tries+1 || !mine.warned {
					t.Errorf("turn %+v of the node without capacity, and %+v of another one", mine, other)
				}
			}
		}
	})
}

func TestOffer(t *testing.T) {
	cases := map[string]struct {
		reason string
		offer  offer
		want   string
	}{
		"Unknown": {reason: "A driver that does not report its capacity is taken to have enough.", offer: offer{wanted: 5}},
		"Equal":   {reason: "Just enough is enough.", offer: offer{wanted: 5, available: 5, known: true}},
		"Nothing": {reason: "Nothing is enough for nothing.", offer: offer{known: true}},
		"Less":    {reason: "Less is not.", offer: offer{wanted: 5, available: 4, known: true}, want: `Node "n1" has not enough capacity for the volume: 4 bytes are available, 5 bytes are requested`},
		"Error":   {reason: "An error is not.", offer: offer{known: true, err: errors.New("disk\n gone")}, want: `GetCapacity failed on node "n1": disk gone`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.offer.insufficient("n1"); got != tc.want {
				t.Errorf("%s\ngot %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}
