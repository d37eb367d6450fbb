package backend

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// reasons are the words of conditions.
func reasons(conditions []volume.Condition) []string {
	var words []string
	for _, c := range conditions {
		words = append(words, c.Reason)
	}
	return words
}

func TestHealthOfContents(t *testing.T) {
	cases := map[string]struct {
		reason   string
		block    bool
		harm     func(w *world, id volume.ID)
		severity volume.Severity
		want     []string
	}{
		"Well":      {reason: "nothing is wrong", harm: func(*world, volume.ID) {}},
		"WellBlock": {reason: "nothing is wrong", block: true, harm: func(*world, volume.ID) {}},
		"Gone": {reason: "somebody has removed it", harm: func(w *world, id volume.ID) { w.must(os.Remove(w.contents(id))) },
			severity: volume.DataLoss, want: []string{reasonContentsMissing}},
		"GoneBlock": {reason: "the file alone", block: true, harm: func(w *world, id volume.ID) { w.must(os.Remove(filepath.Join(w.contents(id), diskName))) },
			severity: volume.DataLoss, want: []string{reasonContentsMissing}},
		"Truncated": {reason: "the end is lost", block: true, harm: func(w *world, id volume.ID) { w.must(os.Truncate(filepath.Join(w.contents(id), diskName), 512)) },
			severity: volume.DataLoss, want: []string{reasonContentsTruncated}},
		"Unreachable": {reason: "something is in the way", block: true, harm: func(w *world, id volume.ID) {
			w.must(os.RemoveAll(w.contents(id)), os.WriteFile(w.contents(id), nil, 0o600))
		}, severity: volume.Inaccessible, want: []string{reasonContentsUnreachable}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.boot()
			well, ill := s.create("pvc-1"), s.create("pvc-2")
			if c.block {
				ill = s.createBlock("pvc-3")
			}
			c.harm(w, ill.ID)
			health, err := s.volumes.Health(s.ctx, ill.ID)
			w.must(err)
			onNode, err := s.node.Health(s.ctx, ill.ID)
			w.must(err)
			for where, got := range map[string]volume.Health{"controller": health, "node": onNode} {
				if diff := cmp.Diff(c.want, reasons(got.Conditions)); diff != "" || got.ID != ill.ID {
					t.Errorf("%s: %s (-want +got):\n%s", c.reason, where, diff)
				}
				if len(got.Conditions) > 0 && (got.Conditions[0].Severity != c.severity || got.Conditions[0].Message == "") {
					t.Errorf("%s: %s: %+v, want severity %d and a message", c.reason, where, got.Conditions[0], c.severity)
				}
			}
			page, err := s.volumes.ListHealth(s.ctx, volume.ListRequest{})
			w.must(err)
			var listed []volume.ID
			for _, entry := range page.Entries {
				listed = append(listed, entry.ID)
			}
			want := []volume.ID{ill.ID}
			if c.want == nil {
				want = nil
			}
			if diff := cmp.Diff(want, listed); diff != "" {
				t.Errorf("%s: listed, well is %s (-want +got):\n%s", c.reason, well.ID, diff)
			}
		})
	}
}

// TestHealthInPages: only the ill ones count.
func TestHealthInPages(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	var want []volume.ID
	for i := range 10 {
		v := s.create("pvc-" + string(rune('a'+i)))
		if i%3 == 0 {
			w.must(os.Remove(w.contents(v.ID)))
			want = append(want, v.ID)
		}
	}
	var got []volume.ID
	req, pages := volume.ListRequest{Max: 2}, 0
	for {
		page, err := s.volumes.ListHealth(s.ctx, req)
		w.must(err)
		pages++
		for _, entry := range page.Entries {
			got = append(got, entry.ID)
		}
		if req.Token = page.Next; req.Token == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || pages != 2 {
		t.Errorf("%d pages (-want +got):\n%s", pages, diff)
	}
	_, err := s.volumes.ListHealth(s.ctx, volume.ListRequest{Max: -1})
	wantErr(t, "negative", err, volume.ErrInvalid)
	_, err = s.volumes.ListHealth(s.ctx, volume.ListRequest{Token: "x"})
	wantErr(t, "foreign token", err, volume.ErrBadToken)
}

func TestHealthOfMounts(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	v, inline := s.create("pvc-1"), w.inlineRequest("csi-1", nil)
	w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)), s.node.Publish(s.ctx, w.targetRequest(v.ID)), s.node.Publish(s.ctx, inline))
	ask := func(id volume.ID, paths ...string) []string {
		t.Helper()
		health, err := s.node.Health(s.ctx, id, paths...)
		w.must(err)
		return reasons(health.Conditions)
	}
	if got := ask(v.ID, w.staging(v.ID), w.target(v.ID)); got != nil {
		t.Errorf("as long as all is well: %v", got)
	}
	if got := ask("csi-1", inline.Target.Path); got != nil {
		t.Errorf("inline, as long as all is well: %v", got)
	}
	w.fake.Reboot()
	if diff := cmp.Diff([]string{reasonMountLost}, ask(v.ID, w.target(v.ID))); diff != "" {
		t.Errorf("the mount is gone (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{reasonMountLost}, ask("csi-1", "", inline.Target.Path)); diff != "" {
		t.Errorf("the inline volume's mount is gone (-want +got):\n%s", diff)
	}
	if got := ask(v.ID, "/elsewhere"); got != nil {
		t.Errorf("where it never was: %v", got)
	}
	_, err := s.node.Health(s.ctx, "unknown")
	wantErr(t, "unknown", err, volume.ErrNotFound)
	_, err = s.volumes.Health(s.ctx, "unknown")
	wantErr(t, "unknown", err, volume.ErrNotFound)
}

func TestHealthOfStorage(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	w.must(os.RemoveAll(w.stateDir))
	if diff := cmp.Diff([]string{reasonStorageUnreachable}, reasons(s.node.StorageHealth(s.ctx))); diff != "" {
		t.Errorf("no state directory (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{reasonStorageUnreachable}, reasons(diskConditions(w.stateDir))); diff != "" {
		t.Errorf("no state directory, controller (-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct {
		disk unix.Statfs_t
		want []string
	}{
		"Roomy":      {disk: unix.Statfs_t{Blocks: 1000, Bavail: 50, Files: 1000, Ffree: 50}},
		"LowSpace":   {disk: unix.Statfs_t{Blocks: 1000, Bavail: 49, Files: 1000, Ffree: 50}, want: []string{reasonLowSpace}},
		"LowInodes":  {disk: unix.Statfs_t{Blocks: 1000, Bavail: 50, Files: 1000, Ffree: 49}, want: []string{reasonLowInodes}},
		"Both":       {disk: unix.Statfs_t{Blocks: 1000, Files: 1000}, want: []string{reasonLowSpace, reasonLowInodes}},
		"NoNumber":   {disk: unix.Statfs_t{Blocks: 1000, Bavail: 1000}},
		"NothingFix": {},
	} {
		if diff := cmp.Diff(c.want, reasons(spaceConditions("dir", &c.disk))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
