package nodeagent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// ownModule is the directory of this module in the repository.
const ownModule = "nodeagent"

// requirementGroup is a part of docs/requirements.yaml.
type requirementGroup struct {
	Title string        `json:"title"`
	Rows  []requirement `json:"rows"`
}

// requirement is a row of it.
type requirement struct {
	ID           string   `json:"id"`
	Requirement  string   `json:"requirement"`
	Tests        []string `json:"tests"`
	DoesNotApply string   `json:"doesNotApply"`
	NotYet       string   `json:"notYet"`
}

// requirementIDs lists the ids that the table must have, in their order.
func requirementIDs() []string {
	var all []string
	for _, part := range []struct {
		prefix string
		last   int
	}{{"", 96}, {"S", 38}, {"T", 9}, {"E", 9}} {
		for i := 1; i <= part.last; i++ {
			all = append(all, fmt.Sprint(part.prefix, i))
		}
	}
	for _, issue := range []int{121937, 120150, 101791, 101911, 108217, 82190, 86360, 121271, 90752, 126921, 71424, 91556} {
		all = append(all, fmt.Sprint("#", issue))
	}
	return all
}

// TestRequirements checks the table of requirements: each of them has its row, each row says what shows it or why nothing does,
// the tests exist, and docs/requirements.md is what docs/requirements.yaml says.
func TestRequirements(t *testing.T) {
	text, err := os.ReadFile("docs/requirements.yaml")
	if err != nil {
		t.Fatal(err)
	}
	groups, err := parseRequirements(text)
	if err != nil {
		t.Fatal(err)
	}
	modules := testModules{}
	for _, problem := range append(checkIDs(groups, requirementIDs()), checkRows(groups, modules.check)...) {
		t.Error(problem)
	}
	commandtest.Golden(t, "docs/requirements.md", requirementsMarkdown(groups))
}

func parseRequirements(text []byte) ([]requirementGroup, error) {
	var groups []requirementGroup
	if err := yaml.UnmarshalStrict(text, &groups); err != nil {
		return nil, fmt.Errorf("parse the requirements: %w", err)
	}
	return groups, nil
}

// checkIDs returns what is wrong with the ids: each has to be there once.
func checkIDs(groups []requirementGroup, want []string) (problems []error) {
	count := map[string]int{}
	for _, g := range groups {
		for _, r := range g.Rows {
			count[r.ID]++
		}
	}
	for _, id := range want {
		if n := count[id]; n != 1 {
			problems = append(problems, fmt.Errorf("requirement %s has %d rows, want one", id, n))
		}
		delete(count, id)
	}
	for id := range count {
		problems = append(problems, fmt.Errorf("requirement %q does not exist", id))
	}
	return problems
}

// checkRows returns what is wrong with the rows; exists returns an error for a test that does not exist.
func checkRows(groups []requirementGroup, exists func(test string) error) (problems []error) {
	for _, g := range groups {
		for _, r := range g.Rows {
			for _, err := range append(r.check(), r.checkTests(exists)...) {
				problems = append(problems, fmt.Errorf("requirement %s: %w", r.ID, err))
			}
		}
	}
	return problems
}

// check returns what is wrong with a row apart from its tests.
func (r *requirement) check() (problems []error) {
	if r.Requirement == "" {
		problems = append(problems, errors.New("it does not say what is required"))
	}
	if len(r.Tests) == 0 && r.DoesNotApply == "" && r.NotYet == "" {
		problems = append(problems, errors.New("it has neither tests nor doesNotApply nor notYet"))
	}
	if r.DoesNotApply != "" && (r.NotYet != "" || len(r.Tests) > 0) {
		problems = append(problems, errors.New("a requirement that does not apply has neither tests nor notYet"))
	}
	if strings.ContainsAny(r.Requirement+r.DoesNotApply+r.NotYet, "|\n") {
		problems = append(problems, errors.New("a cell of a table is one line without |"))
	}
	return problems
}

func (r *requirement) checkTests(exists func(test string) error) (problems []error) {
	for i, test := range r.Tests {
		if slices.Contains(r.Tests[:i], test) {
			problems = append(problems, fmt.Errorf("%s is there twice", test))
		}
		if err := exists(test); err != nil {
			problems = append(problems, err)
		}
	}
	return problems
}

