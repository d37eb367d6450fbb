package sanity

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
)

// tableFile has a row for each configuration.
const tableFile = "../../docs/sanity.md"

//nolint:dupword // it is a table
const tableHead = `# csi-sanity

csi-sanity v5.6.0 in every configuration of [test/sanity](../test/sanity). The test itself compares the numbers; as root,
UPDATE_DOCS=1 go test . writes them. Skipped are specs about what a configuration does not announce.

| configuration | run | passed | failed | skipped |
|---|---|---|---|---|
`

// count is how the specs of a configuration have ended.
type count struct{ passed, failed, skipped int }

func (c count) row(name string) string {
	return fmt.Sprintf("| %s | %d | %d | %d | %d |\n", name, c.passed+c.failed, c.passed, c.failed, c.skipped)
}

// countSpecs counts by the name of the configuration.
func countSpecs(report ginkgo.Report) map[string]count {
	counts := map[string]count{}
	for _, spec := range report.SpecReports {
		if spec.LeafNodeType != types.NodeTypeIt {
			continue
		}
		name := spec.ContainerHierarchyTexts[0]
		c := counts[name]
		switch {
		case spec.State.Is(types.SpecStatePassed):
			c.passed++
		case spec.State.Is(types.SpecStateSkipped | types.SpecStatePending):
			c.skipped++
		default:
			c.failed++
		}
		counts[name] = c
	}
	return counts
}

// compareTable compares the rows of the configurations that have run with those
// in the documentation. Where some need root and have not run, theirs are not
// looked at.
func compareTable(t *testing.T, counts map[string]count) {
	t.Helper()
	rows, total := "", count{}
	for _, c := range configurations() {
		counted, run := counts[c.name]
		if !run {
			continue
		}
		if counted.passed == 0 {
			t.Errorf("configuration %q: no spec has passed", c.name)
		}
		rows += counted.row(c.name)
		total = count{total.passed + counted.passed, total.failed + counted.failed, total.skipped + counted.skipped}
	}
	t.Logf("all passed %d, failed %d, skipped %d\n%s", total.passed, total.failed, total.skipped, rows)
	complete := len(counts) == len(configurations())
	if complete {
		rows += total.row("all")
	}
	if complete && os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(tableFile, []byte(tableHead+rows), 0o644); err != nil { // documentation is readable
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	if !complete {
		var kept strings.Builder
		for line := range strings.Lines(strings.TrimPrefix(want, tableHead)) {
			if strings.Contains(rows, "| "+strings.Split(line, "|")[1][1:]) {
				kept.WriteString(line)
			}
		}
		want = tableHead + kept.String()
	}
	if diff := cmp.Diff(want, tableHead+rows); diff != "" {
		t.Errorf("%s is not what has run (-want +got):\n%s", tableFile, diff)
	}
}
