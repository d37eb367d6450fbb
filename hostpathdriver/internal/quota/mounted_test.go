package quota

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// durable has file systems stop without writing what is not synced, as at a
// power cut.
func durable(t *testing.T) {
	for _, kind := range kinds() {
		t.Run(kind.name, func(t *testing.T) {
			image := newImage(t, kind.mkfs...)
			mounted(t, image, "prjquota", func(root string) {
				if err := os.Mkdir(filepath.Join(root, "volume"), 0o700); err != nil {
					t.Fatal(err)
				}
			})
			before := int64(0)
			for _, limit := range []int64{mib, 3 * mib, 2 * mib} {
				mounted(t, image, "prjquota", func(root string) {
					dir := filepath.Join(root, "volume")
					if u, _, err := New().Usage(dir); err != nil || u.Limit != before {
						t.Errorf("after a stop: %+v, %v, want a limit of %d", u, err, before)
					}
					mustLimit(t, New(), dir, limit)
					shutdown(t, root)
					before = limit
				})
			}
		})
	}
}

// shutdown stops a file system without writing anything more.
func shutdown(t *testing.T, root string) {
	t.Helper()
	d, err := open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	const (
		request  = reads | 4<<16 | 'X'<<8 | 125 // EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
		unlogged = 2                            // EXT4_GOING_FLAGS_NOLOGFLUSH, XFS_FSOP_GOING_FLAGS_NOLOGFLUSH
	)
	if err := unix.IoctlSetPointerInt(int(d.Fd()), request, unlogged); err != nil {
		t.Fatal(err)
	}
}

// notEnforced mounts file systems in all the ways in which limits are not in
// force, and then in the one in which they are again.
func notEnforced(t *testing.T) {
	ext4, xfs := newImage(t, kinds()[0].mkfs...), newImage(t, kinds()[1].mkfs...)
	for name, tc := range map[string]struct {
		reason         string
		image, options string
	}{
		"Ext4AccountedOnly":  {"the feature alone counts and does not limit", ext4, "noquota"},
		"Ext4NoOption":       {"nor does it by default", ext4, "noatime"},
		"Ext4Users":          {"limits of users are none of projects", ext4, "usrquota"},
		"XFSNoOption":        {"XFS does not even count then", xfs, "noatime"},
		"XFSAccountedOnly":   {"it counts and does not limit", xfs, "pqnoenforce"},
		"XFSUsers":           {"limits of users are none of projects", xfs, "usrquota"},
		"XFSGroups":          {"nor are those of groups", xfs, "grpquota"},
		"XFSEveryoneButOurs": {"three kinds of quotas, and ours is not in force", xfs, "usrquota,grpquota,pqnoenforce"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Logf("because %s", tc.reason)
			early, released := name+"-early", name+"-released"
			mounted(t, tc.image, "prjquota", func(root string) {
				for _, name := range []string{early, released} {
					dir := filepath.Join(root, name)
					if err := os.Mkdir(dir, 0o700); err != nil {
						t.Fatal(err)
					}
					mustLimit(t, New(), dir, mib)
				}
			})
			mounted(t, tc.image, tc.options, func(root string) {
				checkNotEnforced(t, root, filepath.Join(root, early), filepath.Join(root, released))
			})
			mounted(t, tc.image, "prjquota", func(root string) {
				if u := mustUsage(t, New(), filepath.Join(root, early)); u.Limit != mib || u.Bytes < 2*mib || u.Inodes != 2 {
					t.Errorf("enforced again: %+v", u)
				}
			})
		})
	}
	t.Run("Ext4WithoutFeature", func(t *testing.T) {
		mounted(t, newImage(t, "mkfs.ext4", "-q"), "noatime", func(root string) {
			if enforced, err := New().Enforced(root); err != nil || enforced {
				t.Errorf("enforced %t, %v", enforced, err)
			}
		})
	})
}

// checkNotEnforced is given two directories that have limits.
func checkNotEnforced(t *testing.T, root, early, released string) {
	k := New()
	if enforced, err := k.Enforced(root); err != nil || enforced {
		t.Errorf("enforced %t, %v", enforced, err)
	}
	mustHaveNone(t, k, early)
	dir := makeDir(t, root, "volume")
	for _, dir := range []string{dir, early} {
		if err := k.Limit(dir, 2*mib); !errors.Is(err, ErrUnavailable) {
			t.Errorf("got %v, want %v", err, ErrUnavailable)
		}
	}
	without(t, unix.CAP_SYS_RESOURCE, func() { mustWrite(t, filepath.Join(early, "file"), 2*mib) })
	for _, dir := range []string{released, dir} {
		if err := errors.Join(k.Release(dir), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	}
}

// changedLater is an ext4 that got project quotas after it was made.
func changedLater(t *testing.T) {
	image := newImage(t, "mkfs.ext4", "-q")
	run(t, "tune2fs", "-O", "project,quota", "-Q", "prjquota", image)
	root := mount(t, image, "prjquota")
	if enforced, err := New().Enforced(root); err != nil || !enforced {
		t.Errorf("enforced %t, %v", enforced, err)
	}
	dir := makeLimited(t, New(), root, "volume", mib)
	without(t, unix.CAP_SYS_RESOURCE, func() {
		if err := write(t, filepath.Join(dir, "file"), 2*mib); !errors.Is(err, unix.EDQUOT) {
			t.Errorf("got %v, want %v", err, unix.EDQUOT)
		}
	})
}
