package backend

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func TestModify(t *testing.T) {
	w := newWorld(t)
	w.mutable = volume.Mutable{Enabled: true, Names: []string{"iops", "tier"}}
	s := w.boot()
	request := createRequest("pvc-1")
	request.Mutable = map[string]string{"iops": "100"}
	v, err := s.volumes.Create(s.ctx, request)
	w.must(err)
	w.must(s.volumes.Modify(s.ctx, v.ID, map[string]string{"tier": "gold"}), s.volumes.Modify(s.ctx, v.ID, map[string]string{"iops": "200"}))
	wantErr(t, "all or none", s.volumes.Modify(s.ctx, v.ID, map[string]string{"iops": "300", "other": "x"}), volume.ErrInvalid)
	wantErr(t, "unknown volume", s.volumes.Modify(s.ctx, "unknown", map[string]string{"iops": "1"}), volume.ErrNotFound)
	for _, s := range []*system{s, w.boot()} {
		got, err := s.volumes.Get(s.ctx, v.ID)
		w.must(err)
		if diff := cmp.Diff(map[string]string{"iops": "200", "tier": "gold"}, got.MutableParameters); diff != "" {
			t.Errorf("parameters (-want +got):\n%s", diff)
		}
	}
	request.Name, request.Mutable = "pvc-2", map[string]string{"other": "x"}
	_, err = s.volumes.Create(s.ctx, request)
	wantErr(t, "create with an unknown parameter", err, volume.ErrInvalid)
}

// TestRepeatedModifyWritesNothing: the record is not written when it says what
// is asked for already.
func TestRepeatedModifyWritesNothing(t *testing.T) {
	w := newWorld(t)
	w.mutable.Enabled = true
	s := w.boot()
	v := s.create("pvc-1")
	w.must(s.volumes.Modify(s.ctx, v.ID, map[string]string{"iops": "100"}))
	s.volumes.cfg.Step = func(name string) { t.Errorf("%s", errors.New(name)) }
	w.must(s.volumes.Modify(s.ctx, v.ID, map[string]string{"iops": "100"}), s.volumes.Modify(s.ctx, v.ID, nil))
}
