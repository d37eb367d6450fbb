package quota

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// contract is what both implementations promise where limits are enforced.
func contract() map[string]struct {
	reason string
	run    func(t *testing.T, q Quotas, root string)
} {
	return map[string]struct {
		reason string
		run    func(t *testing.T, q Quotas, root string)
	}{
		"Enforced":     {reason: "in the directory of volumes, and in any below", run: contractEnforced},
		"Usage":        {reason: "what is in the directory, and the directory", run: contractUsage},
		"Apart":        {reason: "each directory has a limit of its own", run: contractApart},
		"Change":       {reason: "the second call changes the limit, whatever is in the directory", run: contractChange},
		"RoundUp":      {reason: "nobody gets less than asked for", run: contractRoundUp},
		"Largest":      {reason: "a limit that cannot be rounded up is rounded down", run: contractLargest},
		"BadSizes":     {reason: "zero would be no limit", run: contractBadSizes},
		"NotEmpty":     {reason: "what is there would not count", run: contractNotEmpty},
		"None":         {reason: "a volume from before quotas were on has no limit", run: contractNone},
		"Below":        {reason: "the limit of a volume is not that of directories in it", run: contractBelow},
		"Release":      {reason: "and again, and then a limit once more", run: contractRelease},
		"Renamed":      {reason: "a volume in the trash keeps its limit until it is released", run: contractRenamed},
		"MadeAgain":    {reason: "a new directory of the same name is another one", run: contractMadeAgain},
		"Missing":      {reason: "what does not exist is released, and has no limit", run: contractMissing},
		"NoDirectory":  {reason: "files have no limits", run: contractNoDirectory},
		"Link":         {reason: "nobody limits what a link leads to", run: contractLink},
		"AtOnce":       {reason: "no two directories share a limit", run: contractAtOnce},
		"InsideVolume": {reason: "renames and links inside go on", run: contractInside},
	}
}

// testContract runs the table in directories below roots, where limits are
// enforced.
func testContract(t *testing.T, q Quotas, root string) {
	for name, c := range contract() {
		t.Run(name, func(t *testing.T) {
			t.Logf("because %s", c.reason)
			c.run(t, q, makeDir(t, root, name))
		})
	}
}

