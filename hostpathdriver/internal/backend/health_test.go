package backend

import (
	"errors"
	"os"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/contents"
)

func TestVolumeHealth(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(r *driverkit.CreateRequest)
		damage func(w *world, id string) error
		want   string
		how    driverkit.Severity
	}{
		"Well":      {reason: "nothing wrong", change: asDevice, damage: func(*world, string) error { return nil }},
		"Missing":   {reason: "somebody removed it", damage: func(w *world, id string) error { return os.Remove(w.state(contents.Volumes, id)) }, want: "ContentsMissing", how: driverkit.DataLoss},
		"NoFile":    {reason: "somebody removed it", change: asDevice, damage: func(w *world, id string) error { return os.Remove(w.state(contents.Volumes, id, "disk")) }, want: "ContentsMissing", how: driverkit.DataLoss},
		"Truncated": {reason: "a part is missing", change: asDevice, damage: func(w *world, id string) error { return os.Truncate(w.state(contents.Volumes, id, "disk"), 5) }, want: "ContentsTruncated", how: driverkit.DataLoss},
		"NoStore":   {reason: "its disk may come back", damage: func(w *world, _ string) error { return os.RemoveAll(w.state(contents.Volumes)) }, want: "ContentsUnreachable", how: driverkit.Inaccessible},
		"Unreadable": {reason: "nobody knows what is there", change: asDevice, damage: func(w *world, id string) error {
			dir := w.state(contents.Volumes, id)
			return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600))
		}, want: "ContentsUnreachable", how: driverkit.Inaccessible},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.create(w.start(), c.change)
			w.must(c.damage(w, v.ID))
			for _, onNode := range []bool{false, true} {
				health, err := Health{&w.config.Config}.VolumeHealth(w.ctx, &driverkit.HealthRequest{ID: v.ID, OnNode: onNode})
				w.must(err)
				found := health.Conditions
				if c.want == "" && len(found) > 0 || c.want != "" && (len(found) != 1 || found[0].Reason != c.want || found[0].Severity != c.how) {
					t.Errorf("%s: %v, want %q", c.reason, found, c.want)
				}
			}
		})
	}
}

func TestHealthOfUnknownAndInlineVolumes(t *testing.T) {
	w := newWorld(t)
	n := w.startNode()
	h := Health{&w.config.Config}
	for _, id := range []string{"none", "../x"} {
		_, err := h.VolumeHealth(w.ctx, &driverkit.HealthRequest{ID: id})
		w.want(id, err, driverkit.ErrNotFound)
	}
	w.must(w.createInline(n, &driverkit.InlineRequest{ID: "csi-1", Capability: mounted()}))
	if found, err := h.VolumeHealth(w.ctx, &driverkit.HealthRequest{ID: "csi-1", OnNode: true}); err != nil || len(found.Conditions) > 0 {
		t.Errorf("an inline volume on its node: %v, %v", found, err)
	}
}

func TestStorageHealth(t *testing.T) {
	w, pool := poolWorld(t)
	w.start()
	reasons := func() map[string]driverkit.Severity {
		found := map[string]driverkit.Severity{}
		health, err := Health{&w.config.Config}.StorageHealth(w.ctx, &driverkit.StorageHealthRequest{})
		w.must(err)
		for _, one := range health.Conditions {
			found[one.Reason] = one.Severity
		}
		return found
	}
	before := len(reasons())
	w.must(os.RemoveAll(pool))
	if got := reasons(); len(got) != before+1 || got["StorageUnreachable"] != driverkit.Inaccessible {
		t.Errorf("without the directory of a pool: %v", got)
	}
	diff(t, "the disk of a path that does not exist", "StorageUnreachable", diskConditions(pool)[0].Reason)
}

func TestLow(t *testing.T) {
	for reason, c := range map[string]struct {
		left, total uint64
		want        bool
	}{
		"a twentieth is enough": {5, 100, false}, "less is low": {4, 100, true}, "nothing is": {0, 100, true},
		"no fixed number of inodes": {0, 0, false}, "large numbers do not overflow": {1 << 63, 1<<64 - 1, false},
	} {
		if got := low(c.left, c.total); got != c.want {
			t.Errorf("%s: low(%d, %d) = %t", reason, c.left, c.total, got)
		}
	}
}
