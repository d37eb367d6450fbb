package e2e

import (
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
	// root is this repository, work the directory around the new driver, and cluster that of the newcomer's cluster.
	root, work, cluster string
	env                 []string
	// typed counts lines, and printed is the output of the last block of commands.
	typed   int
	printed string
}

// TestTutorial does what the tutorial says: it runs each block of commands, compares what is printed with the block of text behind it, writes files, and
// applies changes. It prints the lines that a newcomer types, and the seconds that the machine takes.
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
	n := &newcomer{t: t, root: root, work: work, cluster: filepath.Join(work, "c")}
	n.env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "MAKEFLAGS=", "MAKELEVEL=", "KUBECONFIG="+filepath.Join(n.cluster, "kubeconfig"),
		"PATH="+strings.Join([]string{filepath.Dir(bed.Dev.program), bed.Dev.Programs, os.Getenv("PATH")}, ":"))
	t.Cleanup(func() {
		if _, err := os.Stat(n.cluster); err == nil { // The tutorial has not come to its end.
			n.run(root, "devcluster down")
		}
		if err := os.RemoveAll(work); err != nil {
			t.Error(err)
		}
	})
	began := time.Now()
	for _, block := range regexp.MustCompile("(?ms)^```(sh|text|diff|yaml) ?([^\n]*)\n(.*?)^```$").FindAllStringSubmatch(string(document), -1) {
		n.follow(block[1], block[2], block[3])
	}
	t.Logf("a newcomer types %d lines, the machine takes %v", n.typed, time.Since(began).Round(time.Second))
	if n.typed > mostTyped || n.typed == 0 {
		t.Errorf("a newcomer types %d lines, want at most %d", n.typed, mostTyped)
	}
}

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
		n.typed += strings.Count(text, "\n")
		n.printed = n.run(dir, text)
	case "text":
		want := strings.ReplaceAll(regexp.QuoteMeta(text), `\.\.\.`, ".*")
		if !regexp.MustCompile(`^` + want + `$`).MatchString(n.printed) {
			n.t.Errorf("printed was\n%s\nthe tutorial has\n%s", n.printed, text)
		}
	case "yaml":
		n.typed += strings.Count(text, "\n")
		if err := os.WriteFile(filepath.Join(driver, name), []byte(text), 0o600); err != nil {
			n.t.Fatal(err)
		}
	case "diff":
		n.typed += len(regexp.MustCompile(`(?m)^\+[^+\n]`).FindAllString(text, -1))
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
	own := strings.NewReplacer("../first", filepath.Join(n.work, "first"), "devcluster up", "devcluster up --dir "+n.cluster, "devcluster down", "devcluster down --dir "+n.cluster)
	cmd := exec.Command("sh", "-ec", own.Replace(commands))
	cmd.Dir, cmd.Env = dir, n.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s%v\n%s", commands, err, out)
	}
	text := regexp.MustCompile(`(?m)^go: (downloading|finding) .*\n`).ReplaceAllString(string(out), "")
	text = regexp.MustCompile(`(\t| )[0-9.]+s\b`).ReplaceAllString(text, "${1}Ns")
	return strings.ReplaceAll(text, filepath.Join(n.work, "first"), "../first")
}
