package fill

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// TestPanicInACopyFailsTheCall: it ends neither the process nor the contents,
// and the next call tries again.
func TestPanicInACopyFailsTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		panics := true
		m.work = func(context.Context, volume.ID) error {
			if panics {
				panic("a defect")
			}
			return nil
		}
		s, err := Open(t.Context(), Config{Next: m})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Create(t.Context(), &volume.CreateRequest{Name: "pvc-1"})
		if err == nil || !strings.Contains(err.Error(), "a defect") {
			t.Errorf("the call whose copy panics: %v", err)
		}
		panics = false
		if made, err := s.Create(t.Context(), &volume.CreateRequest{Name: "pvc-1"}); err != nil || made.Filling {
			t.Errorf("the next call: %+v, %v", made, err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
