package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const events = `{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: it broke\n"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:9: needs root\n"}
{"Action":"output","Package":"p","Test":"TestC","Output":"--- SKIP: TestC (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"fail","Package":"p","Elapsed":1.25}
{"Action":"pass","Package":"q","Elapsed":0.5}
{"Action":"skip","Package":"none"}
`

func TestSummary(t *testing.T) {
	tests := map[string]struct {
		reason string
		in     string
		failed bool
		want   []string
		absent []string
	}{
		"Mixed": {
			reason: "each outcome is counted, failures show their output",
			in:     events,
			failed: true,
			want:   []string{"--- FAIL p.TestB\n    b_test.go:7: it broke\n", "FAIL p 1.2s\n", "ok   q 0.5s\n", "1 passed, 1 failed, 1 skipped\n"},
			absent: []string{"RUN", "none"},
		},
		"BuildFailure": {
			reason: "a package that does not build is a failure, with the compiler's words",
			in:     `{"ImportPath":"p.test","Action":"build-output","Output":"x.go:1: syntax error\n"}` + "\n" + `{"Action":"fail","Package":"p","FailedBuild":"p.test"}`,
			failed: true,
			want:   []string{"x.go:1: syntax error", "0 passed, 1 failed\n"},
		},
		"Death": {
			reason: "a process that dies in the middle is a failure, with what it printed",
			in:     `{"Action":"output","Package":"p","Test":"TestA","Output":"panic: oh\n"}` + "\n" + `{"Action":"fail","Package":"p"}`,
			failed: true,
			want:   []string{"panic: oh", "0 passed, 1 failed\n"},
		},
		"DeathAfterAFailure": {
			reason: "the end of a process is told, though a test had failed before: it may have taken too long altogether",
			in: `{"Action":"output","Package":"p","Test":"TestA","Output":"why A failed\n"}` + "\n" + `{"Action":"fail","Package":"p","Test":"TestA"}` + "\n" +
				`{"Action":"output","Package":"p","Test":"TestB","Output":"panic: test timed out\n"}` + "\n" + `{"Action":"fail","Package":"p"}`,
			failed: true,
			want:   []string{"why A failed", "panic: test timed out", "0 passed, 2 failed\n"},
		},
		"Plain": {
			reason: "words of the go command pass through",
			in:     "go: cannot find main module",
			want:   []string{"go: cannot find main module\n", "0 passed, 0 failed\n"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			failed, err := run("", false, nil, strings.NewReader(tc.in), &out)
			if err != nil || failed != tc.failed {
				t.Fatalf("%s: failed %v, %v", tc.reason, failed, err)
			}
			for _, want := range tc.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%s: lacks %q:\n%s", tc.reason, want, &out)
				}
			}
			for _, absent := range tc.absent {
				if strings.Contains(out.String(), absent) {
					t.Errorf("%s: has %q:\n%s", tc.reason, absent, &out)
				}
			}
		})
	}
}

func TestTotalOfKeptFiles(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "1.json"), filepath.Join(dir, "2.json")
	if _, err := run(first, false, nil, strings.NewReader(events), &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(second, []byte(`{"Action":"pass","Package":"r","Test":"TestR"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	failed, err := run("", true, []string{first, second}, nil, &out)
	if err != nil || !failed {
		t.Fatalf("failed %v, %v", failed, err)
	}
	want := "skipped p.TestC: c_test.go:9: needs root\n--- FAIL p.TestB\n    b_test.go:7: it broke\n2 passed, 1 failed, 1 skipped\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", &out, want)
	}
}

func TestMissingFile(t *testing.T) {
	if _, err := run("", true, []string{"/nonexistent"}, nil, &bytes.Buffer{}); err == nil {
		t.Error("no error for a missing file")
	}
	if _, err := run("/nonexistent/x", false, nil, strings.NewReader(""), &bytes.Buffer{}); err == nil {
		t.Error("no error for a file that cannot be kept")
	}
}

// TestTotalGoesOnAfterAMissingFile: what can be read is counted, and the error names what cannot.
func TestTotalGoesOnAfterAMissingFile(t *testing.T) {
	kept := filepath.Join(t.TempDir(), "1.json")
	if _, err := run(kept, false, nil, strings.NewReader(events), &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := run("", true, []string{"/nonexistent", kept}, nil, &out); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(out.String(), "1 passed, 1 failed, 1 skipped") {
		t.Errorf("got %q", &out)
	}
}
