package filesystem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	mountutils "k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"github.com/longshore-csi/longshore/driverkit/internal/doing"
)

// outputLimit is how much of its output an error quotes: the reason comes
// first, and all has to fit into the trailer of an answer.
const outputLimit = 1 << 10

// programs runs programs for a library that knows no contexts: each runs with
// the one of the request.
type programs struct {
	utilexec.Interface // the library calls none of the rest

	run func(name string, args ...string) ([]byte, error)
	// failed is the last one that ended badly. The library makes text of it.
	failed error
}

func newPrograms(ctx context.Context) *programs {
	p := &programs{}
	p.run = func(name string, args ...string) ([]byte, error) {
		output, err := run(ctx, name, args...)
		if err != nil {
			p.failed = err
		}
		return output, err
	}
	return p
}

// Command implements Interface of k8s.io/utils/exec.
func (p *programs) Command(name string, args ...string) utilexec.Cmd {
	return program{run: func() ([]byte, error) { return p.run(name, args...) }}
}

// cause is why the library has failed.
func (p *programs) cause(err error) error {
	if err != nil && p.failed != nil {
		return p.failed
	}
	return err
}

type program struct {
	utilexec.Cmd // the library calls none of the rest

	run func() ([]byte, error)
}

// CombinedOutput implements Cmd of k8s.io/utils/exec.
func (p program) CombinedOutput() ([]byte, error) {
	return p.run()
}

// mounter mounts for the library, whose own ways to mount know no contexts
// either.
type mounter struct {
	mountutils.Interface // the library calls none of the rest

	programs *programs
}

// MountSensitive implements Interface of k8s.io/mount-utils. Nothing that is
// passed here is sensitive.
func (m mounter) MountSensitive(source, target, fsType string, flags, _ []string) error {
	_, err := m.programs.run("mount", mountutils.MakeMountArgs(source, target, fsType, flags)...)
	return err
}

// failure is an exit status that the library asks for, with a text that says
// what has failed, and why.
type failure struct {
	utilexec.ExitErrorWrapper

	text string
}

// Error implements error.
func (f failure) Error() string { return f.text }

// commandLine is what errors call a program and its arguments. The values of mount flags may be secrets.
func commandLine(name string, args []string) string {
	shown := slices.Clone(args)
	if i := slices.Index(args, "-o"); i >= 0 && i+1 < len(args) {
		shown[i+1] = flagNames(strings.Split(args[i+1], ","))
	}
	return name + " " + strings.Join(shown, " ")
}

// run runs a program to its end, whatever becomes of the context: one that is killed leaves a file system half checked, half made or half as large, and the next call would begin at the
// start again.
func run(ctx context.Context, name string, args ...string) ([]byte, error) {
	line := commandLine(name, args)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", line, err)
	}
	defer doing.Say(ctx, line)()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), name, args...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true} // a signal of the terminal is not for it
	output, err := cmd.CombinedOutput()
	if err == nil {
		return output, nil
	}
	said := bytes.TrimSpace(output)
	text := fmt.Sprintf("%s: %v: %s", line, err, said[:min(len(said), outputLimit)])
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return output, failure{ExitErrorWrapper: utilexec.ExitErrorWrapper{ExitError: exit}, text: text}
	}
	return output, fmt.Errorf("%s: %w", line, err)
}
