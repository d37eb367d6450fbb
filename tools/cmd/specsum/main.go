// Command specsum reads the JSON reports of ginkgo and prints what a person needs: the specs that failed and why, how often
// specs were skipped for which reason, and at the end the numbers. What a focus or filter left out is not counted.
//
//	ginkgo --json-report=report.json ... ; specsum report.json
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	flag.Parse()
	ok, err := run(flag.Args(), os.Stdout)
	if err != nil {
		fmt.Fprintf(os.Stderr, "specsum: %v\n", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run reports whether at least one spec passed and none failed.
func run(files []string, out io.Writer) (ok bool, err error) {
	var s summary
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return false, err
		}
		var suites []suite
		if err := json.Unmarshal(data, &suites); err != nil {
			return false, fmt.Errorf("read the report %s: %w", name, err)
		}
		for _, suite := range suites {
			s.add(suite)
		}
	}
	s.print(out)
	return s.ok(), nil
}
