// Package needs skips tests that need programs which this machine lacks, or more time than -short gives. Only tests import it.
package needs

import (
	"os/exec"
	"testing"
)

// Programs skips a test unless all programs are on PATH.
func Programs(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s: `make test` installs it, as root on Debian or Ubuntu", name)
		}
	}
}

// Time skips a test that takes many seconds when go test has -short.
func Time(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes many seconds, and -short is set")
	}
}
