package commandtest

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/csikit/command"
)

func component(run func(context.Context, options) error) command.Component[options, *options] {
	return command.New("csi-small", newOptions, run)
}

// The files of a component with two flags are in this package's testdata and docs.
func TestBinary(t *testing.T) {
	t.Chdir("testdata/component")
	Binary(t, "csi-small", newOptions, "--workers=0")
}

func TestHelpFails(t *testing.T) {
	keep(t)
	path := filepath.Join(t.TempDir(), "help.txt")
	if err := os.WriteFile(path, []byte("Usage of csi-small:\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := failuresOf(t, func(t testing.TB) { help(t, component(nil), path) })
	wantFailures(t, "a help text of old", got, "out of date")
	if !strings.Contains(strings.Join(got, ""), "automaxprocs") {
		t.Errorf("the failure does not show the flag that is new: %q", got)
	}
}

func TestFlagsDocument(t *testing.T) {
	keep(t)
	good, err := os.ReadFile("testdata/component/docs/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		reason   string
		old, new string
		want     []string
	}{
		"Same":     {reason: "the document is good"},
		"Prose":    {reason: "what people write stays", old: "Prose of", new: "More prose of"},
		"Default":  {reason: "another default", old: "`10`", new: "`9`", want: []string{"out of date"}},
		"Name":     {reason: "a document of another binary", old: "csi-small", new: "csi-large", want: []string{"must begin with"}},
		"NoHint":   {reason: "nobody knows how to renew it", old: "REWRITE=1", new: "magic", want: []string{"must begin with"}},
		"NoMarker": {reason: "nobody knows where the table begins", old: tableStart, want: []string{"have a line"}},
		"Trailing": {reason: "the table is the end", old: "| how many", new: "| old | how many", want: []string{"out of date"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "flags.md")
			text := strings.Replace(string(good), tc.old, tc.new, 1)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			got := failuresOf(t, func(t testing.TB) { flagsDocument(t, component(nil), path) })
			wantFailures(t, tc.reason, got, tc.want...)
		})
	}
	got := failuresOf(t, func(t testing.TB) { flagsDocument(t, component(nil), filepath.Join(t.TempDir(), "absent.md")) })
	wantFailures(t, "there is no document", got, "absent.md")
}

// What is written is what is compared the next time, and the prose survives.
func TestFlagsDocumentIsRenewed(t *testing.T) {
	good, err := os.ReadFile("testdata/component/docs/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(good), tableStart)
	path := filepath.Join(t.TempDir(), "flags.md")
	if err := os.WriteFile(path, []byte(head+tableStart+"| old table |\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(rewriteVariable, "1")
	flagsDocument(t, component(nil), path)
	if got, err := os.ReadFile(path); err != nil || string(got) != string(good) {
		t.Errorf("the document is %s (%v), want %s", got, err, good)
	}
}

// lax are options that are always valid.
type lax struct{ options }

// Validate implements flagset.Group.
func (o *lax) Validate() error { return nil }

// AddFlags implements flagset.Group.
func (o *lax) AddFlags(fs *flag.FlagSet) { o.options.AddFlags(fs) }

func TestExitCodesFail(t *testing.T) {
	ran := func(context.Context, lax) error { return errRan }
	cases := map[string]struct {
		reason  string
		run     func(t testing.TB)
		failure []string
	}{
		"Good": {reason: "as it should be", run: func(t testing.TB) { exitCodes(t, component(nil), "csi-small", "--workers=0") }},
		"Name": {
			reason:  "the version is that of another binary",
			run:     func(t testing.TB) { exitCodes(t, component(nil), "csi-large", "--workers=0") },
			failure: []string{`want "csi-large "`},
		},
		"Accepted": {
			reason: "a bad value starts the component",
			run: func(t testing.TB) {
				exitCodes(t, command.New("csi-lax", func() lax { return lax{} }, ran), "csi-lax", "--workers=0")
			},
			failure: []string{"the component was run), want 1", "names --workers="},
		},
		"OtherFlag": {
			reason:  "the argument is a mistake of another kind",
			run:     func(t testing.TB) { exitCodes(t, component(nil), "csi-small", "--worker=0") },
			failure: []string{"exit code 2", "names --worker="},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			wantFailures(t, tc.reason, failuresOf(t, tc.run), tc.failure...)
		})
	}
}
