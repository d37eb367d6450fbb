package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/devcluster"
)

func TestPrintStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		s := devcluster.Status{
			Phase: devcluster.Running, Kubernetes: "v1.2.3", Drivers: []string{"d.example.com", "e.example.com"}, Nodes: []string{"node-1"}, Started: now, Kubeconfig: "/c/kubeconfig",
			Processes: []devcluster.Process{
				{Name: "etcd", State: devcluster.ProcessReady, PID: 12, Since: now.Add(-90 * time.Second)},
				{Name: "csi-attacher", State: devcluster.ProcessBackoff, Restarts: 3, Since: now.Add(-time.Second), LastExit: "signal: killed", HTTP: "http://127.0.0.1:4321"},
			},
		}
		var out strings.Builder
		if err := printStatus(&out, s); err != nil {
			t.Fatal(err)
		}
		want := `Running: Kubernetes v1.2.3, driver d.example.com, e.example.com, 1 nodes, up since ` + now.Format(time.DateTime) + `
kubeconfig /c/kubeconfig

NAME          STATE    PID  RESTARTS  SINCE  HTTP            LAST EXIT
etcd          Ready    12   0         1m30s  -               
csi-attacher  Backoff  -    3         1s     127.0.0.1:4321  signal: killed
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestPrintStatusOfAFailure(t *testing.T) {
	var out strings.Builder
	if err := printStatus(&out, devcluster.Status{Phase: devcluster.Failed, Error: "etcd would not"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Failed: Kubernetes -, driver -, 0 nodes", "error: etcd would not\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q:\n%s", want, &out)
		}
	}
}

func TestParseTakesFlagsAndWordsInAnyOrder(t *testing.T) {
	tests := map[string]struct {
		reason string
		args   []string
		words  int
		want   []string
		err    error
	}{
		"FlagsFirst": {reason: "as the flag package wants it", args: []string{"--dir", "/c", "etcd"}, words: 1, want: []string{"etcd"}},
		"FlagsLast":  {reason: "as people type it", args: []string{"etcd", "--dir=/c"}, words: 1, want: []string{"etcd"}},
		"Between":    {reason: "two words around a flag", args: []string{"a", "--dir", "/c", "b"}, words: 2, want: []string{"a", "b"}},
		"None":       {reason: "nothing at all", args: []string{"--dir=/c"}},
		"TooMany":    {reason: "a word that nobody reads", args: []string{"a", "--dir=/c", "b"}, words: 1, err: errUsage},
		"TooFew":     {reason: "a word that is missing", args: []string{"--dir=/c"}, words: 1, err: errUsage},
		"BadFlag":    {reason: "a flag after a word is read too", args: []string{"a", "--dri=/c"}, words: 1, err: errUsage},
		"Help":       {reason: "help after a word", args: []string{"a", "--help"}, words: 1, err: flag.ErrHelp},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := &call{command: command{name: "logs"}, args: tc.args, err: &bytes.Buffer{}}
			got, err := c.parse(tc.words, c.options.AddDirFlag)
			if !errors.Is(err, tc.err) {
				t.Fatalf("%s: got %v, want %v", tc.reason, err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || tc.err == nil && c.options.Dir != "/c" {
				t.Errorf("%s: %s, directory %q", tc.reason, diff, c.options.Dir)
			}
		})
	}
}

// lineWriter counts what a follower prints.
type lineWriter struct {
	mu   sync.Mutex
	text string
	fail error
}

// Write keeps the text, or fails.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail != nil {
		return 0, w.fail
	}
	w.text += string(p)
	return len(p), nil
}

func (w *lineWriter) got() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text
}

// following starts a follower of a new log.
func following(t *testing.T, ctx context.Context, w *lineWriter) (log *os.File, done <-chan error) { //nolint:revive // t comes first in helpers
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "a.log"))
	if err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = log.Close(), reader.Close() })
	fmt.Fprintln(log, "first")
	ended := make(chan error, 1)
	go func() { ended <- followLog(ctx, reader, w) }()
	return log, ended
}

func TestFollowedLogGoesOnUntilItIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w lineWriter
		log, done := following(t, t.Context(), &w)
		synctest.Wait()
		if w.got() != "first\n" {
			t.Errorf("at once: %q", w.got())
		}
		fmt.Fprintln(log, "second")
		time.Sleep(followPeriod)
		synctest.Wait()
		if w.got() != "first\nsecond\n" {
			t.Errorf("after a while: %q", w.got())
		}
		fmt.Fprintln(log, "last words")
		if err := os.Remove(log.Name()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || w.got() != "first\nsecond\nlast words\n" {
			t.Errorf("at the end: %q, %v", w.got(), err)
		}
	})
}

func TestFollowedLogEndsWithTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var w lineWriter
		_, done := following(t, ctx, &w)
		synctest.Wait()
		cancel()
		if err := <-done; err != nil || w.got() != "first\n" {
			t.Errorf("Ctrl-C is how a follower ends: %q, %v", w.got(), err)
		}
	})
}

func TestFollowedLogEndsWhenNobodyReads(t *testing.T) {
	closed := errors.New("broken pipe")
	_, done := following(t, t.Context(), &lineWriter{fail: closed})
	if err := <-done; !errors.Is(err, closed) {
		t.Errorf("got %v", err)
	}
}

func TestUsageErrorsHaveTheirExitCode(t *testing.T) {
	for name, args := range map[string][]string{"Output": {"status", "--output=yaml"}, "Word": {"logs"}, "Command": {"nope"}} {
		var out, errs bytes.Buffer
		if code := ExitCode(Run(t.Context(), args, &out, &errs)); code != 2 || errs.Len() == 0 || out.Len() > 0 {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", name, code, &out, &errs)
		}
	}
}
