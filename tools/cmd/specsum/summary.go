package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// suite is what we read of ginkgo's types.Report; its keys are the names of Go fields.
type suite struct {
	SpecReports []spec
	RunTime     time.Duration
	// SpecialSuiteFailureReasons say why a suite failed when no spec did: a timeout, or nothing that could be run.
	SpecialSuiteFailureReasons []string
}

// spec is what we read of ginkgo's types.SpecReport.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeText            string
	LeafNodeType            string
	State                   string
	Failure                 struct{ Message string }
}

func (s spec) name() string {
	if s.LeafNodeText == "" {
		return s.LeafNodeType
	}
	return strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
}

// summary is the sum of all suites.
type summary struct {
	passed, failed, skipped int
	failures                []string
	reasons                 map[string]int
	took                    time.Duration
}

func (s *summary) add(suite suite) {
	s.took += suite.RunTime
	for _, spec := range suite.SpecReports {
		s.addSpec(spec)
	}
	// They are no specs and are not counted as such.
	for _, reason := range suite.SpecialSuiteFailureReasons {
		if reason != "Interrupted by Other Ginkgo Process" { // which is listed itself
			s.failures = append(s.failures, reason)
		}
	}
}

func (s *summary) addSpec(spec spec) {
	isSpec := spec.LeafNodeType == "It"
	switch spec.State {
	case "passed":
		if isSpec { // and not the set-up of the whole, which says nothing unless it fails
			s.passed++
		}
	case "skipped":
		// Without a reason it was left out by a focus or a filter.
		if isSpec && spec.Failure.Message != "" {
			s.skip(spec.Failure.Message)
		}
	case "pending":
		s.skip("marked as pending")
	default: // failed, panicked, timedout, interrupted, aborted, and what is yet to come
		s.fail(fmt.Sprintf("%s (%s)\n%s", spec.name(), spec.State, indent(spec.Failure.Message)))
	}
}

// ok reports whether something passed and nothing failed.
func (s *summary) ok() bool { return s.passed > 0 && len(s.failures) == 0 }

func (s *summary) fail(what string) {
	s.failed++
	s.failures = append(s.failures, what)
}

func (s *summary) skip(reason string) {
	if s.reasons == nil {
		s.reasons = map[string]int{}
	}
	s.skipped++
	s.reasons[withoutSkipping(reason)]++
}

// withoutSkipping drops the words with which the reasons of the Kubernetes suites end.
func withoutSkipping(reason string) string {
	reason = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(reason), "skipping"))
	return strings.TrimRight(reason, "- ")
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ")
}

// print writes failures first, then the reasons, the most frequent first, and the numbers in the last line.
func (s *summary) print(out io.Writer) {
	for _, f := range s.failures {
		fmt.Fprintln(out, "FAIL", f)
	}
	if s.skipped > 0 {
		fmt.Fprintln(out, "skipped because")
	}
	reasons := slices.SortedFunc(maps.Keys(s.reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.reasons[b], s.reasons[a]), cmp.Compare(a, b))
	})
	for _, reason := range reasons {
		fmt.Fprintf(out, "%6d  %s\n", s.reasons[reason], reason)
	}
	fmt.Fprintf(out, "%d specs run: %d passed, %d failed; %d skipped; %s\n",
		s.passed+s.failed, s.passed, s.failed, s.skipped, s.took.Round(time.Second))
}
