package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// differencesFile has, below headings with the names of scenarios, what csi-node-agent does otherwise. A heading such as "RawBlock since 1.37" is
// about the kubelets of that version and later ones.
const differencesFile = "../nodeagent/docs/differences.md"

// TestKubeletDiff plays scenarios on a node and writes down what its kubelet has a driver do. On a kind cluster the kubelet is the real one, whose
// transcripts are in testdata: those of its minor version must be as they were (REWRITE=1 writes them). On a development cluster it is csi-node-agent,
// whose transcripts differ from those of each version of the real one as differences.md says, and in nothing else.
func TestKubeletDiff(t *testing.T) {
	node := newKubeletNode(t)
	versions, listed := node.versions(t), listedDifferences(t)
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			if !sc.alone {
				t.Parallel()
			}
			err := sc.run(t, node).compare(t, versions, listed)
			if err != nil && !node.agent() {
				t.Logf("played again, as components that a kubelet waits for may have been late: %v", err)
				err = sc.run(t, node).compare(t, versions, listed)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// versions are those of the kubelets with which the node is compared: its own, or, for the agent, all that have transcripts.
func (n *kubeletNode) versions(t *testing.T) []minor {
	t.Helper()
	if n.agent() {
		all, err := transcripts.versions()
		if err != nil || len(all) == 0 {
			t.Fatalf("versions in %s: %v, %v", transcripts, all, err)
		}
		return all
	}
	var own string
	err := testbed.Poll(t.Context(), func(ctx context.Context) (bool, error) {
		node, err := n.Client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
		if err == nil {
			own = node.Status.NodeInfo.KubeletVersion
		}
		return err == nil, err
	})
	if err != nil {
		t.Fatalf("read node %s: %v", n.name, err)
	}
	v, err := parseMinor(own)
	if err != nil {
		t.Fatalf("version %q of the kubelet: %v", own, err)
	}
	t.Logf("kubelet %s", own)
	return []minor{v}
}

// compare compares what was played with the transcripts of kubelets, from which the agent may differ in the listed lines.
func (p *play) compare(t *testing.T, versions []minor, listed differences) error {
	t.Helper()
	var errs []error
	for _, v := range versions {
		errs = append(errs, p.compareWith(t, v, listed.of(p.scenario.name, v)))
	}
	return errors.Join(errs...)
}

func (p *play) compareWith(t *testing.T, v minor, listed string) error {
	t.Helper()
	if os.Getenv("REWRITE") != "" && !p.node.agent() {
		p.rewrite(v)
	}
	file, want, err := transcripts.read(p.scenario.name, v)
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
			diff = lineDiff(want, got)
		}
		return diff == listed, err
	})
	switch {
	case err == nil:
		return nil
	case p.node.agent():
		return fmt.Errorf("csi-node-agent differs from the kubelet %v (%w). If that is right, %s needs, with the reason, below the heading %s, or %[4]s since %[1]v (empty: remove it):\n%[5]s\nIt has:\n%[6]s",
			v, err, differencesFile, p.scenario.name, fenced(diff), fenced(listed))
	default:
		return fmt.Errorf("the kubelet %v does not do what %s says (%w); make e2e SUITE=kubelet REWRITE=1 writes that of this version:\n%s", v, file, err, diff)
	}
}

// rewrite writes the transcript of the kubelet.
func (p *play) rewrite(v minor) {
	p.T.Helper()
	p.Retry(fmt.Sprintf("write the transcript of the kubelet %v", v), func(ctx context.Context) error {
		got, err := p.transcript(ctx)
		if err == nil {
			err = transcripts.write(p.scenario.name, v, got)
		}
		return err
	})
}

