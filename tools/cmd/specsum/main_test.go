package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// report is how ginkgo writes: a list of suites; among the specs are the set-up of the whole and what was not selected.
const report = `[{"SuitePath": "/suite", "RunTime": 61500000000, "SpecReports": [
	{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
	{"ContainerHierarchyTexts": ["Storage", "subPath"], "LeafNodeType": "It", "LeafNodeText": "mounts", "State": "passed"},
	{"ContainerHierarchyTexts": ["Storage"], "LeafNodeType": "It", "LeafNodeText": "not selected", "State": "skipped"},
	{"LeafNodeType": "It", "State": "skipped", "Failure": {"Message": "Driver \"x\" has no blocks -- skipping"}},
	{"LeafNodeType": "It", "State": "skipped", "Failure": {"Message": "Driver \"x\" has no snapshots - skipping"}},
	{"LeafNodeType": "It", "State": "skipped", "Failure": {"Message": "Driver \"x\" has no snapshots - skipping"}},
	{"LeafNodeType": "It", "State": "pending"}
]}]`

const good = `skipped because
     2  Driver "x" has no snapshots
     1  Driver "x" has no blocks
     1  marked as pending
1 specs run: 1 passed, 0 failed; 4 skipped; 1m2s
`

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func withSpec(spec string) string { return strings.Replace(report, "[\n", "[\n"+spec+",", 1) }

func TestSummary(t *testing.T) {
	failure := `{"ContainerHierarchyTexts": ["Storage", "subPath"], "LeafNodeType": "It", "LeafNodeText": "unmounts", "State": "failed", "Failure": {"Message": "first\nsecond"}}`
	tests := map[string]struct {
		reason string
		report string
		ok     bool
		want   string
	}{
		"Passed": {reason: "nothing failed", report: report, ok: true, want: good},
		"Failed": {
			reason: "a failure is told by its name and message", report: withSpec(failure),
			want: "FAIL Storage subPath unmounts (failed)\n    first\n    second\n" + strings.Replace(good, "1 specs run: 1 passed, 0 failed", "2 specs run: 1 passed, 1 failed", 1),
		},
		"SetUpFailed": {
			reason: "without a set-up no spec can say that it failed",
			report: withSpec(`{"LeafNodeType": "SynchronizedBeforeSuite", "State": "panicked", "Failure": {"Message": "no cluster"}}`),
			want:   "FAIL SynchronizedBeforeSuite (panicked)\n    no cluster\n",
		},
		"TimedOut": {
			reason: "a suite may fail although no spec did",
			report: strings.Replace(report, `"SuitePath"`, `"SpecialSuiteFailureReasons": ["Suite Timeout Elapsed"], "SuitePath"`, 1),
			want:   "FAIL Suite Timeout Elapsed\n" + good,
		},
		"NothingRun": {reason: "a focus that finds nothing is a mistake", report: `[{"SpecReports": []}]`, want: "0 specs run: 0 passed, 0 failed; 0 skipped; 0s\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			ok, err := run([]string{write(t, tc.report)}, &out)
			if err != nil || ok != tc.ok || !strings.HasPrefix(out.String(), tc.want) {
				t.Errorf("%s: got %t, %v\n%s\nwant\n%s", tc.reason, ok, err, &out, tc.want)
			}
		})
	}
}

func TestReportsAreSummedUp(t *testing.T) {
	var out bytes.Buffer
	ok, err := run([]string{write(t, report), write(t, report)}, &out)
	if err != nil || !ok || !strings.HasSuffix(out.String(), "2 specs run: 2 passed, 0 failed; 8 skipped; 2m3s\n") {
		t.Errorf("got %t, %v\n%s", ok, err, &out)
	}
}

func TestExitCodeTellsTheOutcome(t *testing.T) {
	program := filepath.Join(t.TempDir(), "specsum")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	tests := map[string]struct {
		reason string
		file   string
		code   int
		want   string
	}{
		"Passed":  {reason: "what passed is a success", file: write(t, report), want: "1 passed"},
		"Failed":  {reason: "one failure fails the whole", file: write(t, withSpec(`{"State": "timedout"}`)), code: 1, want: "1 failed"},
		"Missing": {reason: "no report is neither", file: "/nonexistent.json", code: 2, want: "/nonexistent.json"},
		"Broken":  {reason: "nor is one that was cut off", file: write(t, report[:200]), code: 2, want: "read the report"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(program, tc.file)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != tc.code || !strings.Contains(string(out), tc.want) {
				t.Errorf("%s: exit code %d\n%s", tc.reason, code, out)
			}
		})
	}
}
