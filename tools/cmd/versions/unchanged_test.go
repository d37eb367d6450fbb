package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// stamped is a tree in which make/unchanged runs commands: module a requires module b, and c stands alone.
type stamped struct {
	t        *testing.T
	dir, env string
}

func newStamped(t *testing.T) *stamped {
	t.Helper()
	s := &stamped{t: t, dir: t.TempDir(), env: "LONGSHORE_STAMPS=" + t.TempDir()}
	script, err := os.ReadFile("../../../make/unchanged")
	if err != nil {
		t.Fatal(err)
	}
	s.write("make/unchanged", string(script))
	if err := os.Chmod(filepath.Join(s.dir, "make/unchanged"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	s.write("a/go.mod", "module example.com/a\n\nrequire example.com/b v0.0.0\n\nreplace example.com/b => ../b\n")
	s.write("b/go.mod", "module example.com/b\n")
	s.write("c/go.mod", "module example.com/c\n")
	for _, file := range []string{"a/a.go", "b/b.go", "b/testdata/golden", "c/c.go"} {
		s.write(file, "first")
	}
	s.write(".gitignore", "*.log\n")
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "-q", "-m", "first"}} {
		s.command("git", args...)
	}
	return s
}

func (s *stamped) write(file, text string) {
	s.t.Helper()
	path := filepath.Join(s.dir, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stamped) command(name string, args ...string) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), name, args...)
	cmd.Dir = s.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// run runs make/unchanged, and reports whether the command ran, by a line that it prints, and whether the whole succeeded.
func (s *stamped) run(env string, args ...string) (ran, ok bool) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), filepath.Join(s.dir, "make/unchanged"), args...)
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.CombinedOutput()
	if text := string(out); err == nil && !strings.Contains(text, "it runs") && args[0] != "-ask" && !strings.HasPrefix(text, "unchanged since ") {
		s.t.Errorf("%q printed neither what ran nor why it did not:\n%s", args, text)
	}
	return strings.Contains(string(out), "it runs"), err == nil
}

// test is a command that passes, for module a.
func test() []string { return []string{"test a", "-m", "a", "--", "echo", "it runs"} }

func TestUnchanged(t *testing.T) {
	tests := map[string]struct {
		reason string
		change func(s *stamped)
		args   []string // of the second run; nil for those of the first
		ran    bool
	}{
		"Nothing":     {reason: "what has passed is not run again", change: func(*stamped) {}},
		"Own":         {reason: "its own file", change: func(s *stamped) { s.write("a/a.go", "second") }, ran: true},
		"Required":    {reason: "a file of a module that it requires, also one that no compiler reads", change: func(s *stamped) { s.write("b/testdata/golden", "second") }, ran: true},
		"New":         {reason: "a file that git does not know yet", change: func(s *stamped) { s.write("b/new.go", "first") }, ran: true},
		"Removed":     {reason: "a file that is gone", change: func(s *stamped) { s.command("rm", "b/b.go") }, ran: true},
		"Versions":    {reason: "in a workspace each go.mod has a say in the versions of all", change: func(s *stamped) { s.write("c/go.mod", "module example.com/c\n\nrequire example.com/x v1.0.0\n") }, ran: true},
		"Other":       {reason: "a module that it does not require", change: func(s *stamped) { s.write("c/c.go", "second") }},
		"Ignored":     {reason: "a file that git ignores is none of the tree", change: func(s *stamped) { s.write("a/run.log", "first") }},
		"Back":        {reason: "the stamps of former contents stay", change: func(s *stamped) { s.write("a/a.go", "second"); s.run(s.env, test()...); s.write("a/a.go", "first") }},
		"Command":     {reason: "other flags are another check", change: func(*stamped) {}, args: []string{"test a", "-m", "a", "--", "echo", "it runs", "-race"}, ran: true},
		"MoreInputs":  {reason: "a path besides the module", change: func(*stamped) {}, args: []string{"test a", "-m", "a", "c", "--", "echo", "it runs"}, ran: true},
		"AnotherName": {reason: "a stamp is for one step", change: func(*stamped) {}, args: []string{"test b", "-m", "a", "--", "echo", "it runs"}, ran: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStamped(t)
			if ran, ok := s.run(s.env, test()...); !ran || !ok {
				t.Fatalf("first: ran %t, passed %t", ran, ok)
			}
			tc.change(s)
			args := tc.args
			if args == nil {
				args = test()
			}
			if ran, ok := s.run(s.env, args...); ran != tc.ran || !ok {
				t.Errorf("%s: ran %t, want %t; passed %t", tc.reason, ran, tc.ran, ok)
			}
		})
	}
}

// TestUnchangedOnlyIfPassed: what failed, and what was changed while it ran, is run again.
func TestUnchangedOnlyIfPassed(t *testing.T) {
	for name, script := range map[string]string{"Failed": "echo it runs; exit 3", "ChangedMeanwhile": "echo it runs; echo again >>a/a.go"} {
		t.Run(name, func(t *testing.T) {
			s := newStamped(t)
			for i := range 2 {
				if ran, ok := s.run(s.env, "test a", "-m", "a", "--", "sh", "-c", script); !ran || ok == (name == "Failed") {
					t.Errorf("run %d: ran %t, passed %t", i, ran, ok)
				}
			}
		})
	}
}

// TestUnchangedAsks: -ask runs nothing, and reports by the exit code whether there is a stamp.
func TestUnchangedAsks(t *testing.T) {
	s := newStamped(t)
	ask := append([]string{"-ask"}, test()...)
	if ran, ok := s.run(s.env, ask...); ran || ok {
		t.Errorf("before: ran %t, unchanged %t", ran, ok)
	}
	s.run(s.env, test()...)
	if ran, ok := s.run(s.env, ask...); ran || !ok {
		t.Errorf("after: ran %t, unchanged %t", ran, ok)
	}
	if ran, ok := s.run("LONGSHORE_STAMPS=", ask...); ran || ok {
		t.Errorf("without stamps: ran %t, unchanged %t", ran, ok)
	}
}

// TestUnchangedNeedsItsInputs: what cannot be read is not taken for unchanged.
func TestUnchangedNeedsItsInputs(t *testing.T) {
	s := newStamped(t)
	if ran, ok := s.run(s.env, "test a", "-m", "a", "misspelled", "--", "echo", "it runs"); ran || ok {
		t.Errorf("an input that names no file: ran %t, passed %t", ran, ok)
	}
	s.run(s.env, test()...)
	s.command("rm", "-r", ".git")
	for _, args := range [][]string{test(), append([]string{"-ask"}, test()...)} {
		if ran, ok := s.run(s.env, args...); ran || ok {
			t.Errorf("%q without git: ran %t, passed %t", args, ran, ok)
		}
	}
}

// TestUnchangedWithoutStamps: by hand a command always runs.
func TestUnchangedWithoutStamps(t *testing.T) {
	s := newStamped(t)
	for range 2 {
		if ran, ok := s.run("LONGSHORE_STAMPS=", test()...); !ran || !ok {
			t.Errorf("ran %t, passed %t", ran, ok)
		}
	}
}
