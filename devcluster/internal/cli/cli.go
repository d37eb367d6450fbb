// Package cli is the command line of devcluster.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/longshore-csi/longshore/csikit/version"
	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/devcluster/internal/components"
)

// command is one word after "devcluster".
type command struct {
	name, args, help string
	hidden           bool
	run              func(ctx context.Context, c *call) error
}

// call is one use of a command.
type call struct {
	command
	args        []string
	stdout, err io.Writer
	options     devcluster.Options
}

func commands() []command {
	return []command{
		{name: "up", args: "[--nodes N] [--driver PATH]", help: "start a cluster; the first time downloads or builds the control plane", run: up},
		{name: "status", args: "[--output json]", help: "show the processes of the cluster", run: status},
		{name: "logs", args: "NAME [--follow]", help: "print the log of a process", run: logs},
		{name: "demo", args: "[--kubeconfig FILE]", help: "show a claim become a mounted directory, step by step", run: demonstrate},
		{name: "down", help: "stop the cluster and remove everything of it", run: down},
		{name: "version", help: "print the version", run: printVersion},
		{name: "supervise", hidden: true, run: supervise},
		{name: "run", args: "COMPONENT [FLAGS]", hidden: true, run: runComponent},
	}
}

// errUsage is an error that the user makes on the command line.
var errUsage = errors.New("usage")

// ExitCode maps an error of Run to the exit code of the process: 0, 1, or 2 for a wrong command line.
func ExitCode(err error) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	default:
		return 1
	}
}

// Run performs the command that the arguments name. It prints the error that it returns.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	err := dispatch(ctx, args, stdout, stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(stderr, "devcluster: %v\n", err)
	}
	return err
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 || slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]) {
		usage(stdout)
		return nil
	}
	all := commands()
	i := slices.IndexFunc(all, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		return fmt.Errorf("%w: no command %q; `devcluster help` lists them", errUsage, args[0])
	}
	options, err := devcluster.NewOptions()
	if err != nil {
		return err
	}
	return all[i].run(ctx, &call{command: all[i], args: args[1:], stdout: stdout, err: stderr, options: options})
}

func usage(w io.Writer) {
	fmt.Fprint(w, "devcluster runs a Kubernetes cluster for CSI drivers as plain processes on this machine.\n\n")
	for _, c := range commands() {
		if !c.hidden {
			fmt.Fprintf(w, "  devcluster %-32s %s\n", strings.TrimSpace(c.name+" "+c.args), c.help)
		}
	}
	fmt.Fprint(w, "\nEach command explains its flags with --help.\n")
}

// parse reads the arguments of the call: flags, which add defines, and so many words, in any order. It returns the words.
func (c *call) parse(words int, add func(fs *flag.FlagSet)) ([]string, error) {
	fs := flag.NewFlagSet(strings.TrimSpace("devcluster "+c.name+" "+c.command.args), flag.ContinueOnError)
	fs.SetOutput(c.err)
	add(fs)
	var found []string
	for rest := c.args; ; {
		if err := fs.Parse(rest); errors.Is(err, flag.ErrHelp) {
			return nil, err
		} else if err != nil {
			return nil, fmt.Errorf("%w: %w", errUsage, err)
		}
		if fs.NArg() == 0 {
			break
		}
		found, rest = append(found, fs.Arg(0)), fs.Args()[1:]
	}
	if len(found) != words {
		return nil, fmt.Errorf("%w: devcluster %s %s: %d words besides the flags, want %d", errUsage, c.name, c.command.args, len(found), words)
	}
	return found, c.options.Complete()
}

func up(ctx context.Context, c *call) error {
	if _, err := c.parse(0, c.options.AddFlags); err != nil {
		return err
	}
	status, err := devcluster.Up(ctx, c.options, c.stdout)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, `
The cluster is up (Kubernetes %s, %d nodes, %.1f s). Next:

  export KUBECONFIG=%s PATH="$PATH:%s"
  kubectl get nodes
  devcluster demo      # a claim becomes a mounted directory
  devcluster status    # processes and their logs
  devcluster down
`, status.Kubernetes, len(status.Nodes), status.Took.Seconds(), status.Kubeconfig, strings.Join(programs(status), ":"))
	return nil
}

// programs are the directories that the user's PATH needs: of kubectl in the version of the cluster, and of this program.
func programs(s devcluster.Status) []string {
	dirs := []string{s.Programs}
	if _, err := exec.LookPath("devcluster"); err == nil {
		return dirs
	}
	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(self))
	}
	return dirs
}

func down(ctx context.Context, c *call) error {
	if _, err := c.parse(0, c.options.AddDirFlag); err != nil {
		return err
	}
	return devcluster.Down(ctx, c.options.Dir, c.stdout)
}

func supervise(ctx context.Context, c *call) error {
	if _, err := c.parse(0, c.options.AddFlags); err != nil {
		return err
	}
	return devcluster.Supervise(ctx, c.options)
}

func runComponent(ctx context.Context, c *call) error {
	if len(c.args) == 0 {
		return fmt.Errorf("%w: devcluster run COMPONENT: one of %q", errUsage, components.Names())
	}
	return components.Run(ctx, c.args[0], c.args[1:], c.stdout, c.err)
}

func printVersion(_ context.Context, c *call) error {
	_, err := fmt.Fprintln(c.stdout, "devcluster", version.Get())
	return err
}
