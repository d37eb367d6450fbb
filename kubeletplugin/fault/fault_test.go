package fault

import (
	"errors"
	"strings"
	"testing"
)

func TestNilHookPasses(t *testing.T) {
	for _, p := range All() {
		if err := Hook(nil).At(p); err != nil {
			t.Errorf("a nil hook stopped at %q: %v", p, err)
		}
	}
}

func TestHookStopsAtItsPoint(t *testing.T) {
	h := Hook(func(p Point) error {
		if p == BeforeStage {
			return ErrCrashed
		}
		return nil
	})
	for _, p := range All() {
		if got, want := errors.Is(h.At(p), ErrCrashed), p == BeforeStage; got != want {
			t.Errorf("at %q: stopped %t, want %t", p, got, want)
		}
	}
}

func TestPointsComeInPairs(t *testing.T) {
	all := All()
	for i := 0; i+1 < len(all); i += 2 {
		before, ok := strings.CutPrefix(string(all[i]), "before-")
		if !ok || string(all[i+1]) != "after-"+before {
			t.Errorf("points %q and %q do not enclose one side effect", all[i], all[i+1])
		}
	}
	if len(all)%2 != 0 {
		t.Error("a point has no partner")
	}
}
