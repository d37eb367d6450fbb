package version

import (
	"os"
	"testing"
)

// TestShow is the program that TestLinkerFlags builds; by itself it checks that no build is without a version.
func TestShow(t *testing.T) {
	one, other := Get(), Get()
	if one.String() == "" || one != other {
		t.Errorf("a build always prints the same, got %s and %s", one, other)
	}
	if os.Getenv("VERSION_TEST_SHOW") != "" {
		t.Logf("version is %s", one)
	}
}
