package cli_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/devcluster/internal/cli"
)

func TestCommandLine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c")
	withLog := filepath.Join(t.TempDir(), "c")
	if err := os.MkdirAll(filepath.Join(withLog, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(withLog, "logs", "etcd.log"), []byte("etcd said\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		reason string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		"None":         {reason: "no command explains the program", stdout: "devcluster up [--nodes N]"},
		"Help":         {reason: "so does help", args: []string{"--help"}, stdout: "devcluster down"},
		"Unknown":      {reason: "a misspelt command is a usage error", args: []string{"upp"}, code: 2, stderr: `no command "upp"`},
		"UnknownFlag":  {reason: "a misspelt flag too", args: []string{"up", "--nodez=1"}, code: 2, stderr: "nodez"},
		"TooManyWords": {reason: "words that nobody reads are an error", args: []string{"status", "x"}, code: 2, stderr: "1 words besides the flags, want 0"},
		"CommandHelp":  {reason: "each command explains its flags", args: []string{"up", "--help"}, stderr: "number of nodes"},
		"BadNodes":     {reason: "bad input is named before anything is started", args: []string{"up", "--dir", dir, "--nodes=0"}, code: 1, stderr: "--nodes=0: must be between 1 and 100"},
		"StatusDown":   {reason: "a command that needs a cluster tells how to get one", args: []string{"status", "--dir", dir}, code: 1, stderr: "start one with `devcluster up`"},
		"DemoDown":     {reason: "so does the demo", args: []string{"demo", "--dir", dir, "--examples", "/x"}, code: 1, stderr: "start one with `devcluster up`"},
		"DownTwice":    {reason: "down of nothing is no error", args: []string{"down", "--dir", dir}, stdout: "no cluster is up"},
		"NoLog":        {reason: "an unknown process is named", args: []string{"logs", "--dir", dir, "nobody"}, code: 1, stderr: `no log of "nobody"`},
		"Log":          {reason: "the log is printed", args: []string{"logs", "--dir", withLog, "etcd"}, stdout: "etcd said"},
		"Version":      {reason: "the version is printed", args: []string{"version"}, stdout: "devcluster "},
		"RunNothing":   {reason: "a component must be named", args: []string{"run"}, code: 2, stderr: "COMPONENT"},
		"RunUnknown":   {reason: "only components can be run", args: []string{"run", "x"}, code: 1, stderr: `no component "x"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			err := cli.Run(context.Background(), tc.args, &stdout, &stderr)
			if code := cli.ExitCode(err); code != tc.code {
				t.Errorf("%s: exit code %d, want %d (%v)", tc.reason, code, tc.code, err)
			}
			if !strings.Contains(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("%s: stdout %q, stderr %q", tc.reason, &stdout, &stderr)
			}
		})
	}
}

func TestHiddenCommandsAreNotListed(t *testing.T) {
	var out bytes.Buffer
	if err := cli.Run(context.Background(), nil, &out, &out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "supervise") {
		t.Errorf("got %s", &out)
	}
}

func TestExitCode(t *testing.T) {
	for err, want := range map[error]int{nil: 0, flag.ErrHelp: 0, errors.New("x"): 1} {
		if got := cli.ExitCode(err); got != want {
			t.Errorf("%v: got %d, want %d", err, got, want)
		}
	}
}
