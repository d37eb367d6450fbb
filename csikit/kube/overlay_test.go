package kube

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const overlayKey = "va"

func attachment(uid types.UID, version string, change ...func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: overlayKey, UID: uid, ResourceVersion: version}}
	for _, f := range change {
		f(va)
	}
	return va
}

func newOverlay() *overlay[*storagev1.VolumeAttachment] {
	return &overlay[*storagev1.VolumeAttachment]{transform: func(va *storagev1.VolumeAttachment) *storagev1.VolumeAttachment { return va }}
}

func always(*storagev1.VolumeAttachment) bool { return true }

// onlyKey is a store that has one object, and onlyOthers one that has none.
func onlyKey([]string) []string { return []string{overlayKey} }

func onlyOthers(others []string) []string { return others }

func seen(o *overlay[*storagev1.VolumeAttachment], stored *storagev1.VolumeAttachment) string {
	lookup := func(string) (*storagev1.VolumeAttachment, bool) { return stored, stored != nil }
	if va, ok := o.get(overlayKey, lookup); ok {
		return va.ResourceVersion
	}
	return ""
}

func deleting(finalizers ...string) func(*storagev1.VolumeAttachment) {
	return func(va *storagev1.VolumeAttachment) {
		va.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		va.Finalizers = finalizers
	}
}

func TestOwnWriteIsSeenUntilTheWatchBringsIt(t *testing.T) {
	o := newOverlay()
	first, second := attachment("u", "1"), attachment("u", "2")
	o.put(overlayKey, second)
	if got := seen(o, first); got != "2" {
		t.Errorf("before the watch: %q", got)
	}
	o.observe(first, second)
	if len(o.items) != 0 || seen(o, second) != "2" {
		t.Errorf("after the watch: %v", o.items)
	}
}

func TestWriteRememberedAfterItsDeletionWasSeen(t *testing.T) {
	o := newOverlay()
	last := attachment("u", "2")
	o.observe(attachment("u", "3"), nil)
	o.put(overlayKey, last)
	if got := seen(o, nil); got != "" {
		t.Errorf("a deleted object is back as version %q", got)
	}
	o.put(overlayKey, attachment("other", "4"))
	if got := seen(o, nil); got != "4" {
		t.Errorf("its successor of the same name is %q", got)
	}
}

// The store still has the object when its own last write has removed it, and perhaps as it was before another own write. The answer to the
// write that removed it has the version of the one before.
func TestObjectThatAnOwnWriteEndedIsGone(t *testing.T) {
	o := newOverlay()
	stored := attachment("u", "1", deleting("x/y"))
	list := func() []*storagev1.VolumeAttachment {
		return slices.Collect(o.list(always, onlyKey, func(string) (*storagev1.VolumeAttachment, bool) { return stored, true }))
	}
	o.put(overlayKey, attachment("u", "2", deleting("x/y")))
	o.put(overlayKey, attachment("u", "2", deleting()))
	for range 2 {
		if got := seen(o, stored); got != "" || len(list()) != 0 {
			t.Errorf("it is back as version %q, listed as %v, when the watch has delivered version %s", got, list(), stored.ResourceVersion)
		}
		last := attachment("u", "2", deleting("x/y"))
		o.observe(stored, last)
		stored = last
	}
	stored = attachment("other", "4")
	if got := seen(o, stored); got != "4" || len(list()) != 1 {
		t.Errorf("its successor of the same name is %q, listed as %v", got, list())
	}
	o.observe(attachment("u", "3", deleting()), nil)
	if len(o.items) != 0 {
		t.Errorf("after the watch: %v", o.items)
	}
}

func TestWriteThatEndsAnObjectIsNotRemembered(t *testing.T) {
	tests := map[string]struct {
		reason string
		obj    *storagev1.VolumeAttachment
		want   string
	}{
		"LastFinalizer":  {"removing the last finalizer of a deleted object ends it", attachment("u", "2", deleting()), ""},
		"OtherFinalizer": {"another finalizer keeps it", attachment("u", "2", deleting("x/y")), "2"},
		"Alive":          {"an object without finalizers that is not deleted lives", attachment("u", "2"), "2"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := newOverlay()
			o.put(overlayKey, tc.obj)
			if got := seen(o, nil); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestWhatNobodyConfirmsIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOverlay()
		o.put(overlayKey, attachment("u", "2"))
		o.observe(attachment("old", "1"), nil)
		time.Sleep(overlayTTL)
		if got := seen(o, nil); got != "" {
			t.Errorf("still %q", got)
		}
		o.put("another", attachment("v", "3"))
		if len(o.items) != 1 || len(o.gone) != 0 {
			t.Errorf("kept %v and %v", o.items, o.gone)
		}
	})
}

func TestListReplacesAndCompletes(t *testing.T) {
	o := newOverlay()
	o.put(overlayKey, attachment("u", "2"))
	lookup := func(string) (*storagev1.VolumeAttachment, bool) { return attachment("u", "1"), true }
	if got := slices.Collect(o.list(always, onlyKey, lookup)); len(got) != 1 || got[0].ResourceVersion != "2" {
		t.Errorf("got %v", got)
	}
	if got := slices.Collect(o.list(func(va *storagev1.VolumeAttachment) bool { return va.ResourceVersion == "1" }, onlyKey, lookup)); len(got) != 0 {
		t.Errorf("an object that no longer matches is listed: %v", got)
	}
}

// The watch may bring an own write while it is being looked for: it was seen neither in the store, which
// had been read before, nor here, where it had been dropped.
func TestOwnWriteThatArrivesDuringARead(t *testing.T) {
	t.Parallel()
	arrived := attachment("u", "2")
	cases := map[string]func(o *overlay[*storagev1.VolumeAttachment], store *[]*storagev1.VolumeAttachment, arrive func()) int{
		"Get": func(o *overlay[*storagev1.VolumeAttachment], _ *[]*storagev1.VolumeAttachment, arrive func()) int {
			_, ok := o.get(overlayKey, func(string) (*storagev1.VolumeAttachment, bool) {
				arrive() // just behind the look into the store
				return nil, false
			})
			if !ok {
				return 0
			}
			return 1
		},
		"ListLookup": func(o *overlay[*storagev1.VolumeAttachment], _ *[]*storagev1.VolumeAttachment, arrive func()) int {
			return len(slices.Collect(o.list(always, onlyOthers, func(string) (*storagev1.VolumeAttachment, bool) {
				arrive()
				return nil, false
			})))
		},
		"ListKeys": func(o *overlay[*storagev1.VolumeAttachment], store *[]*storagev1.VolumeAttachment, arrive func()) int {
			return len(slices.Collect(o.list(always, func(others []string) []string {
				arrive()
				return others
			}, func(string) (*storagev1.VolumeAttachment, bool) { return (*store)[0], true })))
		},
	}
	for name, read := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOverlay()
			o.put(overlayKey, arrived)
			var store []*storagev1.VolumeAttachment
			arrive := func() {
				store = []*storagev1.VolumeAttachment{arrived}
				o.observe(nil, arrived)
			}
			if got := read(o, &store, arrive); got != 1 {
				t.Errorf("seen %d times, want once", got)
			}
		})
	}
}
