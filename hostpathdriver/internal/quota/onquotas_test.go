package quota

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOnQuotas is the driver's machine: file systems with project quotas.
func TestOnQuotas(t *testing.T) {
	needQuotas(t)
	for _, kind := range kinds() {
		t.Run(kind.name, func(t *testing.T) {
			root := mount(t, newImage(t, kind.mkfs...), "prjquota")
			t.Run("Contract", func(t *testing.T) { testContract(t, New(), root) })
			for name, c := range onQuotas() {
				t.Run(name, func(t *testing.T) {
					t.Logf("because %s", c.reason)
					c.run(t, kind, makeDir(t, root, name))
				})
			}
		})
	}
	t.Run("Durable", durable)
	t.Run("NotEnforced", notEnforced)
	t.Run("ChangedLater", changedLater)
}

func onQuotas() map[string]struct {
	reason string
	run    func(t *testing.T, kind kind, root string)
} {
	return map[string]struct {
		reason string
		run    func(t *testing.T, kind kind, root string)
	}{
		"Full":        {reason: "a limit stops writes until it is raised, or released", run: fullDirectory},
		"Privileged":  {reason: "documents who may exceed a limit", run: privilegedWriter},
		"Owner":       {reason: "documents who may evade a limit", run: ownerLeaves},
		"Statfs":      {reason: "df in the volume shows its limit", run: statfsInside},
		"Taken":       {reason: "a project is free when nothing has it and nothing limits it, and is used again", run: takenProject},
		"Race":        {reason: "who looks at the same moment takes another", run: raceForProjects},
		"Interrupted": {reason: "a crash in the middle leaves what the next call completes", run: interrupted},
		"Shared":      {reason: "two that crashed in the middle may have taken the same", run: interruptedTogether},
		"Inherited":   {reason: "an administrator limits the whole driver", run: inheritedProject},
		"Nested":      {reason: "a driver whose directory is in a volume of another one", run: nestedDriver},
		"NoRight":     {reason: "quotas need CAP_SYS_ADMIN", run: noRight},
		"Namespace":   {reason: "of the first user namespace", run: userNamespace},
		"Container":   {reason: "an overlay hides the file system below it", run: func(t *testing.T, _ kind, root string) { testNoQuotas(t, overlay(t, root)) }},
		"OtherFlags":  {reason: "attributes of a directory that are not ours stay", run: otherFlags},
	}
}

func fullDirectory(t *testing.T, kind kind, root string) {
	k := New()
	dir := makeLimited(t, k, root, "volume", mib)
	other := makeLimited(t, k, root, "other", mib)
	without(t, unix.CAP_SYS_RESOURCE, func() {
		mustWrite(t, filepath.Join(dir, "fits"), 768*kib)
		if err := write(t, filepath.Join(dir, "much"), mib); !errors.Is(err, kind.full) {
			t.Errorf("a write beyond the limit: got %v, want %v", err, kind.full)
		}
		if u := mustUsage(t, k, dir); u.Bytes > mib {
			t.Errorf("beyond the limit: %+v", u)
		}
		mustWrite(t, filepath.Join(other, "fits"), 768*kib)
		mustLimit(t, k, dir, 4*mib)
		mustWrite(t, filepath.Join(dir, "much"), mib)
		mustLimit(t, k, dir, mib)
		if err := write(t, filepath.Join(dir, "more"), 64*kib); !errors.Is(err, kind.full) {
			t.Errorf("a write beyond the limit that was lowered: got %v, want %v", err, kind.full)
		}
		if err := k.Release(dir); err != nil {
			t.Error(err)
		}
		mustWrite(t, filepath.Join(dir, "more"), 8*mib)
	})
}

func privilegedWriter(t *testing.T, kind kind, root string) {
	dir := makeLimited(t, New(), root, "volume", mib)
	err := write(t, filepath.Join(dir, "much"), 4*mib)
	if exceeded := err == nil; exceeded != kind.exceed {
		t.Errorf("root writes 4 MiB: %v", err)
	}
}

