package snapshotter

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// TestDifferences looks for the tests that docs/differences.md names. That of snapshotcontroller checks that no number is missing.
func TestDifferences(t *testing.T) {
	if numbers := commandtest.Defects(t); !numbers["S1"] || !numbers["S3"] {
		t.Errorf("S1 or S3 is missing in %v", numbers)
	}
}
