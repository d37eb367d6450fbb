// Package command is what the main functions of all components have in common: flags, version, logging, signals, exit code.
//
// With it a main function is one line, and a program that holds several components (a development cluster, an all-in-one
// binary) runs each exactly as its own binary would. Drivers may use it: it links no Kubernetes client.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/version"
)

// Options is what the options of every component can do.
type Options[O any] interface {
	*O
	// AddFlags binds the flags to the fields.
	AddFlags(fs *flag.FlagSet)
	// Validate reports everything that is wrong.
	Validate() error
}

// Component is a component that can be run.
type Component[O any, P Options[O]] struct {
	name         string
	new          func() O
	run          func(ctx context.Context, o O) error
	oneProcessor bool
}

// New makes a component from the functions of its root package; the name is that of its binary.
func New[O any, P Options[O]](name string, newOptions func() O, run func(ctx context.Context, o O) error) Component[O, P] {
	return Component[O, P]{name: name, new: newOptions, run: run}
}

// OnOneProcessor returns the component with a Main that computes on one processor, unless the environment variable GOMAXPROCS has another number. It is for
// components that wait for servers most of the time: on several processors, the Go runtime takes a fourth more processor time for the same work, in threads
// that wake each other and collect garbage while they have nothing else to do, and memory in proportion to their number.
func (c Component[O, P]) OnOneProcessor() Component[O, P] {
	c.oneProcessor = true
	return c
}

// Main runs the component as the process that it is in: flags from the command line, logs on standard error, until it ends
// or SIGINT or SIGTERM comes. It returns the exit code: 0, 1 for an error, 2 for a wrong command line.
//
//	func main() { os.Exit(command.New("csi-attacher", attacher.NewOptions, attacher.Run).OnOneProcessor().Main()) }
func (c Component[O, P]) Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if !profiled(os.Args[1:]) {
		runtime.MemProfileRate = 0 // nobody can read the profile, which takes a mebibyte
	}
	if c.oneProcessor && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	err := c.Execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", c.name, err)
	}
	return ExitCode(err)
}

// profiled reports whether a command line asks for profiles; the rate of the memory profile must not change later.
func profiled(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(strings.TrimLeft(arg, "-"), "enable-pprof") })
}

// ErrUsage is an error that the user made on the command line. The flag package has printed it already, with all flags.
var ErrUsage = errors.New("wrong command line")

// ExitCode maps an error of Execute to the exit code of the process.
func ExitCode(err error) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, ErrUsage):
		return 2
	default:
		return 1
	}
}

// Flags returns all flags of the component's binary, with those that every binary has: --version and the logging flags.
func (c Component[O, P]) Flags() *flag.FlagSet {
	o := c.new()
	fs, _, _ := c.flags(&o)
	return fs
}

func (c Component[O, P]) flags(o *O) (fs *flag.FlagSet, logs *logging.Options, showVersion *bool) {
	fs = flag.NewFlagSet(c.name, flag.ContinueOnError)
	P(o).AddFlags(fs)
	l := logging.NewOptions()
	l.AddFlags(fs)
	return fs, &l, fs.Bool("version", false, "Print the version and exit.")
}

// Execute runs the component with these arguments until it ends or ctx does. An end that ctx asked for is no error.
func (c Component[O, P]) Execute(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := c.new()
	fs, logs, showVersion := c.flags(&o)
	fs.SetOutput(stderr)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	if *showVersion {
		_, err := fmt.Fprintln(stdout, c.name, version.Get())
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("%w: argument %q: takes flags only", ErrUsage, fs.Arg(0))
	}
	if err := errors.Join(P(&o).Validate(), logs.Validate()); err != nil {
		return err
	}
	logger, err := logging.New(*logs, stderr)
	if err != nil {
		return err
	}
	klog.SetLogger(logger) // for the libraries that log without a context
	err = c.run(klog.NewContext(ctx, logger), o)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}
