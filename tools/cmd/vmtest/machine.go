package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// machine is a virtual one.
type machine struct {
	qemu, memory, kernel, initramfs string
	// console is the file for what the kernel says.
	console string
}

// bootTimeout is how long a machine may take until its program runs, and boots how often it is started. An emulated kernel hangs at times.
const (
	bootTimeout = 3 * time.Minute
	boots       = 2
)

// run starts the machine, and reports whether all tests in it passed.
func (m machine) run(ctx context.Context, o options) (ok bool, err error) {
	for boot := 1; ; boot++ {
		ok, begun, err := m.boot(ctx, o)
		if err == nil || begun || boot == boots || ctx.Err() != nil {
			return ok, err
		}
		fmt.Fprintf(o.log, "the virtual machine has not started, again: %v\n", err)
	}
}

// boot starts the machine once. begun: its program has run.
func (m machine) boot(ctx context.Context, o options) (ok, begun bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.qemu,
		"-accel", "tcg,thread=multi",
		"-cpu", "max", "-smp", "2", "-m", m.memory,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-kernel", m.kernel, "-initrd", m.initramfs,
		"-append", "console=ttyS0 panic=-1 random.trust_cpu=on mitigations=off cryptomgr.notests",
		"-serial", "file:"+m.console, "-serial", "stdio")
	var said strings.Builder
	cmd.Stderr = &said
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return false, false, err
	}
	if err := cmd.Start(); err != nil {
		return false, false, err
	}
	hung := time.AfterFunc(bootTimeout, cancel)
	defer hung.Stop()
	results := bufio.NewReader(pipe)
	if _, err := results.Peek(1); err == nil {
		begun = true
		hung.Stop()
	}
	passed, err := report(ctx, results, o.out)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		console, _ := os.ReadFile(m.console) // there may be nothing yet
		return false, begun, fmt.Errorf("virtual machine: %w\n%s%s", errors.Join(err, ctx.Err()), said.String(), tail(string(console), 40))
	}
	return passed, true, nil
}

// tail returns the last lines of a text.
func tail(text string, lines int) string {
	all := strings.SplitAfter(text, "\n")
	return strings.Join(all[max(0, len(all)-lines):], "")
}

// The machine's program writes what tests print, and before and after them a line of marker, a verb and what it is about.
const (
	marker     = "@vmtest "
	markBegin  = "begin"  // a package
	markEnd    = "end"    // with an exit code
	markDone   = "done"   // with all
	markFailed = "failed" // for a reason
)

// report writes the events of all packages, and reports whether all have passed.
func report(ctx context.Context, results io.Reader, out io.Writer) (ok bool, err error) {
	lines := bufio.NewReader(results)
	r := reporter{out: out, ok: true}
	for !r.done {
		line, err := lines.ReadString('\n')
		if err != nil {
			err = fmt.Errorf("it has stopped before its end: %w", err)
		} else {
			err = r.line(ctx, line)
		}
		if err != nil {
			return false, errors.Join(err, r.end("machine stopped"))
		}
	}
	return r.ok, nil
}

type reporter struct {
	out      io.Writer
	ok, done bool
	// current is the package that runs.
	current *events
}

func (r *reporter) line(ctx context.Context, line string) (err error) {
	mark, marked := strings.CutPrefix(strings.TrimRight(line, "\r\n"), marker)
	verb, about, _ := strings.Cut(mark, " ")
	switch {
	case !marked && r.current != nil:
		_, err = io.WriteString(r.current.in, line)
	case !marked:
	case verb == markBegin:
		r.current, err = newEvents(ctx, about, r.out)
	case verb == markEnd:
		r.ok = r.ok && about == "0"
		err = r.end(about)
	case verb == markDone:
		r.done = true
	default:
		err = errors.New(mark)
	}
	return err
}

// end ends the package that runs, if there is one.
func (r *reporter) end(code string) error {
	if r.current == nil {
		return nil
	}
	e := r.current
	r.current = nil
	return e.end(code)
}

// events makes the events of one package out of what its tests print.
type events struct {
	convert *exec.Cmd
	in      io.WriteCloser
}

func newEvents(ctx context.Context, pkg string, out io.Writer) (*events, error) {
	// The name is not that of the package alone, whose tests may have run on this machine, too.
	convert := exec.CommandContext(ctx, "go", "tool", "test2json", "-t", "-p", inMachine(pkg))
	convert.Stdout, convert.Stderr = out, os.Stderr
	in, err := convert.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &events{convert: convert, in: in}, convert.Start()
}

func inMachine(pkg string) string { return pkg + " (virtual machine)" }

// end ends a package as `go test` does.
func (e *events) end(code string) error {
	var err error
	if code != "0" {
		_, err = fmt.Fprintf(e.in, "exit status %s\nFAIL\n", code)
	}
	return errors.Join(err, e.in.Close(), e.convert.Wait())
}

// skipAll writes the events of packages that cannot be tested.
func skipAll(out io.Writer, packages []string, why string) error {
	for _, pkg := range packages {
		_, err := fmt.Fprintf(out, `{"Action":"output","Package":%[1]q,"Test":"All","Output":%[2]q}`+"\n"+`{"Action":"skip","Package":%[1]q,"Test":"All"}`+"\n",
			inMachine(pkg), why+"\n")
		if err != nil {
			return err
		}
	}
	return nil
}
