package healthmonitor

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRequirements looks for the tests that README.md and docs/differences.md name.
func TestRequirements(t *testing.T) {
	var sources strings.Builder
	for _, pattern := range []string{"*_test.go", "internal/controller/*_test.go"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			sources.WriteString(read(t, path))
		}
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z]+)(?:/([a-z_]+))?`").FindAllStringSubmatch(read(t, "README.md")+read(t, "docs/differences.md"), -1)
	if len(named) < 20 {
		t.Errorf("only %d tests are named", len(named))
	}
	for _, test := range named {
		if !strings.Contains(sources.String(), "func "+test[1]+"(") {
			t.Errorf("there is no test %s", test[1])
		}
		if flow := test[2]; flow != "" {
			read(t, filepath.Join("testdata", "flows", flow+".txt"))
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
