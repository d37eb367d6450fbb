package commandtest

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

// keep makes sure that this test compares, also while golden files are written.
func keep(t *testing.T) { t.Setenv(rewriteVariable, "") }

func TestGolden(t *testing.T) {
	keep(t)
	path := filepath.Join(t.TempDir(), "golden.txt")
	if err := os.WriteFile(path, []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		reason string
		path   string
		got    string
		want   []string
	}{
		"Same":   {reason: "nothing has changed", path: path, got: "one\n"},
		"Other":  {reason: "the failure says how to renew the file", path: path, got: "two\n", want: []string{"set REWRITE=1"}},
		"Longer": {reason: "all of the file counts", path: path, got: "one\n\n", want: []string{"out of date"}},
		"Absent": {reason: "a file that is not there is not empty", path: path + ".absent", got: "", want: []string{"golden.txt.absent"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			wantFailures(t, tc.reason, failuresOf(t, func(t testing.TB) { Golden(t, tc.path, tc.got) }), tc.want...)
		})
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "one\n" {
		t.Errorf("the file has %q (%v) after it was compared", text, err)
	}
}

func TestGoldenWrites(t *testing.T) {
	cases := map[string]struct {
		reason string
		ask    func(t *testing.T)
	}{
		"Variable": {reason: "the variable works everywhere", ask: func(t *testing.T) { t.Setenv(rewriteVariable, "1") }},
		"Flag": {reason: "the flag of golden transcripts counts, too", ask: func(t *testing.T) {
			keep(t)
			before := flag.CommandLine
			t.Cleanup(func() { flag.CommandLine = before })
			flag.CommandLine = flag.NewFlagSet("", flag.ContinueOnError)
			flag.Bool("rewrite", true, "")
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.ask(t)
			path := filepath.Join(t.TempDir(), "golden.txt")
			Golden(t, path, "new\n")
			if text, err := os.ReadFile(path); err != nil || string(text) != "new\n" {
				t.Errorf("%s: the file has %q, %v", tc.reason, text, err)
			}
			wantFailures(t, "a file that cannot be written", failuresOf(t, func(t testing.TB) {
				Golden(t, filepath.Join(path, "below"), "")
			}), "write a golden file")
		})
	}
}

// A flag that is not set changes nothing.
func TestGoldenComparesWithoutTheFlag(t *testing.T) {
	keep(t)
	before := flag.CommandLine
	t.Cleanup(func() { flag.CommandLine = before })
	flag.CommandLine = flag.NewFlagSet("", flag.ContinueOnError)
	flag.Bool("rewrite", false, "")
	if rewriting() {
		t.Error("the file would be written")
	}
}
