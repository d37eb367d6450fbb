package commandtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Defects checks the rows of docs/differences.md whose first cell has numbers of defects, such as "S1, S10": each row has four cells, the number, the
// behaviour of the replaced component, that of this one, and the tests, all of which must exist. A test is the name of a transcript in
// testdata/flows, or of a Go test of the module, or of another directory of the repository: "`TestX` in `csikit/kube`". It returns the numbers.
func Defects(tb testing.TB) map[string]bool {
	tb.Helper()
	data, err := os.ReadFile("docs/differences.md")
	if err != nil {
		tb.Fatal(err)
	}
	return defects(tb, string(data), map[string]string{})
}

var (
	numberPattern = regexp.MustCompile(`^S\d+(, S\d+)*$`)
	testPattern   = regexp.MustCompile("`([^`/]+)[^`]*`(?: in `([^`]+)`)?")
)

// defects is Defects of a document; sources are the test files that were read, by directory.
func defects(tb testing.TB, document string, sources map[string]string) map[string]bool {
	tb.Helper()
	numbers := map[string]bool{}
	for line := range strings.Lines(document) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		number := strings.TrimSpace(cells[0])
		if !numberPattern.MatchString(number) {
			continue
		}
		for n := range strings.SplitSeq(number, ", ") {
			numbers[n] = true
		}
		if len(cells) != 4 || strings.TrimSpace(cells[1]) == "" || strings.TrimSpace(cells[2]) == "" {
			tb.Errorf("%s: %d cells, want four that are not empty", number, len(cells))
			continue
		}
		named := testPattern.FindAllStringSubmatch(cells[3], -1)
		if len(named) == 0 {
			tb.Errorf("%s: no test is named in %q", number, cells[3])
		}
		for _, name := range named {
			checkExists(tb, number, name[1], name[2], sources)
		}
	}
	return numbers
}

// checkExists fails the test unless a transcript, or a Go test, exists. in is the directory in the repository, empty for the module.
func checkExists(tb testing.TB, number, name, in string, sources map[string]string) {
	tb.Helper()
	if !strings.HasPrefix(name, "Test") {
		if _, err := os.Stat(filepath.Join("testdata/flows", name+".txt")); err != nil {
			tb.Errorf("%s: transcript %q: %v", number, name, err)
		}
		return
	}
	dir := "."
	if in != "" {
		dir = filepath.Join("..", in)
	}
	if _, read := sources[dir]; !read {
		sources[dir] = testSources(tb, dir)
	}
	if !strings.Contains(sources[dir], "\nfunc "+name+"(t *testing.T)") {
		tb.Errorf("%s: there is no %s in %s", number, name, dir)
	}
}

// testSources returns the text of all test files below a directory.
func testSources(tb testing.TB, dir string) string {
	tb.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		all.Write(data)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return all.String()
}
