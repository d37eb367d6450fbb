package commandtest

import (
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/logging"
)

// Parse returns the options that a command line makes, not validated. Like a binary it knows the logging flags.
func Parse[O any, P command.Options[O]](newOptions func() O, args ...string) (O, error) {
	o, logs := newOptions(), logging.NewOptions()
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	flagset.AddFlags(fs, P(&o), &logs)
	return o, fs.Parse(args)
}

// Accepts parses and validates a command line that must be good, and returns its options.
func Accepts[O any, P command.Options[O]](t testing.TB, newOptions func() O, args ...string) O {
	t.Helper()
	o, err := Parse[O, P](newOptions, args...)
	if err != nil {
		t.Fatalf("parse %q: %v", args, err)
	}
	if err := P(&o).Validate(); err != nil {
		t.Errorf("validate %q: %v", args, err)
	}
	return o
}

// Defaults tests that the binary knows these flags and what their default values are, as
// --help prints them. A manifest may rely on both. It looks at no other flags.
func Defaults[O any, P command.Options[O]](t testing.TB, newOptions func() O, want map[string]string) {
	t.Helper()
	fs := command.New[O, P]("test", newOptions, nil).Flags()
	for name, value := range want {
		f := fs.Lookup(name)
		if f == nil {
			t.Errorf("flag --%s is unknown: a manifest that has it would fail", name)
			continue
		}
		if f.DefValue != value {
			t.Errorf("--%s defaults to %q, want %q", name, f.DefValue, value)
		}
	}
}

// Case is a command line, and what is said about it.
type Case struct {
	// Reason is why it must be so.
	Reason string
	// Args are the command line.
	Args []string
	// Usage are parts of the error of parsing. Empty: the command line can be parsed.
	Usage []string
	// Errors are parts of the error of Validate, for a command line that can be parsed. Empty: the options are valid.
	Errors []string
	// Warnings are parts of the warnings, one for each, in order, for options that are a flagset.Warner.
	Warnings []string
}

// Validate runs each case as a subtest: which command lines are refused, by what words, and with which warnings.
func Validate[O any, P command.Options[O]](t *testing.T, newOptions func() O, cases map[string]Case) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { check[O, P](t, newOptions, c) })
	}
}

func check[O any, P command.Options[O]](t testing.TB, newOptions func() O, c Case) {
	t.Helper()
	o, err := Parse[O, P](newOptions, c.Args...)
	names(t, c, "parse", err, c.Usage)
	if err != nil {
		if len(c.Errors)+len(c.Warnings) > 0 {
			t.Fatalf("%s: %q cannot be parsed, hence is never validated: take Errors and Warnings off the case", c.Reason, c.Args)
		}
		return
	}
	names(t, c, "validate", P(&o).Validate(), c.Errors)
	var warnings []string
	if warner, ok := any(P(&o)).(flagset.Warner); ok {
		warnings = warner.Warnings()
	}
	if len(warnings) != len(c.Warnings) {
		t.Fatalf("%s: %q warns %q, want %d warnings about %q", c.Reason, c.Args, warnings, len(c.Warnings), c.Warnings)
	}
	for i, part := range c.Warnings {
		if !strings.Contains(warnings[i], part) {
			t.Errorf("%s: %q warns %q, want a warning about %q", c.Reason, c.Args, warnings[i], part)
		}
	}
}

// names tests that err has all parts, or is nil if there are none.
func names(t testing.TB, c Case, step string, err error, parts []string) {
	t.Helper()
	if (err != nil) != (len(parts) > 0) {
		t.Fatalf("%s: %s %q: got error %v, want one: %t", c.Reason, step, c.Args, err, len(parts) > 0)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %s %q: error %q does not say %q", c.Reason, step, c.Args, err, part)
		}
	}
}
