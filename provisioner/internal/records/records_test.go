package records

import "testing"

// note is something that is remembered.
type note struct{ deleted, removed bool }

func TestRecords(t *testing.T) {
	var all Of[note]
	if all.Get("a") != (note{}) || len(all.by) != 0 {
		t.Error("the zero value has records")
	}
	before, after := all.Change("a", func(r *note) { r.deleted = true })
	if before.deleted || !after.deleted || !all.Get("a").deleted {
		t.Errorf("the change of nothing: before %+v, after %+v, kept %+v", before, after, all.Get("a"))
	}
	before, after = all.Change("a", func(r *note) { r.removed = true })
	if want := (note{deleted: true, removed: true}); before.removed || after != want || all.Get("a") != want {
		t.Errorf("the change of a record: before %+v, after %+v, kept %+v", before, after, all.Get("a"))
	}
	all.Change("b", func(r *note) { r.deleted = true })
	if got := all.Matching(func(r note) bool { return r.removed }); len(got) != 1 {
		t.Errorf("%d records match, want 1 of 2", len(got))
	}
	all.Drop("c")
	all.Drop("b")
	all.Change("a", func(r *note) { *r = note{} })
	if len(all.by) != 0 {
		t.Errorf("%d records say nothing", len(all.by))
	}
}
