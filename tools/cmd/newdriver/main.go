// Command newdriver writes the beginning of a CSI driver that is built with driverkit:
//
//	newdriver -name foo.example.com -module example.com/foo -out ../foo
//
// The driver works, and passes its tests, from its first minute: its volumes are directories, until its five functions call a storage system. The files
// of skeleton are what is written, as templates over names.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "newdriver: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) error {
	fs := flag.NewFlagSet("newdriver", flag.ContinueOnError)
	fs.SetOutput(out)
	root := fs.String("root", ".", "`directory` of this repository")
	driver := fs.String("name", "", "`name` of the driver, a domain name such as foo.example.com")
	module := fs.String("module", "", "Go module `path` of the driver, such as example.com/foo")
	dir := fs.String("out", "", "`directory` for the driver, which must not exist yet, or be empty")
	vendor := fs.Bool("vendor", false, "copy the source of the kit into the driver's repository, instead of importing it")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected arguments: %q", fs.Args())
	}
	n, err := newNames(*driver, *module)
	if err != nil {
		return err
	}
	w := writer{root: *root, names: n, vendor: *vendor}
	if err := w.create(ctx, *dir); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: driver %s, module %s. Next: cd %s && make test, and README.md\n", *dir, n.Driver, n.Module, *dir)
	return nil
}