// TestKubeletScenarios checks that each scenario has a transcript, and that each transcript and each listed difference is needed.
func TestKubeletScenarios(t *testing.T) {
	versions, err := transcripts.versions()
	if err != nil || len(versions) == 0 {
		t.Fatalf("versions in %s: %v, %v", transcripts, versions, err)
	}
	for _, v := range versions {
		files, err := filepath.Glob(transcripts.file("*", v))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".txt")
			if !isScenario(name) {
				t.Errorf("%s is of the scenario %s, which does not exist", file, name)
			}
			_, text, err := transcripts.read(name, v)
			if former, before, formerErr := transcripts.read(name, v-1); err != nil || formerErr == nil && text == before {
				t.Errorf("%s is as %s (%v): remove it", file, former, err)
			}
		}
	}
	for _, sc := range scenarios {
		if _, _, err := transcripts.read(sc.name, slices.Min(versions)); err != nil {
			t.Error(err)
		}
	}
	for name := range listedDifferences(t) {
		if !isScenario(name) {
			t.Errorf("%s has a difference in the scenario %s, which does not exist", differencesFile, name)
		}
	}
}

func isScenario(name string) bool {
	return slices.ContainsFunc(scenarios, func(s scenario) bool { return s.name == name })
}

// differences has the listed lines of each scenario, by the version since which they count; 0 is all.
type differences map[string]map[minor]string

// of returns the lines that count for a version.
func (d differences) of(scenario string, v minor) string {
	for ; v > 0; v-- {
		if lines, ok := d[scenario][v]; ok {
			return lines
		}
	}
	return d[scenario][0]
}

// listed finds the differences in a document: a heading that is the name of a scenario, the reason, and the lines.
var listed = regexp.MustCompile("(?m)^### (\\w+)(?: since (\\S+))?\n\n((?:[^#`\n].*\n)+)\n```diff\n((?:.*\n)*?)```$")

func listedDifferences(t *testing.T) differences {
	t.Helper()
	text, err := os.ReadFile(differencesFile)
	if err != nil {
		t.Fatal(err)
	}
	all, err := parseDifferences(string(text))
	if err != nil {
		t.Fatalf("%s: %v", differencesFile, err)
	}
	return all
}

func parseDifferences(text string) (differences, error) {
	all, found := differences{}, 0
	for _, m := range listed.FindAllStringSubmatch(text, -1) {
		name, since, lines := m[1], minor(0), m[4]
		if m[2] != "" {
			var err error
			if since, err = parseMinor(m[2]); err != nil {
				return nil, fmt.Errorf("difference in the scenario %s: %w", name, err)
			}
		}
		if all[name] == nil {
			all[name] = map[minor]string{}
		}
		if _, twice := all[name][since]; !twice {
			found++
		}
		all[name][since] = lines
	}
	if blocks := strings.Count(text, "```diff\n"); blocks != found {
		return nil, fmt.Errorf("%d of %d differences have a heading of their own that is the name of a scenario, and a reason", found, blocks)
	}
	return all, nil
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

func TestDifferencesOfVersions(t *testing.T) {
	block := func(heading, lines string) string {
		return "### " + heading + "\n\nThe reason.\n\n```diff\n" + lines + "```\n\n"
	}
	d, err := parseDifferences(block("A", "-a\n") + block("A since 1.37", "-b\n") + block("A since 1.39", "") + block("B since 1.37", "-c\n"))
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		reason, scenario string
		version          minor
		want             string
	}{
		"Before": {"the heading without a version is about all that have no other", "A", 36, "-a\n"},
		"Since":  {"the version of the heading", "A", 37, "-b\n"},
		"Later":  {"a later one that has no heading of its own", "A", 38, "-b\n"},
		"Ended":  {"without lines there is no difference any more", "A", 39, ""},
		"None":   {"no heading is about this version", "B", 36, ""},
		"New":    {"only newer kubelets differ", "B", 37, "-c\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := d.of(tc.scenario, tc.version); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
	for name, text := range map[string]string{"NoVersion": block("A since now", ""), "Twice": block("A", "") + block("A", ""), "NoReason": "### A\n\n```diff\n```\n"} {
		if d, err := parseDifferences(text); err == nil {
			t.Errorf("%s: got %v, want an error", name, d)
		}
	}
}
