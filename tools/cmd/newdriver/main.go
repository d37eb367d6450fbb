// Command newdriver copies the driver of this repository under other names, as the beginning of a driver for real storage:
//
//	newdriver -name foo.example.com -module example.com/foo -out ../foo
//
// The copy is a repository of its own. It has the packages of csikit and driverkit that the driver imports, its manifests and its tests, and
// needs nothing that is here. hostpathdriver/COPYING.md describes the next steps.
//
// It walks what is there: files and packages that come to the driver need no change here, except where they spell an old name in
// a way that none of the rules in names.go fits. Then nothing is written, and the error names the file and line.
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
	module := fs.String("module", "", "Go module `path` of the copy, such as example.com/foo")
	dir := fs.String("out", "", "`directory` for the copy, which must not be there yet, or be empty")
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
	if err := create(ctx, *root, n, *dir); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: driver %s, module %s, binary %s. Next: cd %s && make test\n", *dir, n.Driver, n.Module, n.Binary, *dir)
	return nil
}
