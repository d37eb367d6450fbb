package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // of build output
	FailedBuild                   string
	Elapsed                       float64
}

type key struct{ pkg, test string }

// summary counts tests. A subtest is a test; a test that only groups subtests counts too, as `go test -v` shows it.
type summary struct {
	out                     io.Writer
	failures                io.Writer // gets what failed; the same as out unless it is set
	passed, failed, skipped int
	output                  map[key][]string
	build                   map[string][]string
	failedIn                map[string]bool
	skips                   []string
}

func newSummary(out io.Writer) *summary {
	return &summary{out: out, failures: out, output: map[key][]string{}, build: map[string][]string{}, failedIn: map[string]bool{}}
}

func (s *summary) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintln(s.out, lines.Text()) // the go command's own words
			continue
		}
		s.event(e)
	}
	return lines.Err()
}

func (s *summary) readFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	defer f.Close()
	return s.read(f)
}

func (s *summary) event(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output":
		s.output[k] = append(s.output[k], e.Output)
	case "build-output":
		s.build[e.ImportPath] = append(s.build[e.ImportPath], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e)
		} else {
			s.endTest(e, k)
		}
		delete(s.output, k)
	}
}

func (s *summary) endTest(e event, k key) {
	switch e.Action {
	case "pass":
		s.passed++
	case "skip":
		s.skipped++
		s.skips = append(s.skips, fmt.Sprintf("%s.%s: %s", e.Package, e.Test, reason(s.output[k])))
	case "fail":
		s.failed++
		s.failedIn[e.Package] = true
		fmt.Fprintf(s.failures, "--- FAIL %s.%s\n%s", e.Package, e.Test, strings.Join(s.output[k], ""))
	}
}

// endPackage prints the package's line. A package that fails without a failed test, or in the middle of one, for it does not
// build or its process died, counts as one failed test and shows what it has said so far.
func (s *summary) endPackage(e event) {
	if e.Action == "skip" {
		return // no test files
	}
	if e.Action == "fail" && (!s.failedIn[e.Package] || s.inTheMiddle(e.Package)) {
		s.failed++
		fmt.Fprintf(s.failures, "--- FAIL %s\n%s", e.Package, strings.Join(s.build[e.FailedBuild], ""))
		s.printOutput(e.Package)
	}
	if e.Action == "pass" {
		s.skipPackage(e.Package)
	}
	mark := map[string]string{"pass": "ok  ", "fail": "FAIL"}[e.Action]
	fmt.Fprintf(s.out, "%s %s %.1fs\n", mark, e.Package, e.Elapsed)
}

// skipPackage counts a package as one skipped test when its TestMain has run no test and says so: "skipped all of PACKAGE: REASON".
func (s *summary) skipPackage(pkg string) {
	for _, line := range s.output[key{pkg: pkg}] {
		if strings.HasPrefix(line, "skipped all of ") {
			s.skipped++
			s.skips = append(s.skips, pkg+": "+strings.TrimSpace(line))
		}
	}
}

// inTheMiddle reports whether a test of a package has begun and not ended.
func (s *summary) inTheMiddle(pkg string) bool {
	for k := range s.output {
		if k.pkg == pkg && k.test != "" {
			return true
		}
	}
	return false
}

// printOutput prints what the unfinished tests of a package have said.
func (s *summary) printOutput(pkg string) {
	for k, lines := range s.output {
		if k.pkg == pkg {
			fmt.Fprint(s.failures, strings.Join(lines, ""))
			delete(s.output, k)
		}
	}
}

// reason finds what the test said when it skipped: the line before "--- SKIP".
func reason(lines []string) string {
	text := ""
	for _, l := range lines {
		l = strings.TrimSpace(l)
		if l != "" && !isFrame(l) {
			text = l
		}
	}
	return text
}

// isFrame reports whether go test itself wrote the line.
func isFrame(line string) bool {
	return strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---")
}

func (s *summary) printSkipped() {
	slices.Sort(s.skips)
	for _, line := range s.skips {
		fmt.Fprintln(s.out, "skipped", line)
	}
}

func (s *summary) printTotal() {
	fmt.Fprintf(s.out, "%d passed, %d failed", s.passed, s.failed)
	if s.skipped > 0 {
		fmt.Fprintf(s.out, ", %d skipped", s.skipped)
	}
	fmt.Fprintln(s.out)
}
