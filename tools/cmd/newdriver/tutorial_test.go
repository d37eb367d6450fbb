package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// tutorial is the document that a newcomer follows.
const tutorial = repository + "/docs/tutorial/first-driver.md"

// mostTyped is how many lines a newcomer may have to type until the driver has a layout, a secret and a zone of its own.
const mostTyped = 120

// TestTutorial does what the tutorial says, in a copy of nothing: it runs each block of commands, compares what is printed with the block of text
// behind it, and applies each block of changes. It prints the lines that a newcomer types, and the seconds that the machine takes.
func TestTutorial(t *testing.T) {
	document, err := os.ReadFile(tutorial)
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	first := filepath.Join(work, "first")
	typed, began, printed := 0, time.Now(), ""
	for _, block := range regexp.MustCompile("(?ms)^```(sh|text|diff)\n(.*?)^```$").FindAllStringSubmatch(string(document), -1) {
		kind, text := block[1], block[2]
		switch kind {
		case "sh":
			dir := first
			if strings.Contains(text, "new-driver") {
				dir, text = root, strings.ReplaceAll(text, "../first", first)
			}
			typed += strings.Count(text, "\n")
			printed = strings.ReplaceAll(shell(t, dir, text), first, "../first")
		case "text":
			if printed != text {
				t.Errorf("printed was\n%s\nthe tutorial has\n%s", printed, text)
			}
		case "diff":
			typed += len(regexp.MustCompile(`(?m)^\+[^+\n]`).FindAllString(text, -1))
			apply(t, first, text)
		}
	}
	took := time.Since(began).Round(time.Second)
	t.Logf("a newcomer types %d lines, the machine takes %v", typed, took)
	if typed > mostTyped || typed == 0 {
		t.Errorf("a newcomer types %d lines, want at most %d", typed, mostTyped)
	}
}

// shell runs commands, and returns what they print on standard output and standard error, with N in the place of seconds and without lines of go
// about downloads.
func shell(t *testing.T, dir, commands string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", commands)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=", "MAKEFLAGS=", "MAKELEVEL=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, out)
	}
	text := regexp.MustCompile(`(?m)^go: (downloading|finding) .*\n`).ReplaceAllString(string(out), "")
	return regexp.MustCompile(`\t[0-9.]+s\n`).ReplaceAllString(text, "\tNs\n")
}

// apply applies changes as an editor does.
func apply(t *testing.T, dir, diff string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "apply", "--unidiff-zero", "-")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(diff)
	cmd.Env = append(os.Environ(), fmt.Sprintf("GIT_CEILING_DIRECTORIES=%s", filepath.Dir(dir)))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("apply\n%s%v: %s", diff, err, out)
	}
}
