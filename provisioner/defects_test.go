package provisioner

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDefects looks at the table of docs/differences.md: it has each number once, and its tests exist.
func TestDefects(t *testing.T) {
	_, table, ok := strings.Cut(read(t, "docs/differences.md"), "## By number")
	if !ok {
		t.Fatal("docs/differences.md has no section \"By number\"")
	}
	var want, got []string
	for prefix, count := range map[string]int{"D": 10, "C": 6, "P": 20} {
		for n := range count {
			want = append(want, fmt.Sprint(prefix, n+1))
		}
	}
	known := testsOf(t, ".", "../topology", "../csikit", "../csikittest")
	for _, line := range strings.Split(table, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !regexp.MustCompile(`^[DCP][0-9]+$`).MatchString(strings.TrimSpace(cells[1])) {
			continue
		}
		number := strings.TrimSpace(cells[1])
		got = append(got, number)
		tests := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[4], -1)
		if len(tests) == 0 || strings.TrimSpace(cells[2]) == "" || strings.TrimSpace(cells[3]) == "" {
			t.Errorf("%s: a cell is empty", number)
		}
		for _, test := range tests {
			if !known[test[1]] {
				t.Errorf("%s: there is no test %q", number, test[1])
			}
		}
		t.Logf("%s:%s", number, cells[4])
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("numbers %q, want each of %q once", got, want)
	}
}

// testsOf returns the names of the test functions and of the transcripts of modules.
func testsOf(t *testing.T, modules ...string) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
	for _, module := range modules {
		err := filepath.WalkDir(module, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if !entry.IsDir() && filepath.Ext(path) == ".txt" {
				known[filepath.Base(path)] = true
			}
			if !strings.HasSuffix(path, "_test.go") {
				return nil
			}
			text, err := os.ReadFile(path)
			for _, match := range function.FindAllSubmatch(text, -1) {
				known[string(match[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return known
}
