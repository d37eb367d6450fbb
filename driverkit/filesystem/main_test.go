package filesystem

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"go.uber.org/goleak"
)

// TestMain gives the tests a folder of their own, to see at the end that no
// device shows a file in it and that nothing is mounted there.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "filesystem-test-")
	if err == nil {
		err = os.Setenv("TMPDIR", dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if left := leftBelow(dir); len(left) != 0 {
			fmt.Fprintf(os.Stderr, "left behind: %v\n", left)
			code = 1
		}
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}))
}

func leftBelow(dir string) []string {
	var left []string
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		left = append(left, err.Error())
	}
	for _, m := range mounts {
		left = append(left, m.Mountpoint)
	}
	names, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, name := range names {
		if shown, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(shown), dir+"/") {
			left = append(left, name)
		}
	}
	return left
}
