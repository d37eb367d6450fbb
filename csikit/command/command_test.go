package command_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/command"
)

type options struct{ n int }

func (o *options) AddFlags(fs *flag.FlagSet) { fs.IntVar(&o.n, "n", o.n, "A number.") }

func (o *options) Validate() error {
	if o.n < 0 {
		return fmt.Errorf("--n=%d: must not be negative", o.n)
	}
	return nil
}

type component = command.Component[options, *options]

func newComponent(run func(ctx context.Context, o options) error) component {
	return command.New("csi-thing", func() options { return options{n: 7} }, run)
}

func TestExecute(t *testing.T) {
	broken := errors.New("broken")
	tests := map[string]struct {
		reason  string
		args    []string
		run     error
		code    int
		ran     bool
		n       int
		stdout  string
		stderr  string
		message string
	}{
		"Defaults":    {reason: "without flags the defaults hold", ran: true, n: 7},
		"SingleDash":  {reason: "one dash and two are the same", args: []string{"-n=3"}, ran: true, n: 3},
		"DoubleDash":  {reason: "one dash and two are the same", args: []string{"--n", "3"}, ran: true, n: 3},
		"Version":     {reason: "the version is printed and nothing runs", args: []string{"--version"}, stdout: "csi-thing "},
		"Help":        {reason: "help is no failure", args: []string{"--help"}, stderr: "A number.", message: "help requested"},
		"Unknown":     {reason: "a misspelt flag is a usage error", args: []string{"--m=1"}, code: 2, stderr: "-m", message: "wrong command line"},
		"Words":       {reason: "words that nobody reads are one too", args: []string{"word"}, code: 2, message: `"word"`},
		"Invalid":     {reason: "options are validated", args: []string{"--n=-1"}, code: 1, message: "--n=-1: must not be negative"},
		"InvalidLogs": {reason: "so are the logging flags", args: []string{"--logging-format=xml"}, code: 1, message: "xml"},
		"Failure":     {reason: "an error of the component is the error", run: broken, code: 1, ran: true, n: 7, message: "broken"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			ran, n := false, 0
			c := newComponent(func(_ context.Context, o options) error {
				ran, n = true, o.n
				return tc.run
			})
			err := c.Execute(t.Context(), tc.args, &stdout, &stderr)
			if code := command.ExitCode(err); code != tc.code || ran != tc.ran || n != tc.n {
				t.Errorf("%s: exit code %d, ran %v with %d, %v", tc.reason, code, ran, n, err)
			}
			if tc.message == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.message) {
				t.Errorf("%s: error %v, want %q", tc.reason, err, tc.message)
			}
			if !strings.Contains(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("%s: stdout %q, stderr %q", tc.reason, &stdout, &stderr)
			}
		})
	}
}

func TestTheLoggerIsInTheContext(t *testing.T) {
	var stderr bytes.Buffer
	c := newComponent(func(ctx context.Context, _ options) error {
		klog.FromContext(ctx).Info("Ready", "driver", "d")
		return nil
	})
	if err := c.Execute(t.Context(), []string{"--logging-format=json"}, nil, &stderr); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(stderr.String(), `"driver":"d"`) {
		t.Errorf("got %q", &stderr)
	}
}

func TestAnEndThatWasAskedForIsNoError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := newComponent(func(ctx context.Context, _ options) error {
		cancel()
		return fmt.Errorf("wait: %w", ctx.Err())
	})
	if err := c.Execute(ctx, nil, nil, &bytes.Buffer{}); err != nil {
		t.Error(err)
	}
}

func TestFlagsListsSharedFlagsToo(t *testing.T) {
	fs := newComponent(nil).Flags()
	for _, name := range []string{"n", "version", "v", "logging-format"} {
		if fs.Lookup(name) == nil {
			t.Errorf("no flag %q", name)
		}
	}
}
