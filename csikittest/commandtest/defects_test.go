package commandtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// complaints keeps the errors of a test.
type complaints struct {
	testing.TB
	texts []string
}

func (c *complaints) Helper() {}
func (c *complaints) Errorf(format string, args ...any) {
	c.texts = append(c.texts, fmt.Sprintf(format, args...))
}

// TestDefects reads documents with and without what is wrong.
func TestDefects(t *testing.T) {
	tests := map[string]struct {
		reason, document string
		want             []string // numbers
		complaint        string
	}{
		"Right":        {"a test of this module", "| S1, S10 | bad | good | `TestDefects` |", []string{"S1", "S10"}, ""},
		"Subtest":      {"a case of it", "| S1 | bad | good | `TestDefects/Right` |", []string{"S1"}, ""},
		"Elsewhere":    {"a test of another directory", "| S1 | bad | good | `TestDefects` in `commandtest` |", []string{"S1"}, ""},
		"Other":        {"rows without a number are free", "| | bad | good |\n| # | theirs | ours | test |\nS1 is text", nil, ""},
		"NoTest":       {"a test that does not exist", "| S1 | bad | good | `TestNothing` |", []string{"S1"}, "there is no TestNothing"},
		"NoTranscript": {"a transcript that does not exist", "| S2 | bad | good | `nothing` |", []string{"S2"}, `transcript "nothing"`},
		"NoName":       {"nothing shows it", "| S3 | bad | good | none |", []string{"S3"}, "no test is named"},
		"Short":        {"a cell is missing", "| S4 | bad | `TestDefects` |", []string{"S4"}, "3 cells"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := &complaints{TB: t}
			got := defects(c, tt.document, map[string]string{})
			want := map[string]bool{}
			for _, number := range tt.want {
				want[number] = true
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
			if said := strings.Join(c.texts, "; "); (said == "") != (tt.complaint == "") || !strings.Contains(said, tt.complaint) {
				t.Errorf("%s: said %q, want %q", tt.reason, said, tt.complaint)
			}
		})
	}
}
