package snapshotmetadata

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDifferences looks for the tests that docs/differences.md names: the rows of the defects are M1, M2 and so on, and each names a test of this module.
// commandtest.Defects knows the numbers of the external-snapshotter only.
func TestDifferences(t *testing.T) {
	const fewest = 8
	document, err := os.ReadFile("docs/differences.md")
	if err != nil {
		t.Fatal(err)
	}
	_, defects, _ := strings.Cut(string(document), "\n## Defects of upstream\n")
	defects, _, _ = strings.Cut(defects, "\n## ")
	tests := testSources(t)
	rows := regexp.MustCompile(`(?m)^\|(.*)\|$`).FindAllStringSubmatch(defects, -1)
	if len(rows) < 2+fewest {
		t.Fatalf("%d rows, want a heading, a line and at least %d defects", len(rows), fewest)
	}
	for i, row := range rows[2:] {
		cells := strings.Split(row[1], " | ")
		number := fmt.Sprintf("M%d", i+1)
		if len(cells) != 4 || strings.TrimSpace(cells[0]) != number {
			t.Errorf("row %q: want four cells, the first of them %s", row[0], number)
			continue
		}
		names := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[3], -1)
		if len(names) == 0 {
			t.Errorf("%s names no test", number)
		}
		for _, name := range names {
			if !strings.Contains(tests, "\nfunc "+name[1]+"(t *testing.T)") {
				t.Errorf("%s: there is no %s", number, name[1])
			}
		}
	}
}

// testSources returns the text of all tests of the module.
func testSources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		all.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}
