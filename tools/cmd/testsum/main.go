// Command testsum reads the events of `go test -json` and prints what a person needs: a line for each package, the output of
// what failed, the reasons of what was skipped, and at the end the numbers.
//
//	go test -json ./... | testsum -keep results/attacher.json
//	testsum -total results/*.json
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	keep := flag.String("keep", "", "also write the events to this file")
	total := flag.Bool("total", false, "print only the sum of the files that are named as arguments")
	flag.Parse()
	failed, err := run(*keep, *total, flag.Args(), os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintf(os.Stderr, "testsum: %v\n", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

func run(keep string, total bool, files []string, in io.Reader, out io.Writer) (failed bool, err error) {
	if total {
		return sumFiles(files, out)
	}
	if keep != "" {
		f, err := os.Create(keep)
		if err != nil {
			return false, fmt.Errorf("keep the events: %w", err)
		}
		defer f.Close()
		in = io.TeeReader(in, f)
	}
	s := newSummary(out)
	if err := s.read(in); err != nil {
		return false, err
	}
	s.printTotal()
	return s.failed > 0, nil
}

func sumFiles(files []string, out io.Writer) (failed bool, err error) {
	s := newSummary(io.Discard) // the failures were told when they happened
	for _, name := range files {
		err = errors.Join(err, s.readFile(name))
	}
	s.out = out
	s.printSkipped()
	s.printTotal()
	return s.failed > 0, err
}
