// Package components runs the project's components by name, so that one program can be all processes of a cluster.
//
// They take the flags of the binaries they stand for. A real deployment uses those binaries instead.
package components

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
)

// start parses flags and runs a component until ctx ends.
type start func(ctx context.Context, fs *flag.FlagSet, args []string) error

// options is what the options of every component can do.
type options[O any] interface {
	*O
	AddFlags(fs *flag.FlagSet)
	Validate() error
}

// component makes the start of a component from its root package's functions.
func component[O any, P options[O]](newOptions func() O, run func(context.Context, O) error) start {
	return func(ctx context.Context, fs *flag.FlagSet, args []string) error {
		o := newOptions()
		P(&o).AddFlags(fs)
		if err := fs.Parse(args); err != nil {
			return err
		}
		if err := P(&o).Validate(); err != nil {
			return err
		}
		return run(ctx, o)
	}
}

func all() map[string]start {
	return map[string]start{}
}

// Names lists the components.
func Names() []string { return slices.Sorted(maps.Keys(all())) }

// Run runs a component until ctx ends. A component that ends because ctx did has not failed.
func Run(ctx context.Context, name string, args []string, stderr io.Writer) error {
	run, ok := all()[name]
	if !ok {
		return fmt.Errorf("no component %q: there are %q", name, Names())
	}
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(stderr)
	if err := run(ctx, fs, args); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
