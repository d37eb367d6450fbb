package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// transcripts has what a real kubelet does in each scenario.
const transcripts = "testdata/kubelet"

// differencesFile has, below headings with the names of scenarios, what csi-node-agent does otherwise.
const differencesFile = "../nodeagent/docs/differences.md"

// TestKubeletDiff plays scenarios on a node and writes down what its kubelet has a driver do. On a kind cluster the kubelet is the real one, whose
// transcripts are in testdata: they must be as they were (REWRITE=1 writes them). On a development cluster it is csi-node-agent, whose
// transcripts differ from those of the real one as differences.md says, and in nothing else.
func TestKubeletDiff(t *testing.T) {
	node := newKubeletNode(t)
	listed := listedDifferences(t)
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			if !sc.alone {
				t.Parallel()
			}
			err := sc.run(t, node).compare(t, listed[sc.name])
			if err != nil && !node.agent() {
				t.Logf("played again, as components that a kubelet waits for may have been late: %v", err)
				err = sc.run(t, node).compare(t, listed[sc.name])
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// compare compares what was played with the transcript of the kubelet, from which the agent may differ in the listed lines.
func (p *play) compare(t *testing.T, listed string) error {
	t.Helper()
	file := filepath.Join(transcripts, p.scenario.name+".txt")
	if os.Getenv("REWRITE") != "" && !p.node.agent() {
		p.rewrite(file)
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: make e2e SUITE=kubelet REWRITE=1 writes it", err)
	}
	if !p.node.agent() {
		listed = ""
	}
	ctx, cancel := context.WithTimeout(t.Context(), grace)
	defer cancel()
	var diff string
	err = testbed.Poll(ctx, func(ctx context.Context) (bool, error) {
		got, err := p.transcript(ctx)
		if err == nil {
			diff = lineDiff(string(want), got)
		}
		return diff == listed, err
	})
	switch {
	case err == nil:
		return nil
	case p.node.agent():
		return fmt.Errorf("csi-node-agent differs from the kubelet (%w). If that is right, %s needs, with the reason, below the heading %s (empty: remove it):\n%s\nIt has:\n%s",
			err, differencesFile, p.scenario.name, fenced(diff), fenced(listed))
	default:
		return fmt.Errorf("the kubelet does not do what %s says (%w); make e2e SUITE=kubelet REWRITE=1 writes the file:\n%s", file, err, diff)
	}
}

// rewrite writes the transcript of the kubelet.
func (p *play) rewrite(file string) {
	p.T.Helper()
	p.Retry("write "+file, func(ctx context.Context) error {
		got, err := p.transcript(ctx)
		if err == nil {
			err = os.WriteFile(file, []byte(got), 0o600)
		}
		return err
	})
}

// TestKubeletScenarios checks that each transcript and each listed difference belongs to a scenario.
func TestKubeletScenarios(t *testing.T) {
	files, err := filepath.Glob(transcripts + "/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(scenarios) {
		t.Errorf("%d transcripts for %d scenarios: %q", len(files), len(scenarios), files)
	}
	for name := range listedDifferences(t) {
		if !slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == name }) {
			t.Errorf("%s has a difference in the scenario %s, which does not exist", differencesFile, name)
		}
	}
}

// listed finds the differences in a document: a heading that is the name of a scenario, the reason, and the lines.
var listed = regexp.MustCompile("(?m)^### (\\w+)\n\n((?:[^#`\n].*\n)+)\n```diff\n((?:.*\n)*?)```$")

func listedDifferences(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(differencesFile)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, m := range listed.FindAllStringSubmatch(string(text), -1) {
		all[m[1]] = m[3]
	}
	if blocks := strings.Count(string(text), "```diff\n"); blocks != len(all) {
		t.Errorf("%s: %d of %d differences have a heading that is the name of a scenario, and a reason", differencesFile, len(all), blocks)
	}
	return all
}

func fenced(diff string) string { return "```diff\n" + diff + "```" }

// lineDiff returns the lines that differ, with - and +, each below the lines that say where: the heading and the call.
func lineDiff(want, got string) string {
	a, b := strings.SplitAfter(want, "\n"), strings.SplitAfter(got, "\n")
	same := commonLines(a, b)
	var out strings.Builder
	var where, written string
	line := func(sign, text string) {
		if where != written {
			fmt.Fprint(&out, where)
			written = where
		}
		fmt.Fprint(&out, sign+text)
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			where = place(where, a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && same[i+1][j] >= same[i][j+1]:
			line("-", a[i])
			i++
		default:
			line("+", b[j])
			j++
		}
	}
	return out.String()
}

// place is where a line is after another: below its heading, and below the first line of a call.
func place(where, line string) string {
	heading, _, _ := strings.Cut(where, "\n")
	switch {
	case strings.HasPrefix(line, "== "):
		return " " + line
	case strings.HasPrefix(line, " ") || line == "":
		return where
	case heading == "":
		return " " + line
	default:
		return heading + "\n " + line
	}
}

// commonLines counts for each i and j how many lines a[i:] and b[j:] have in common, in order.
func commonLines(a, b []string) [][]int {
	same := make([][]int, len(a)+1)
	for i := range same {
		same[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if same[i][j] = max(same[i+1][j], same[i][j+1]); a[i] == b[j] {
				same[i][j] = same[i+1][j+1] + 1
			}
		}
	}
	return same
}

func TestLineDiff(t *testing.T) {
	const before = "== pod a is created\nNodePublishVolume: OK\n  readonly: false\n  volume_id: v\n== left\nnothing\n"
	tests := map[string]struct{ reason, after, want string }{
		"Same":  {"nothing differs", before, ""},
		"Field": {"the heading and the call say where", strings.Replace(before, "false", "true", 1), " == pod a is created\n NodePublishVolume: OK\n-  readonly: false\n+  readonly: true\n"},
		"Call":  {"a call more", strings.Replace(before, "== left", "NodeUnpublishVolume: OK\n== left", 1), " == pod a is created\n NodePublishVolume: OK\n+NodeUnpublishVolume: OK\n"},
		"End":   {"a line less at the end", strings.TrimSuffix(before, "nothing\n"), " == left\n-nothing\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := lineDiff(before, tc.after); got != tc.want {
				t.Errorf("%s: got\n%s\nwant\n%s", tc.reason, got, tc.want)
			}
		})
	}
}
