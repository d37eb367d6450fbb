// Command testsum reads the events of `go test -json` and prints what a person needs: a line for each package, the output of
// what failed, and the numbers; at the end of many such runs the reasons of what was skipped, what failed once more, and the sum.
//
//	go test -json ./... | testsum -keep results/attacher.json
//	testsum -total results/*.json
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	keep := flag.String("keep", "", "also write the events to this file")
	total := flag.Bool("total", false, "print only what was skipped, what failed, and the sum, of the files that are named as arguments")
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
	var failures bytes.Buffer
	s := newSummary(io.Discard) // each package was printed when it ended
	s.failures = &failures
	for _, name := range files {
		err = errors.Join(err, s.readFile(name))
	}
	s.out = out
	s.printSkipped()
	fmt.Fprint(out, &failures)
	s.printTotal()
	return s.failed > 0, err
}
