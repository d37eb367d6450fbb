package controller

import "testing"

func TestRecords(t *testing.T) {
	var all records[volumeRecord]
	if all.get("a") != (volumeRecord{}) || len(all.by) != 0 {
		t.Error("the zero value has records")
	}
	before, after := all.change("a", func(r *volumeRecord) { r.deleted = true })
	if before.deleted || !after.deleted || !all.get("a").deleted {
		t.Errorf("the change of nothing: before %+v, after %+v, kept %+v", before, after, all.get("a"))
	}
	before, after = all.change("a", func(r *volumeRecord) { r.removed = true })
	if want := (volumeRecord{deleted: true, removed: true}); before.removed || after != want || all.get("a") != want {
		t.Errorf("the change of a record: before %+v, after %+v, kept %+v", before, after, all.get("a"))
	}
	all.change("b", func(r *volumeRecord) { r.deleted = true })
	if got := all.matching(func(r volumeRecord) bool { return r.removed }); len(got) != 1 {
		t.Errorf("%d records match, want 1 of 2", len(got))
	}
	all.drop("c")
	all.drop("b")
	all.change("a", func(r *volumeRecord) { *r = volumeRecord{} })
	if len(all.by) != 0 {
		t.Errorf("%d records say nothing", len(all.by))
	}
}