// makeDir makes a directory that is released and removed at the end, and so
// are those in it.
func makeDir(t *testing.T, parent, name string) string {
	t.Helper()
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// makeLimited makes a directory with a limit, which is released at the end.
func makeLimited(t *testing.T, q Quotas, parent, name string, limit int64) string {
	t.Helper()
	dir := makeDir(t, parent, name)
	mustLimit(t, q, dir, limit)
	t.Cleanup(func() {
		if err := q.Release(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func mustLimit(t *testing.T, q Quotas, dir string, limit int64) {
	t.Helper()
	if err := q.Limit(dir, limit); err != nil {
		t.Fatal(err)
	}
}

func mustUsage(t *testing.T, q Quotas, dir string) Usage {
	t.Helper()
	u, ok, err := q.Usage(dir)
	if err != nil || !ok {
		t.Fatalf("usage of %s: ok %t, %v", dir, ok, err)
	}
	return u
}

func mustHaveNone(t *testing.T, q Quotas, dir string) {
	t.Helper()
	if u, ok, err := q.Usage(dir); err != nil || ok {
		t.Errorf("%s has no limit, and the usage %+v, ok %t, %v", dir, u, ok, err)
	}
}

// write fills a file durably, and returns what stopped it.
func write(t *testing.T, name string, size int) error {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(bytes.Repeat([]byte{1}, size))
	return errors.Join(err, f.Sync(), f.Close())
}

func mustWrite(t *testing.T, name string, size int) {
	t.Helper()
	if err := write(t, name, size); err != nil {
		t.Fatal(err)
	}
}

func contractEnforced(t *testing.T, q Quotas, root string) {
	for _, dir := range []string{root, makeDir(t, root, "below")} {
		if enforced, err := q.Enforced(dir); err != nil || !enforced {
			t.Errorf("%s: %t, %v", dir, enforced, err)
		}
	}
}

func contractUsage(t *testing.T, q Quotas, root string) {
	dir := makeLimited(t, q, root, "volume", 2*mib)
	empty := mustUsage(t, q, dir)
	if empty.Limit != 2*mib || empty.Inodes != 1 || empty.Bytes < 0 || empty.Bytes > 4*kib {
		t.Errorf("a new directory: %+v", empty)
	}
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(dir, "one"), 256*kib)
	mustWrite(t, filepath.Join(below, "two"), 512*kib)
	u := mustUsage(t, q, dir)
	if u.Limit != 2*mib || u.Inodes != 4 || u.Bytes < 768*kib || u.Bytes > 800*kib {
		t.Errorf("with a directory and two files of 768 KiB: %+v", u)
	}
	if err := os.RemoveAll(below); err != nil {
		t.Fatal(err)
	}
	// XFS counts what was removed until it is rid of it, after a while.
	for u.Inodes != 2 && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
		u = mustUsage(t, q, dir)
	}
	if u.Bytes < 256*kib || u.Bytes > 272*kib {
		t.Errorf("with a file of 256 KiB: %+v", u)
	}
}

func contractApart(t *testing.T, q Quotas, root string) {
	one, two := makeLimited(t, q, root, "one", mib), makeLimited(t, q, root, "two", 2*mib)
	mustWrite(t, filepath.Join(one, "file"), 64*kib)
	if u := mustUsage(t, q, one); u.Inodes != 2 || u.Limit != mib {
		t.Errorf("the one with the file: %+v", u)
	}
	if u := mustUsage(t, q, two); u.Inodes != 1 || u.Limit != 2*mib {
		t.Errorf("the other: %+v", u)
	}
}

func contractChange(t *testing.T, q Quotas, root string) {
	dir := makeLimited(t, q, root, "volume", mib)
	mustWrite(t, filepath.Join(dir, "file"), 512*kib)
	before := mustUsage(t, q, dir)
	for _, limit := range []int64{8 * mib, 256 * kib, mib} {
		mustLimit(t, q, dir, limit)
		if u := mustUsage(t, q, dir); u.Limit != limit || u.Bytes != before.Bytes || u.Inodes != 2 {
			t.Errorf("changed to %d: %+v", limit, u)
		}
	}
}

func contractRoundUp(t *testing.T, q Quotas, root string) {
	dir := makeDir(t, root, "volume")
	for limit, want := range map[int64]int64{1: 4 * kib, mib - 1: mib, mib: mib, mib + 1: mib + 4*kib} {
		mustLimit(t, q, dir, limit)
		if u := mustUsage(t, q, dir); u.Limit != want {
			t.Errorf("limit of %d bytes: %+v, want %d", limit, u, want)
		}
	}
	if err := q.Release(dir); err != nil {
		t.Error(err)
	}
}

func contractLargest(t *testing.T, q Quotas, root string) {
	dir := makeLimited(t, q, root, "volume", math.MaxInt64)
	if u := mustUsage(t, q, dir); u.Limit != math.MaxInt64/4096*4096 {
		t.Errorf("%+v", u)
	}
}

func contractBadSizes(t *testing.T, q Quotas, root string) {
	dir := makeDir(t, root, "volume")
	for _, size := range []int64{0, -1, math.MinInt64} {
		if err := q.Limit(dir, size); err == nil {
			t.Errorf("no error for a limit of %d bytes", size)
		}
	}
	mustHaveNone(t, q, dir)
}

func contractNotEmpty(t *testing.T, q Quotas, root string) {
	dir := makeDir(t, root, "volume")
	mustWrite(t, filepath.Join(dir, "file"), kib)
	if err := q.Limit(dir, mib); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("got %v, want %v", err, ErrNotEmpty)
	}
	mustHaveNone(t, q, dir)
}

func contractNone(t *testing.T, q Quotas, root string) {
	dir := makeDir(t, root, "volume")
	mustHaveNone(t, q, dir)
	if err := q.Release(dir); err != nil {
		t.Error(err)
	}
}

func contractBelow(t *testing.T, q Quotas, root string) {
	dir := makeLimited(t, q, root, "volume", mib)
	below := filepath.Join(dir, "below")
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	mustHaveNone(t, q, below)
	if err := q.Release(below); err != nil {
		t.Error(err)
	}
	if u := mustUsage(t, q, dir); u.Limit != mib {
		t.Errorf("after the release of a directory in it: %+v", u)
	}
}

func contractRelease(t *testing.T, q Quotas, root string) {
	dir := makeLimited(t, q, root, "volume", mib)
	mustWrite(t, filepath.Join(dir, "file"), 512*kib)
	for range 2 {
		if err := q.Release(dir); err != nil {
			t.Error(err)
		}
		mustHaveNone(t, q, dir)
	}
	mustLimit(t, q, dir, 2*mib)
	if u := mustUsage(t, q, dir); u.Limit != 2*mib || u.Inodes != 2 || u.Bytes < 512*kib {
		t.Errorf("limited once more: %+v", u)
	}
}

func contractRenamed(t *testing.T, q Quotas, root string) {
	dir := makeLimited(t, q, root, "volume", mib)
	mustWrite(t, filepath.Join(dir, "file"), 64*kib)
	trashed := filepath.Join(makeDir(t, root, "trash"), "volume")
	if err := os.Rename(dir, trashed); err != nil {
		t.Fatal(err)
	}
	if u := mustUsage(t, q, trashed); u.Limit != mib || u.Inodes != 2 {
		t.Errorf("in the trash: %+v", u)
	}
	if err := q.Release(trashed); err != nil {
		t.Error(err)
	}
	mustHaveNone(t, q, trashed)
}

func contractMadeAgain(t *testing.T, q Quotas, root string) {
	dir := makeLimited(t, q, root, "volume", mib)
	if err := errors.Join(q.Release(dir), os.Remove(dir), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	mustHaveNone(t, q, dir)
	mustLimit(t, q, dir, 2*mib)
	if u := mustUsage(t, q, dir); u.Limit != 2*mib || u.Inodes != 1 {
		t.Errorf("made again: %+v", u)
	}
}

func contractMissing(t *testing.T, q Quotas, root string) {
	missing := filepath.Join(root, "missing")
	if err := q.Release(missing); err != nil {
		t.Error(err)
	}
	_, enforcedErr := q.Enforced(missing)
	_, _, usageErr := q.Usage(missing)
	for what, err := range map[string]error{"enforced": enforcedErr, "limit": q.Limit(missing, mib), "usage": usageErr} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: got %v, want %v", what, err, fs.ErrNotExist)
		}
	}
}

// refuses checks that all calls refuse what is no directory.
func refuses(t *testing.T, q Quotas, path string) {
	t.Helper()
	_, enforcedErr := q.Enforced(path)
	_, _, usageErr := q.Usage(path)
	for what, err := range map[string]error{"enforced": enforcedErr, "limit": q.Limit(path, mib), "release": q.Release(path), "usage": usageErr} {
		if !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s: got %v, want %v", what, err, unix.ENOTDIR)
		}
	}
}

