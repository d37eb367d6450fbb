package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// tutorial is the document that a newcomer follows.
const tutorial = "../docs/tutorial/first-driver.md"

// mostTyped is how many lines a newcomer may have to type until a driver with a layout, a secret and a zone of its own has mounted a volume.
const mostTyped = 120

// newcomer follows the tutorial.
type newcomer struct {
	t *testing.T
	// root is this repository, and work the directory around the new driver.
	root, work string
	env        []string
	// parts are those of the tutorial that have begun, and printed is the output of the last block of commands.
	parts   []part
	printed string
}

// part is a part of the tutorial: the lines that the newcomer types in it, and when it began.
type part struct {
	title string
	typed int
	began time.Time
}

// TestTutorial is a stopwatch for newcomers. It does what the tutorial says: it runs each block of commands, compares what is printed with the block of text
// behind it, writes files, and applies changes. It prints the lines that a newcomer types, commands included, and the time that the machine takes. Only the
// lines are limited.
func TestTutorial(t *testing.T) {
	dev(t)
	document, err := os.ReadFile(tutorial)
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	work, err := os.MkdirTemp("", "tut-") // t.TempDir has a path that is too long for sockets.
	if err != nil {
		t.Fatal(err)
	}
	state, err := os.MkdirTemp("/tmp", "t") // TMPDIR may be a path that is too long for the sockets of a cluster below it.
	if err != nil {
		t.Fatal(err)
	}
	n := &newcomer{t: t, root: root, work: work}
	cluster := filepath.Join(state, "longshore", "devcluster") // where devcluster has it, by XDG_STATE_HOME
	n.env = append(os.Environ(), "GOWORK=", "GOFLAGS=", "MAKEFLAGS=", "MAKELEVEL=", "XDG_STATE_HOME="+state, "KUBECONFIG="+filepath.Join(cluster, "kubeconfig"),
		"PATH="+strings.Join([]string{bed.Dev.Programs, os.Getenv("PATH")}, ":"))
	t.Cleanup(func() {
		if _, err := os.Stat(cluster); err == nil { // The tutorial has not come to its end.
			n.run(filepath.Join(work, "first"), "make -s devcluster-down")
		}
		if err := errors.Join(os.RemoveAll(work), os.RemoveAll(state)); err != nil {
			t.Error(err)
		}
	})
	for _, block := range regexp.MustCompile("(?ms)^```(sh|text|diff|yaml) ?([^\n]*)\n(.*?)^```$|^## ([^\n]*)$").FindAllStringSubmatch(string(document), -1) {
		if title := block[4]; title != "" {
			n.parts = append(n.parts, part{title: title, began: time.Now()})
		} else {
			n.follow(block[1], block[2], block[3])
		}
	}
	n.report()
}

// report prints lines and time of each part and of all, and fails if there are too many lines.
func (n *newcomer) report() {
	n.t.Helper()
	typed, end := 0, time.Now()
	for i, p := range n.parts {
		next := end
		if i+1 < len(n.parts) {
			next = n.parts[i+1].began
		}
		typed += p.typed
		n.t.Logf("%3d lines %4.0fs  %s", p.typed, next.Sub(p.began).Seconds(), p.title)
	}
	n.t.Logf("%3d lines %4.0fs  the whole tutorial", typed, end.Sub(n.parts[0].began).Seconds())
	if typed > mostTyped || typed == 0 {
		n.t.Errorf("a newcomer types %d lines, want at most %d", typed, mostTyped)
	}
}

// types counts lines that the newcomer types.
func (n *newcomer) types(lines int) { n.parts[len(n.parts)-1].typed += lines }

// follow does what one block says.
func (n *newcomer) follow(kind, name, text string) {
	n.t.Helper()
	driver := filepath.Join(n.work, "first")
	switch kind {
	case "sh":
		dir := driver
		if strings.Contains(text, "../first") {
			dir = n.root
		}
		n.types(strings.Count(text, "\n"))
		n.printed = n.run(dir, text)
	case "text":
		want := strings.ReplaceAll(regexp.QuoteMeta(text), `\.\.\.`, ".*")
		if !regexp.MustCompile(`^` + want + `$`).MatchString(n.printed) {
			n.t.Errorf("printed was\n%s\nthe tutorial has\n%s", n.printed, text)
		}
	case "yaml":
		n.types(strings.Count(text, "\n"))
		if err := os.WriteFile(filepath.Join(driver, name), []byte(text), 0o600); err != nil {
			n.t.Fatal(err)
		}
	case "diff":
		n.types(len(regexp.MustCompile(`(?m)^\+[^+\n]`).FindAllString(text, -1)))
		cmd := exec.CommandContext(n.t.Context(), "git", "apply", "-")
		cmd.Dir, cmd.Stdin, cmd.Env = driver, strings.NewReader(text), append(n.env, "GIT_CEILING_DIRECTORIES="+n.work)
		if out, err := cmd.CombinedOutput(); err != nil {
			n.t.Fatalf("apply\n%s%v: %s", text, err, out)
		}
	}
}

// run runs commands where nothing else of this machine is in their way, and returns what they print: without lines of go about downloads, and with N in
// the place of seconds.
func (n *newcomer) run(dir, commands string) string {
	n.t.Helper()
	cmd := exec.Command("sh", "-ec", strings.ReplaceAll(commands, "../first", filepath.Join(n.work, "first")))
	cmd.Dir, cmd.Env = dir, n.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s%v\n%s", commands, err, out)
	}
	text := regexp.MustCompile(`(?m)^go: (downloading|finding) .*\n`).ReplaceAllString(string(out), "")
	text = regexp.MustCompile(`(?m)^ +[0-9.]+s\b`).ReplaceAllString(text, "   Ns") // right-aligned
	text = regexp.MustCompile(`(\t| )[0-9.]+s\b`).ReplaceAllString(text, "${1}Ns")
	return strings.ReplaceAll(text, filepath.Join(n.work, "first"), "../first")
}
