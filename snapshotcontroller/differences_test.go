package snapshotcontroller

import (
	"fmt"
	"maps"
	"testing"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// defectCount is how many defects of the external-snapshotter have a number.
const defectCount = 32

// TestDifferences looks for the tests that docs/differences.md names, here and in the snapshotter: each of the numbered defects has a row in at least
// one of the two.
func TestDifferences(t *testing.T) {
	numbers := commandtest.Defects(t)
	t.Chdir("../snapshotter")
	maps.Copy(numbers, commandtest.Defects(t))
	for i := range defectCount {
		if n := fmt.Sprintf("S%d", i+1); !numbers[n] {
			t.Errorf("%s has no row", n)
		}
		delete(numbers, fmt.Sprintf("S%d", i+1))
	}
	if len(numbers) > 0 {
		t.Errorf("unknown numbers: %v", numbers)
	}
}