func contractNoDirectory(t *testing.T, q Quotas, root string) {
	file := filepath.Join(root, "file")
	mustWrite(t, file, kib)
	refuses(t, q, file)
	pipe := filepath.Join(root, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	refuses(t, q, pipe)
}

func contractLink(t *testing.T, q Quotas, root string) {
	dir := makeLimited(t, q, root, "volume", mib)
	link := filepath.Join(root, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	refuses(t, q, link)
	if u := mustUsage(t, q, dir); u.Limit != mib {
		t.Errorf("what the link leads to: %+v", u)
	}
}

func contractAtOnce(t *testing.T, q Quotas, root string) {
	const many = 16
	var dirs [many]string
	for i := range dirs {
		dirs[i] = makeDir(t, root, fmt.Sprint(i))
	}
	var group sync.WaitGroup
	for i, dir := range dirs {
		group.Go(func() {
			if err := q.Limit(dir, int64(i+1)*mib); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for i, dir := range dirs {
		if u := mustUsage(t, q, dir); u.Limit != int64(i+1)*mib || u.Inodes != 1 {
			t.Errorf("%d: %+v", i, u)
		}
		if err := q.Release(dir); err != nil {
			t.Error(err)
		}
	}
}

func contractInside(t *testing.T, q Quotas, root string) {
	dir := makeLimited(t, q, root, "volume", mib)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	if err := errors.Join(os.Mkdir(one, 0o700), os.Mkdir(two, 0o700)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(one, "file")
	mustWrite(t, file, 64*kib)
	err := errors.Join(os.Link(file, filepath.Join(two, "link")), os.Rename(file, filepath.Join(two, "file")), os.Rename(two, filepath.Join(one, "two")))
	if err != nil {
		t.Error(err)
	}
	if u := mustUsage(t, q, dir); u.Inodes != 4 {
		t.Errorf("three directories and a file with two names: %+v", u)
	}
}