func statfsInside(t *testing.T, _ kind, root string) {
	dir := makeLimited(t, New(), root, "volume", 16*mib)
	mustWrite(t, filepath.Join(dir, "file"), mib)
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		t.Fatal(err)
	}
	size, free := stat.Blocks*uint64(stat.Bsize), stat.Bavail*uint64(stat.Bsize)
	if size != 16*mib || free > 15*mib || free < 15*mib-64*kib {
		t.Errorf("%d bytes, %d of them free", size, free)
	}
}

func takenProject(t *testing.T, _ kind, root string) {
	const project = firstProject + 70000
	var windows []uint32
	k := Kernel{pick: func(window uint32) uint32 { // the same one always
		windows = append(windows, window)
		return project - firstProject
	}}
	one := makeLimited(t, k, root, "one", mib)
	two := makeDir(t, root, "two")
	taken := func(why string) {
		t.Helper()
		windows = nil
		if err := k.Limit(two, mib); err == nil {
			t.Errorf("%s: there are two of the project", why)
		}
		mustHaveNone(t, k, two)
		if len(windows) != tries || windows[0] != firstWindow || windows[1] != 2*firstWindow || windows[tries-1] != 1<<30 {
			t.Errorf("%s: projects were picked from %d", why, windows)
		}
	}
	taken("it is in use")
	mustWrite(t, filepath.Join(one, "file"), kib)
	trashed := filepath.Join(makeDir(t, root, "trash"), "one")
	if err := errors.Join(os.Rename(one, trashed), k.Release(trashed)); err != nil {
		t.Fatal(err)
	}
	taken("it is in the trash and released")
	if err := os.RemoveAll(trashed); err != nil {
		t.Fatal(err)
	}
	waitUnused(t, root, project)
	mustLimit(t, k, two, mib)
	if err := os.RemoveAll(two); err != nil {
		t.Fatal(err)
	}
	waitUnused(t, root, project)
	two = makeDir(t, root, "two")
	taken("it was removed without being released")
	setLimitOf(t, root, project, 0)
	mustLimit(t, k, two, mib)
	if err := k.Release(two); err != nil {
		t.Error(err)
	}
}

