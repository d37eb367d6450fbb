package nodemode

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// newPauses returns those of a node with the defaults of the binary.
func newPauses() pauses { return pauses{node: "n1", base: 20 * time.Second, max: time.Minute} }

func TestNext(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	cases := map[string]struct {
		reason string
		turn   turn
		holder string
		want   step
	}{
		"New":        {reason: "The first look begins a turn.", want: begin},
		"NotYet":     {reason: "A turn that is not due is waited for.", turn: turn{due: now.Add(3 * time.Second)}, want: wait},
		"Due":        {reason: "A turn that is due is taken.", turn: turn{due: now}, want: take},
		"Overtaken":  {reason: "Another node was faster: this turn is over.", turn: turn{due: now}, holder: "n2", want: begin},
		"GivenBack":  {reason: "The other node has given it back: a new turn begins.", turn: turn{holder: "n2", due: now}, want: begin},
		"Handed":     {reason: "The other node has given it to a third.", turn: turn{holder: "n2", due: now, gone: true}, holder: "n3", want: begin},
		"HeldNotYet": {reason: "The other node gets time.", turn: turn{holder: "n2", due: now.Add(time.Second)}, holder: "n2", want: wait},
		"HeldLong":   {reason: "Then it is looked whether it exists.", turn: turn{holder: "n2", due: now}, holder: "n2", want: seek},
		"HeldByGone": {reason: "If it does not, its claim is competed for.", turn: turn{holder: "n2", due: now, gone: true}, holder: "n2", want: take},
	}
	for name, tc := range cases {
		if got := tc.turn.next(tc.holder, now); got != tc.want {
			t.Errorf("%s: %s\nstep %d, want %d", name, tc.reason, got, tc.want)
		}
	}
}

// TestPauses follows the pauses of many claims: they double up to the longest, are shortened by less than the
// shortest, and nodes come apart.
func TestPauses(t *testing.T) {
	n := newPauses()
	most := []time.Duration{20 * time.Second, 40 * time.Second, time.Minute, time.Minute, time.Minute}
	first := map[string]int{}
	for i := range 1000 {
		claim := types.UID(fmt.Sprintf("u%d", i))
		for tries, most := range most {
			if got := n.pause(claim, tries); got > most || got < most-n.base || got <= 0 {
				t.Errorf("pause %d of claim %s is %v, want %v less at most %v", tries, claim, got, most, n.base)
			}
		}
		fastest, least := "", time.Hour
		for _, name := range []string{"n1", "n2", "n3", "n4", "n5"} {
			n.node = name
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
	for _, n := range []pauses{{"n", 1, 1}, {"n", time.Second, time.Second}, {"n", 1, 1 << 62}} {
		for _, tries := range []int{0, 1, 61, 62, 63, 64, 10000} {
			if got := n.pause("u", tries); got < soon || got > max(soon, n.max) {
				t.Errorf("pause %d between %v and %v is %v", tries, n.base, n.max, got)
			}
		}
	}
}

func TestTurns(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	n := newPauses()
	t.Run("Longer", func(t *testing.T) {
		at := turn{due: now.Add(n.pause("u", 0))}
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
				other := turn{due: now.Add(pauses{"n2", n.base, n.max}.pause(claim, 0))}
				if !mine.due.After(other.due) || mine.holder != "" || mine.gone || mine.tries != tries+1 || !mine.warned {
					t.Errorf("turn %+v of the node without capacity, and %+v of another one", mine, other)
				}
			}
		}
	})
}
