package loop

import (
	"testing"
)

func fakeRig(t *testing.T) (rig, *Fake) {
	t.Helper()
	f := &Fake{Dir: t.TempDir()}
	return rig{
		Devices: f,
		hold: func(t *testing.T, device string) func() {
			t.Helper()
			release, err := f.Hold(device)
			if err != nil {
				t.Fatal(err)
			}
			closed := func() {
				if err := release(); err != nil {
					t.Error(err)
				}
			}
			t.Cleanup(closed)
			return closed
		},
		size: func(t *testing.T, device string) int64 {
			t.Helper()
			for _, d := range f.Table() {
				if d.Path == device {
					return d.Size
				}
			}
			t.Errorf("%s is not in the table", device)
			return 0
		},
		reboot: func(t *testing.T, _ string) {
			t.Helper()
			if err := f.Reboot(); err != nil {
				t.Error(err)
			}
		},
	}, f
}

func TestFakeContract(t *testing.T) {
	testContract(t, func(t *testing.T) rig {
		r, _ := fakeRig(t)
		return r
	})
}