func raceForProjects(t *testing.T, _ kind, root string) {
	const many = 8
	var dirs [many]string
	for i := range dirs {
		dirs[i] = makeDir(t, root, fmt.Sprint(i))
	}
	var group sync.WaitGroup
	for i, dir := range dirs {
		group.Go(func() {
			next := uint32(80000)
			k := Kernel{pick: func(uint32) uint32 { // the same for all, until they would meet forever
				if next++; next < 80000+tries/2 {
					return next
				}
				return 90000 + rand.Uint32N(10000)
			}}
			if err := k.Limit(dir, int64(i+1)*mib); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	seen := map[uint32]string{}
	for i, dir := range dirs {
		project, inherited := projectOf(t, dir)
		if other := seen[project]; other != "" || !inherited {
			t.Errorf("%s has project %d, inherited %t, as has %q", dir, project, inherited, other)
		}
		seen[project] = dir
		if u := mustUsage(t, New(), dir); u.Limit != int64(i+1)*mib {
			t.Errorf("%s: %+v", dir, u)
		}
		if err := New().Release(dir); err != nil {
			t.Error(err)
		}
	}
}

func interrupted(t *testing.T, _ kind, root string) {
	const project = firstProject + 100000
	for name, before := range map[string]func(dir string){
		"AfterTaking":   func(dir string) { setProject(t, dir, project, false) },
		"AfterLimiting": func(dir string) { setProject(t, dir, project, false); setLimitOf(t, dir, project, 2*mib) },
	} {
		t.Run(name, func(t *testing.T) {
			waitUnused(t, root, project)
			dir := makeDir(t, root, name)
			before(dir)
			mustLimit(t, New(), dir, mib)
			if got, inherited := projectOf(t, dir); got != project || !inherited {
				t.Errorf("project %d, inherited %t, want %d", got, inherited, project)
			}
			if u := mustUsage(t, New(), dir); u.Limit != mib {
				t.Errorf("%+v", u)
			}
			if err := errors.Join(New().Release(dir), os.Remove(dir)); err != nil {
				t.Fatal(err)
			}
			waitUnused(t, root, project)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			before(dir)
			if err := New().Release(dir); err != nil {
				t.Error(err)
			}
			if left := limitOf(t, dir, project); left != 0 {
				t.Errorf("%d bytes are left of the limit", left)
			}
		})
	}
}

func interruptedTogether(t *testing.T, _ kind, root string) {
	k := New()
	one := makeLimited(t, k, root, "one", mib)
	project, _ := projectOf(t, one)
	two := makeDir(t, root, "two")
	setProject(t, two, project, false)
	mustHaveNone(t, k, two)
	if err := k.Release(two); err != nil {
		t.Error(err)
	}
	mustLimit(t, k, two, 2*mib)
	if got, _ := projectOf(t, two); got == project {
		t.Errorf("both have project %d", got)
	}
	if u := mustUsage(t, k, one); u.Limit != mib || u.Inodes != 1 {
		t.Errorf("the one that had it before: %+v", u)
	}
	if err := k.Release(two); err != nil {
		t.Error(err)
	}
}

func inheritedProject(t *testing.T, _ kind, root string) {
	testAbove(t, root, 42)
}

func nestedDriver(t *testing.T, _ kind, root string) {
	testAbove(t, root, firstProject+110000)
}

// testAbove sees that a project that is inherited from above is left alone.
func testAbove(t *testing.T, root string, project uint32) {
	k := New()
	early := makeLimited(t, k, root, "early", mib)
	setProject(t, root, project, true)
	setLimitOf(t, root, project, 64*mib)
	dir := makeDir(t, root, "volume")
	if got, inherited := projectOf(t, dir); got != project || !inherited {
		t.Fatalf("project %d, inherited %t", got, inherited)
	}
	if enforced, err := k.Enforced(root); err != nil || enforced {
		t.Errorf("enforced %t, %v", enforced, err)
	}
	if err := k.Limit(dir, mib); !errors.Is(err, ErrInherited) {
		t.Errorf("got %v, want %v", err, ErrInherited)
	}
	mustWrite(t, filepath.Join(dir, "file"), kib)
	if err := k.Limit(dir, mib); !errors.Is(err, ErrInherited) {
		t.Errorf("with something in it: got %v, want %v", err, ErrInherited)
	}
	mustHaveNone(t, k, dir)
	if err := k.Release(dir); err != nil {
		t.Error(err)
	}
	if left := limitOf(t, root, project); left != 64*mib {
		t.Errorf("the limit of project %d is %d bytes, want 64 MiB", project, left)
	}
	mustLimit(t, k, early, 2*mib)
	if u := mustUsage(t, k, early); u.Limit != 2*mib {
		t.Errorf("one with a limit from before: %+v", u)
	}
	setLimitOf(t, root, project, 0)
}

func noRight(t *testing.T, _ kind, root string) {
	k := New()
	dir := makeLimited(t, k, root, "volume", mib)
	empty := makeDir(t, root, "empty")
	without(t, unix.CAP_SYS_ADMIN, func() {
		if enforced, err := k.Enforced(root); err != nil || enforced {
			t.Errorf("enforced %t, %v", enforced, err)
		}
		if err := k.Limit(empty, mib); !errors.Is(err, ErrUnavailable) {
			t.Errorf("got %v, want %v", err, ErrUnavailable)
		}
		mustHaveNone(t, k, dir)
		if err := k.Release(dir); err != nil {
			t.Error(err)
		}
	})
	if u := mustUsage(t, k, dir); u.Limit != mib {
		t.Errorf("with the right again: %+v", u)
	}
}

func otherFlags(t *testing.T, _ kind, root string) {
	const noDump = 0x80 // FS_XFLAG_NODUMP
	dir := makeDir(t, root, "volume")
	d, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	a, err := d.attributes()
	if err == nil {
		a.Flags |= noDump
		err = d.setAttributes(a)
	}
	if err != nil {
		t.Fatal(err)
	}
	mustLimit(t, New(), dir, mib)
	if a, err = d.attributes(); err != nil || a.Flags&noDump == 0 || !a.inherits() {
		t.Errorf("flags %#x, %v", a.Flags, err)
	}
	if err := New().Release(dir); err != nil {
		t.Error(err)
	}
}
