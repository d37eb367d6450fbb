package main

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build makes the program as a user would get it.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "testsum")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func TestExitCodeTellsTheOutcome(t *testing.T) {
	program := build(t)
	tests := map[string]struct {
		reason string
		args   []string
		in     string
		code   int
		stdout string
		stderr string
	}{
		"Passed": {
			reason: "tests that passed are a success",
			in:     `{"Action":"pass","Package":"p","Test":"TestA"}`,
			stdout: "1 passed, 0 failed\n",
		},
		"Failed": {
			reason: "one failure fails the whole",
			in:     `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n" + `{"Action":"fail","Package":"p","Test":"TestB"}`,
			code:   1,
			stdout: "1 passed, 1 failed\n",
		},
		"Skipped": {
			reason: "a skip is no failure, and is counted",
			in:     `{"Action":"skip","Package":"p","Test":"TestA"}`,
			stdout: "0 passed, 0 failed, 1 skipped\n",
		},
		"SkippedPackage": {
			reason: "a package that runs no test is a skip with its name, too",
			in:     `{"Action":"output","Package":"p","Output":"skipped all of p: needs root\n"}` + "\n" + `{"Action":"pass","Package":"p"}`,
			stdout: "0 passed, 0 failed, 1 skipped\n",
		},
		"Broken": {
			reason: "a file that cannot be read is neither",
			args:   []string{"-total", "/nonexistent.json"},
			code:   2,
			stderr: "/nonexistent.json",
		},
		"UnknownFlag": {
			reason: "so is a misspelt flag",
			args:   []string{"-kepp=x"},
			code:   2,
			stderr: "-kepp",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(program, tc.args...)
			cmd.Stdin = strings.NewReader(tc.in)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			code := 0
			var exit *exec.ExitError
			if err := cmd.Run(); errors.As(err, &exit) {
				code = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if code != tc.code || !strings.HasSuffix(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("%s: exit code %d, stdout %q, stderr %q", tc.reason, code, &stdout, &stderr)
			}
		})
	}
}

func TestReasonOfASkip(t *testing.T) {
	tests := map[string]struct {
		reason string
		lines  []string
		want   string
	}{
		"Said":   {"what the test said last counts", []string{"=== RUN   TestA\n", "    a_test.go:3: first\n", "    a_test.go:4: needs root\n", "--- SKIP: TestA (0.00s)\n"}, "a_test.go:4: needs root"},
		"Silent": {"a test may skip without a word", []string{"=== RUN   TestA\n", "--- SKIP: TestA (0.00s)\n"}, ""},
		"None":   {"there may be no output at all", nil, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := reason(tc.lines); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestSubtestsAndParents counts as go test -v shows: a parent is a test of its own.
func TestSubtestsAndParents(t *testing.T) {
	var out bytes.Buffer
	s := newSummary(&out)
	in := `{"Action":"pass","Package":"p","Test":"TestA/Sub"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Elapsed":0.25}
`
	if err := s.read(strings.NewReader(in)); err != nil {
		t.Fatal(err)
	}
	s.printTotal()
	if got, want := out.String(), "ok   p 0.2s\n2 passed, 0 failed\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLinesBeyondTheLimitAreAnError(t *testing.T) {
	s := newSummary(&bytes.Buffer{})
	if err := s.read(strings.NewReader(strings.Repeat("x", 17<<20))); err == nil {
		t.Error("no error for a line that does not fit: its test would be lost")
	}
}

func TestFramesOfGoTest(t *testing.T) {
	for line, want := range map[string]bool{"=== RUN   TestA": true, "--- SKIP: TestA (0.00s)": true, "a_test.go:3: why": false, "": false} {
		if got := isFrame(line); got != want {
			t.Errorf("%q: got %t, want %t", line, got, want)
		}
	}
}

// TestDeathShowsOnlyItsPackage: what other packages have said so far is none of it.
func TestDeathShowsOnlyItsPackage(t *testing.T) {
	var out bytes.Buffer
	s := newSummary(&out)
	in := `{"Action":"output","Package":"p","Test":"TestA","Output":"ours\n"}
{"Action":"output","Package":"q","Test":"TestB","Output":"theirs\n"}
{"Action":"fail","Package":"p"}
`
	if err := s.read(strings.NewReader(in)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "ours") || strings.Contains(out.String(), "theirs") {
		t.Errorf("got %q", &out)
	}
}
