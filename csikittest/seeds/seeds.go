// Package seeds gives random tests their seeds: those of a list, so that a change is not refused for a defect that it has not made. A new seed is tried
// only where the environment variable LONGSHORE_EXHAUSTIVE is not empty, and SEED replaces all of them.
//
// The list of a test is the file testdata/seeds/NAME in the directory of its package, NAME being the test's name with '-' for each '/'. A line has one
// seed, or a range like 1..6, and may end with a comment, which begins with '#'. A seed with which the test has failed is added, with the reason. A
// test without a file has the seed 1.
//
// It is for tests whose checks hold for every seed. A test that needs one certain sequence of random numbers has a constant.
package seeds

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
)

const (
	// most is the largest number of seeds in a range, which nobody wants to exceed on purpose.
	most = 10_000
	// rule is what a line of a file, or a part of SEED, must be.
	rule = "must be a seed, a number from 0 to 2^64-1, or a range of seeds like 1..6"
)

// All returns the seeds of a test, at least one: those of SEED, which may be several, separated by commas, or else those of the test's list and, with
// LONGSHORE_EXHAUSTIVE, a new one, which is the last. It logs them.
func All(t testing.TB) []uint64 {
	t.Helper()
	if text := os.Getenv("SEED"); text != "" {
		var all []uint64
		for field := range strings.SplitSeq(text, ",") {
			some, ok := parse(field)
			if !ok {
				t.Fatalf("SEED=%s: %q %s", text, field, rule)
			}
			all = append(all, some...)
		}
		t.Logf("seeds of SEED: %d", all)
		return all
	}
	file := path.Join("testdata/seeds", strings.ReplaceAll(t.Name(), "/", "-"))
	all := list(t, file)
	t.Logf("seeds: %d", all)
	if os.Getenv("LONGSHORE_EXHAUSTIVE") != "" {
		seed := rand.Uint64N(1e9) // short enough to be typed
		t.Logf("new seed: %d. SEED=%d go test -run '^%s$' . repeats it. If it fails, add it to %s", seed, seed, t.Name(), file)
		all = append(all, seed)
	}
	return all
}

// One returns one seed of All, for a test that has a use for one only: the first, or with LONGSHORE_EXHAUSTIVE the new one.
func One(t testing.TB) uint64 {
	t.Helper()
	all := All(t)
	if os.Getenv("SEED") == "" && os.Getenv("LONGSHORE_EXHAUSTIVE") != "" {
		return all[len(all)-1]
	}
	return all[0]
}

// Each runs play as a subtest seed-N for each seed of All. play is not a helper: its failures would be reported at a line of this package.
func Each(t *testing.T, play func(t *testing.T, seed uint64)) {
	t.Helper()
	for _, seed := range All(t) {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) { play(t, seed) })
	}
}

// list reads the seeds of a file.
func list(t testing.TB, file string) []uint64 {
	t.Helper()
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return []uint64{1}
	}
	if err != nil {
		t.Fatal(err)
	}
	var all []uint64
	for i, line := range strings.Split(string(text), "\n") {
		seed, _, _ := strings.Cut(line, "#")
		if strings.TrimSpace(seed) == "" {
			continue
		}
		some, ok := parse(seed)
		if !ok {
			t.Fatalf("%s:%d: %q %s; a comment begins with #", file, i+1, line, rule)
		}
		all = append(all, some...)
	}
	if len(all) == 0 {
		t.Fatalf("%s has no seed; a test without a file has the seed 1", file)
	}
	return all
}

// parse returns the seeds of a text like 7 or 1..6.
func parse(text string) (all []uint64, ok bool) {
	from, to, isRange := strings.Cut(strings.TrimSpace(text), "..")
	first, err := strconv.ParseUint(from, 10, 64)
	last := first
	if isRange && err == nil {
		last, err = strconv.ParseUint(to, 10, 64)
	}
	if err != nil || last < first || last-first >= most {
		return nil, false
	}
	for i := range last - first + 1 {
		all = append(all, first+i)
	}
	return all, true
}
