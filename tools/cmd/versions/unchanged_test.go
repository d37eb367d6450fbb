package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// stamped is a tree in which make/unchanged runs commands: in its workspace module a requires module b, and c requires none of them; tools is outside of it.
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
	t.Setenv("CGO_ENABLED", "0")
	s.workspace("./a", "./b", "./c")
	s.write("a/go.mod", "module example.com/a\n\ngo 1.26.0\n\nrequire example.com/b v0.0.0\n\nreplace example.com/b => ../b\n")
	s.write("b/go.mod", "module example.com/b\n\ngo 1.26.0\n")
	s.requireInC("example.com/x v1.0.0")
	s.write("tools/go.mod", "module example.com/tools\n")
	for _, file := range []string{"a/a.go", "b/b.go", "b/embedded.yaml", "b/testdata/golden", "b/docs/flags.md", "b/docs/rbac.md", "c/c.go", "c/go.sum", "Makefile", "make/setup", "make/test.mk", "make/modules.mk", "make/kind.mk"} {
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

// workspace writes go.work.
func (s *stamped) workspace(dirs ...string) {
	s.t.Helper()
	s.write("go.work", "go 1.26.0\n\nuse (\n\t"+strings.Join(dirs, "\n\t")+"\n)\n")
}

// requireInC writes the go.mod of module c, with further lines.
func (s *stamped) requireInC(required string, lines ...string) {
	s.t.Helper()
	s.write("c/go.mod", "module example.com/c\n\ngo 1.26.0\n\nrequire (\n\t"+required+" // indirect\n)\n"+strings.Join(lines, "\n"))
}

// addModule adds a module to the workspace, which requires one of it, and what another module requires already.
func (s *stamped) addModule() {
	s.t.Helper()
	s.workspace("./a", "./b", "./c", "./d // a comment")
	s.write("d/go.mod", "module example.com/d\n\ngo 1.26.0\n\nrequire example.com/x v1.0.0\n\nrequire example.com/b v0.0.0\n\nreplace (\n\texample.com/b => ../b\n)\n")
	for _, file := range []string{"d/d.go", "d/go.sum", "make/modules.mk"} {
		s.write(file, "second")
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

// named is one that depends on make's files, too.
func named() []string { return []string{"test a", "-m", "a", "make", "--", "echo", "it runs"} }

// reading is one that reads pages of other modules.
func reading() []string {
	return []string{"test a", "-m", "a", "*/docs/rbac.md", "--", "echo", "it runs"}
}

func TestUnchanged(t *testing.T) {
	tests := map[string]struct {
		reason string
		change func(s *stamped)
		args   []string // of the second run; nil for those of the first
		ran    bool
	}{
		"Nothing":        {reason: "what has passed is not run again", change: func(*stamped) {}},
		"Own":            {reason: "its own file", change: func(s *stamped) { s.write("a/a.go", "second") }, ran: true},
		"Required":       {reason: "a file of a module that it requires, also one that no compiler reads", change: func(s *stamped) { s.write("b/embedded.yaml", "second") }, ran: true},
		"DataOfRequired": {reason: "no other module uses the data of its tests", change: func(s *stamped) { s.write("b/testdata/golden", "second") }},
		"PageOfRequired": {reason: "no other module uses its pages", change: func(s *stamped) { s.write("b/docs/flags.md", "second") }},
		"ReadOfRequired": {
			reason: "a page that the command reads", change: func(s *stamped) { s.run(s.env, reading()...); s.write("b/docs/rbac.md", "second") }, args: reading(), ran: true,
		},
		"OwnData":        {reason: "the data of its own tests", change: func(s *stamped) { s.write("a/testdata/golden", "first") }, ran: true},
		"TestOfRequired": {reason: "no other module uses its Go test files", change: func(s *stamped) { s.write("b/b_test.go", "first") }},
		"OwnTest":        {reason: "its own tests", change: func(s *stamped) { s.write("a/a_test.go", "first") }, ran: true},
		"New":            {reason: "a file that git does not know yet", change: func(s *stamped) { s.write("b/new.go", "first") }, ran: true},
		"Removed":        {reason: "a file that is gone", change: func(s *stamped) { s.command("rm", "b/b.go") }, ran: true},
		"NewVersion":     {reason: "in a workspace each go.mod has a say in the versions of all", change: func(s *stamped) { s.requireInC("example.com/x v1.0.0", "require example.com/y v1.0.0") }, ran: true},
		"Raised":         {reason: "another module raises a version for all", change: func(s *stamped) { s.requireInC("example.com/x v1.0.1") }, ran: true},
		"Replaced": {reason: "another module replaces a version for all", change: func(s *stamped) {
			s.requireInC("example.com/x v1.0.0", "replace example.com/x => example.com/fork v1.0.0")
		}, ran: true},
		"Excluded":  {reason: "another module excludes a version for all", change: func(s *stamped) { s.requireInC("example.com/x v1.0.0", "exclude example.com/y v1.0.0") }, ran: true},
		"Toolchain": {reason: "another module raises the version of Go", change: func(s *stamped) { s.requireInC("example.com/x v1.0.0", "toolchain go1.26.0") }, ran: true},
		"Workspace": {reason: "a setting of the workspace", change: func(s *stamped) { s.write("go.work", "go 1.26.0\n\ngodebug x=1\n\nuse (\n\t./a\n\t./b\n\t./c\n)\n") }, ran: true},
		"NewModule": {reason: "a module that requires nothing new", change: (*stamped).addModule},
		"Sums":      {reason: "the content of a version does not change", change: func(s *stamped) { s.write("c/go.sum", "second"); s.write("go.work.sum", "first") }},
		"Outside": {reason: "a module outside of the workspace decides about no version in it", change: func(s *stamped) {
			s.write("tools/go.mod", "module example.com/tools\n\nrequire example.com/y v1.0.0\n")
		}},
		"HowToTest":   {reason: "what runs the tests", change: func(s *stamped) { s.write("make/test.mk", "second") }, ran: true},
		"Makefile":    {reason: "what runs the tests", change: func(s *stamped) { s.write("Makefile", "second") }, ran: true},
		"Images":      {reason: "a file of make that runs no tests", change: func(s *stamped) { s.write("make/kind.mk", "second"); s.write("make/images.mk", "first") }},
		"OfMake":      {reason: "a file of make that the command names", change: func(s *stamped) { s.run(s.env, named()...); s.write("make/kind.mk", "second") }, args: named(), ran: true},
		"Environment": {reason: "a setting of Go", change: func(s *stamped) { s.t.Setenv("CGO_ENABLED", "1") }, ran: true},
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
	s.workspace("./a", "./b", "./c", "./gone")
	for _, args := range [][]string{test(), append([]string{"-ask"}, test()...)} {
		if ran, ok := s.run(s.env, args...); ran || ok {
			t.Errorf("%q without a go.mod of the workspace: ran %t, passed %t", args, ran, ok)
		}
	}
	s.workspace("./a", "./b", "./c")
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
