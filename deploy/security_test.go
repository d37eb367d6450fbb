package deploy

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityNamesTests: the tests that SECURITY.md names exist.
func TestSecurityNamesTests(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	known := map[string]bool{}
	err := fs.WalkDir(os.DirFS(".."), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile("../" + path)
		for _, m := range declared.FindAllSubmatch(text, -1) {
			known[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(contentOf(t, "../SECURITY.md"), -1)
	for _, m := range named {
		if !known[m[1]] {
			t.Errorf("SECURITY.md names %s, which does not exist", m[1])
		}
	}
	if len(named) < 30 {
		t.Errorf("SECURITY.md names %d tests", len(named))
	}
}