// testModules has the tests of the modules that were looked at: for each name, the files that have a test of it.
type testModules map[string]map[string][]string

var (
	namedTest    = regexp.MustCompile(`^([a-z0-9/]+) (Test[A-Za-z0-9_]*)((?:/[^/ ]+)*)$`)
	testFunction = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]*)\(`)
)

// check returns an error if a test, written as "MODULE TestName/Case", does not exist. Other modules are looked up only in the
// repository.
func (m testModules) check(test string) error {
	parts := namedTest.FindStringSubmatch(test)
	if parts == nil {
		return fmt.Errorf("%q is not MODULE TestName or MODULE TestName/Case", test)
	}
	module, name, cases := parts[1], parts[2], strings.Split(parts[3], "/")[1:]
	if module != ownModule && !inRepository() {
		return nil
	}
	tests, err := m.of(module)
	if err != nil {
		return err
	}
	files := tests[name]
	if len(files) == 0 {
		return fmt.Errorf("there is no %s in module %s", name, module)
	}
	for _, c := range cases {
		if !slices.ContainsFunc(files, func(file string) bool { return hasCase(file, c) }) {
			return fmt.Errorf("there is no case %s of %s in module %s", c, name, module)
		}
	}
	return nil
}

// inRepository reports whether the other modules are there.
func inRepository() bool {
	_, err := os.Stat("../go.work")
	return err == nil
}

// of returns the tests of a module, by name.
func (m testModules) of(module string) (map[string][]string, error) {
	if tests, ok := m[module]; ok {
		return tests, nil
	}
	dir := "."
	if module != ownModule {
		dir = filepath.Join("..", module)
	}
	tests := map[string][]string{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && otherModule(path):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, found := range testFunction.FindAllSubmatch(text, -1) {
			tests[string(found[1])] = append(tests[string(found[1])], path)
		}
		return err
	}); err != nil {
		return nil, fmt.Errorf("find the tests of module %s: %w", module, err)
	}
	m[module] = tests
	return tests, nil
}

// otherModule reports whether a directory is a module.
func otherModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// hasCase reports whether a test file has a case of a name: as text in quotes, or as a transcript in testdata.
func hasCase(file, name string) bool {
	text, err := os.ReadFile(file)
	if err == nil && strings.Contains(string(text), `"`+name+`"`) {
		return true
	}
	transcripts, err := filepath.Glob(filepath.Join(filepath.Dir(file), "testdata", "*", name+".txt"))
	return err == nil && len(transcripts) > 0
}

const requirementsIntro = `# Requirements

Each requirement for the agent, and the tests that show it. This file is written by ` + "`REWRITE=1 go test -run TestRequirements .`" + `
from [requirements.yaml](requirements.yaml).

| Number | Where it is from |
|---|---|
| 1-96 | what the kubelet of Kubernetes 1.36 does with CSI volumes; where it has a known defect, what is right |
| S1-S38 | the design documents: seed 000 and 001 (CSI volume plugin), 002 (pod information), 003 (ephemeral inline volumes) |
| T1-T9, E1-E9 | the test plan of seed 003, unit tests and end-to-end tests |
| #... | issues of kubernetes/kubernetes whose failures must not occur here |

Tests without a module are of this module; ` + "`e2e TestX`" + ` is a test of the module ` + "`e2e`" + `. What a volume may ask for in vain, with
the events, is in [differences.md](differences.md).
`

// requirementsMarkdown renders the table, with a summary at the top.
func requirementsMarkdown(groups []requirementGroup) string {
	var b strings.Builder
	b.WriteString(requirementsIntro)
	var shown, notYet, excluded int
	var unmet strings.Builder
	for _, g := range groups {
		var ids []string
		for _, r := range g.Rows {
			switch {
			case r.DoesNotApply != "":
				excluded++
			case r.NotYet != "":
				notYet++
				ids = append(ids, r.ID)
			default:
				shown++
			}
		}
		if len(ids) > 0 {
			fmt.Fprintf(&unmet, "- %s: %s\n", g.Title, strings.Join(ids, ", "))
		}
	}
	fmt.Fprintf(&b, "\n## Not yet\n\nOf %d requirements %d are shown by tests, %d do not apply, and %d are not met, or only in part:\n\n%s",
		shown+notYet+excluded, shown, excluded, notYet, cmp.Or(unmet.String(), "(none)\n"))
	for _, g := range groups {
		fmt.Fprintf(&b, "\n## %s\n\n| # | Requirement | Shown by |\n|---|---|---|\n", g.Title)
		for _, r := range g.Rows {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", r.ID, r.Requirement, r.shownBy())
		}
	}
	return b.String()
}

// shownBy is the last cell of a row.
func (r *requirement) shownBy() string {
	if r.DoesNotApply != "" {
		return "Does not apply: " + r.DoesNotApply
	}
	tests := make([]string, 0, len(r.Tests))
	for _, test := range r.Tests {
		tests = append(tests, "`"+strings.TrimPrefix(test, ownModule+" ")+"`")
	}
	list := strings.Join(tests, ", ")
	if r.NotYet == "" {
		return list
	}
	return strings.TrimSuffix("**Not yet:** "+r.NotYet+" "+list, " ")
}

// TestRequirementsAreChecked: each mistake in the table is found.
func TestRequirementsAreChecked(t *testing.T) {
	const good = "{id: '1', requirement: It works., tests: [nodeagent TestRequirements]}"
	cases := map[string]struct {
		reason, rows, want string
	}{
		"Good":          {reason: "nothing is wrong", rows: good},
		"Case":          {reason: "a case of a test", rows: "{id: '1', requirement: It works., tests: [nodeagent TestRequirementsAreChecked/Case]}"},
		"Transcript":    {reason: "a case that is a transcript", rows: "{id: '1', requirement: It works., tests: [kubeletplugin TestExpansions/online]}"},
		"Missing":       {reason: "a row is missing", want: "requirement 1 has 0 rows"},
		"Duplicate":     {reason: "an id is used twice", rows: good + ", " + good, want: "requirement 1 has 2 rows"},
		"Unknown":       {reason: "an id that does not exist", rows: good + ", {id: X, requirement: It works., notYet: It does not.}", want: `requirement "X" does not exist`},
		"NoText":        {reason: "a row that requires nothing", rows: "{id: '1', notYet: It does not.}", want: "does not say what is required"},
		"Empty":         {reason: "a row without an answer", rows: "{id: '1', requirement: It works.}", want: "neither tests nor doesNotApply nor notYet"},
		"Contradiction": {reason: "two answers", rows: "{id: '1', requirement: It works., doesNotApply: No., notYet: It does not.}", want: "neither tests nor notYet"},
		"Pipe":          {reason: "the table would break", rows: "{id: '1', requirement: 'a|b', notYet: It does not.}", want: "one line without |"},
		"Twice":         {reason: "a test is named twice", rows: "{id: '1', requirement: It works., tests: [nodeagent TestRequirements, nodeagent TestRequirements]}", want: "is there twice"},
		"NoTest":        {reason: "a test that does not exist", rows: "{id: '1', requirement: It works., tests: [nodeagent TestNothingAtAll]}", want: "there is no TestNothingAtAll in module nodeagent"},
		"NoCase":        {reason: "a case that does not exist", rows: "{id: '1', requirement: It works., tests: [nodeagent TestRequirements/Nowhere]}", want: "there is no case"},
		"NoModule":      {reason: "a name without its module", rows: "{id: '1', requirement: It works., tests: [TestRequirements]}", want: "is not MODULE TestName"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			groups, err := parseRequirements([]byte("- {title: One, rows: [" + tc.rows + "]}"))
			if err != nil {
				t.Fatal(err)
			}
			problems := append(checkIDs(groups, []string{"1"}), checkRows(groups, testModules{}.check)...)
			got := fmt.Sprint(errors.Join(problems...))
			if (len(problems) == 0) != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("%s: got %s, want %q", tc.reason, got, tc.want)
			}
		})
	}
	if _, err := parseRequirements([]byte("- {title: One, rows: [{id: '1', test: [x]}]}")); err == nil {
		t.Error("a misspelt field is not found")
	}
}
