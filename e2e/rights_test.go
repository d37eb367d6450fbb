package e2e

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/longshore-csi/longshore/e2e/rights"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// TestRightsAreExactlyThoseUsed makes the components use all of their rights, and compares what they have asked of the API
// server with the rules in deploy/. That they never asked for more is looked at again when all tests have run.
func TestRightsAreExactlyThoseUsed(t *testing.T) {
	d := dev(t)
	rules, err := rights.Granted()
	if err != nil {
		t.Fatal(err)
	}
	if len(rules) != len(rights.Components()) {
		t.Fatalf("rules %v", rules)
	}
	counted := newStory(t).failAll()
	// In one order each time: SecondPair waits for all lists, of which Killed has one.
	all := uses()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) { all[name](newStory(t)) })
	}
	counted()
	var unused []string
	err = testbed.Poll(t.Context(), func(context.Context) (bool, error) { // the log may lag behind
		calls, err := rights.Asked(d)
		unused = rules.Without(calls)
		return len(unused) == 0, err
	})
	if err != nil {
		t.Errorf("rights that nobody used: %q: %v", unused, err)
	}
	calls, err := rights.Asked(d)
	if err != nil {
		t.Fatal(err)
	}
	if more := calls.Without(rules); len(more) > 0 {
		t.Errorf("calls that no rule of deploy/ allows: %q", more)
	}
}
