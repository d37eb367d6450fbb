package commandtest

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rewriteVariable is the environment variable that makes Golden write.
const rewriteVariable = "REWRITE"

// Golden compares the file at path, relative to the package, with got. It writes the file instead if the
// variable REWRITE is set, or the test binary has a flag -rewrite that is.
func Golden(t testing.TB, path, got string) {
	t.Helper()
	if rewriting() {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatalf("write a golden file: %v", err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("read a golden file, which %s=1 writes: %v", rewriteVariable, err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is out of date, set %s=1 to write it (-file +now):\n%s", path, rewriteVariable, diff)
	}
}

func rewriting() bool {
	f := flag.Lookup("rewrite")
	return os.Getenv(rewriteVariable) != "" || f != nil && f.Value.String() == "true"
}
