package loop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// attachEnv makes the test program attach that file and end, so that tests
// can have several processes.
const attachEnv = "LOOP_TEST_ATTACH"

// TestMain gives the tests a folder of their own, to see at the end that no
// device shows a file in it.
func TestMain(m *testing.M) {
	if file := os.Getenv(attachEnv); file != "" {
		os.Exit(attachAndPrint(file))
	}
	dir, err := os.MkdirTemp("", "loop-test-")
	if err == nil {
		err = os.Setenv("TMPDIR", dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if left := devicesBelow(dir); len(left) != 0 {
			fmt.Fprintf(os.Stderr, "devices left behind: %v\n", left)
			code = 1
		}
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}))
}

func attachAndPrint(file string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	device, err := Kernel{}.Attach(ctx, file, false)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Print(device)
	return 0
}

// devicesBelow lists the devices of files in a folder, deleted ones, too.
func devicesBelow(dir string) []string {
	names, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	var left []string
	for _, name := range names {
		if shown, err := os.ReadFile(name); err == nil && strings.HasPrefix(string(shown), dir+"/") {
			left = append(left, name)
		}
	}
	return left
}
