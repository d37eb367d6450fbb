package provisioner

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore-csi/longshore/csikit/metrics"
	"github.com/longshore-csi/longshore/provisioner/internal/capacity"
	"github.com/longshore-csi/longshore/provisioner/internal/claim"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
)

// read returns a document.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// described returns the names of all metrics of a registry that has no values yet.
func described(t *testing.T, collectors ...prometheus.Collector) []string {
	t.Helper()
	ch := make(chan *prometheus.Desc, 100)
	for _, collector := range collectors {
		collector.Describe(ch)
	}
	close(ch)
	var names []string
	pattern := regexp.MustCompile(`fqName: "([a-z_]+)"`)
	for desc := range ch {
		match := pattern.FindStringSubmatch(desc.String())
		if match == nil {
			t.Fatalf("metric %s has no name", desc)
		}
		names = append(names, match[1])
	}
	return names
}

// recorder is a registry that remembers what is registered.
type recorder struct {
	prometheus.Registerer
	collectors []prometheus.Collector
}

// MustRegister implements prometheus.Registerer.
func (r *recorder) MustRegister(collectors ...prometheus.Collector) {
	r.collectors = append(r.collectors, collectors...)
}

func TestEveryMetricIsDocumented(t *testing.T) {
	r := &recorder{Registerer: prometheus.NewRegistry()}
	claim.NewMetrics(r)
	claim.RegisterUnderWay(r, journal.New())
	r.MustRegister(capacity.NewMetrics())
	names := slices.Compact(slices.Sorted(slices.Values(append(described(t, r.collectors...), metrics.SidecarOperations))))
	if len(names) != 14 {
		t.Errorf("metrics %q, want 14 of them", names)
	}
	document := read(t, "docs/metrics.md")
	for _, name := range names {
		if !strings.Contains(document, "`"+name+"`") {
			t.Errorf("metric %s is not in docs/metrics.md", name)
		}
	}
}

// TestEveryEventIsDocumented takes the reasons from the transcripts, which is what users see.
func TestEveryEventIsDocumented(t *testing.T) {
	files, err := filepath.Glob("internal/claim/testdata/flows/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("transcripts %q, %v", files, err)
	}
	event := regexp.MustCompile(`(?m)^(?:\+\S+ )?event (Normal|Warning) (\w+) on`)
	document := read(t, "docs/metrics.md")
	seen := map[string]bool{}
	for _, file := range files {
		for _, match := range event.FindAllStringSubmatch(read(t, file), -1) {
			row := "| `" + match[2] + "` | " + match[1] + " |"
			seen[row] = true
			if !strings.Contains(document, row) {
				t.Errorf("docs/metrics.md has no row %q, which is an event in %s", row, file)
			}
		}
	}
	if len(seen) != 6 {
		t.Errorf("the transcripts show the events %v, want 6 kinds of them", seen)
	}
}

// TestLinksOfDocuments looks for links to files that are not there.
func TestLinksOfDocuments(t *testing.T) {
	link := regexp.MustCompile(`\]\(([a-zA-Z/._-]+\.md)\)`)
	found := 0
	for _, match := range link.FindAllStringSubmatch(read(t, "README.md"), -1) {
		found++
		if _, err := os.Stat(match[1]); err != nil {
			t.Errorf("README.md links to %s: %v", match[1], err)
		}
	}
	if found < 6 {
		t.Errorf("only %d links were found in README.md", found)
	}
}
