package quota

import (
	"errors"
	"slices"
	"testing"
)

func TestFakeContract(t *testing.T) {
	root := t.TempDir()
	testContract(t, &Fake{Roots: []string{t.TempDir(), root}}, root)
}

func TestFakeElsewhere(t *testing.T) {
	root := t.TempDir()
	dir := makeDir(t, root, "volume")
	for reason, f := range map[string]*Fake{
		"no roots":                  {},
		"another root":              {Roots: []string{t.TempDir()}},
		"a root below":              {Roots: []string{dir + "/below"}},
		"a root whose name goes on": {Roots: []string{dir[:len(dir)-1]}},
	} {
		if enforced, err := f.Enforced(dir); err != nil || enforced {
			t.Errorf("%s: %t, %v", reason, enforced, err)
		}
		if err := f.Limit(dir, mib); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: got %v, want %v", reason, err, ErrUnavailable)
		}
		mustHaveNone(t, f, dir)
		if err := f.Release(dir); err != nil {
			t.Errorf("%s: %v", reason, err)
		}
	}
}

func TestFakeSwitchedOff(t *testing.T) {
	root := t.TempDir()
	f := &Fake{Roots: []string{root}}
	dir := makeLimited(t, f, root, "volume", mib)
	f.Switch(false)
	if enforced, err := f.Enforced(root); err != nil || enforced {
		t.Errorf("enforced %t, %v", enforced, err)
	}
	mustHaveNone(t, f, dir)
	if err := f.Limit(dir, 2*mib); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v, want %v", err, ErrUnavailable)
	}
	f.Switch(true)
	if u := mustUsage(t, f, dir); u.Limit != mib {
		t.Errorf("switched on again: %+v", u)
	}
}

func TestFakeFails(t *testing.T) {
	root := t.TempDir()
	f := &Fake{Roots: []string{root}}
	dir := makeDir(t, root, "volume")
	broken := errors.New("broken")
	f.Fail(broken)
	_, _, usageErr := f.Usage(dir)
	for what, err := range map[string]error{"limit": f.Limit(dir, mib), "release": f.Release(dir), "usage": usageErr} {
		if !errors.Is(err, broken) {
			t.Errorf("%s: got %v, want %v", what, err, broken)
		}
	}
	f.Fail(nil)
	mustLimit(t, f, dir, mib)
	want := []string{"limit " + dir + " 1048576 failed", "release " + dir + " failed", "limit " + dir + " 1048576"}
	if calls := f.Calls(); !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
}
