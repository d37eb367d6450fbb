package seeds_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/csikittest/seeds"
)

// recorder is a test with a name of its own, whose failure is text.
type recorder struct {
	testing.TB
	name   string
	logged string
	failed string
}

func (r *recorder) Name() string                 { return r.name }
func (r *recorder) Logf(format string, a ...any) { r.logged += fmt.Sprintf(format, a...) + "\n" }

// Fatalf ends the test, as that of testing does.
func (r *recorder) Fatalf(format string, a ...any) {
	r.failed = fmt.Sprintf(format, a...)
	panic(r)
}

// run returns what f returns, unless it fails.
func run[T any](t *testing.T, name string, f func(testing.TB) T) (got T, r *recorder) {
	t.Helper()
	r = &recorder{TB: t, name: name}
	defer func() {
		if p := recover(); p != nil && p != any(r) {
			panic(p)
		}
	}()
	return f(r), r
}

// prepare sets the environment and the working directory of a test, with a list of seeds unless it is empty.
func prepare(t *testing.T, seed, exhaustive, file, list string) {
	t.Helper()
	t.Setenv("SEED", seed)
	t.Setenv("LONGSHORE_EXHAUSTIVE", exhaustive)
	t.Chdir(t.TempDir())
	if list == "" {
		return
	}
	if err := os.MkdirAll("testdata/seeds", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("testdata/seeds", file), []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAll(t *testing.T) {
	for name, tc := range map[string]struct {
		reason                 string
		seed, exhaustive, list string
		want                   []uint64
		isNew                  bool // one more than want
		failure                string
	}{
		"NoFile":       {reason: "a test without a list has one fixed seed", want: []uint64{1}},
		"List":         {reason: "comments and empty lines are skipped", list: "# all\n3\n\n 18446744073709551615 # was refused\n", want: []uint64{3, 1<<64 - 1}},
		"Range":        {reason: "a test of many short runs has a range", list: "2..4 # any\n9", want: []uint64{2, 3, 4, 9}},
		"Exhaustive":   {reason: "a new seed comes besides", exhaustive: "1", list: "7\n8\n", want: []uint64{7, 8}, isNew: true},
		"NewNoFile":    {reason: "a new seed comes besides", exhaustive: "yes", want: []uint64{1}, isNew: true},
		"SEED":         {reason: "it replaces list and new seed", seed: "5", exhaustive: "1", list: "7", want: []uint64{5}},
		"SEEDs":        {reason: "several", seed: "5, 0,7..8", list: "broken", want: []uint64{5, 0, 7, 8}},
		"SEEDNoNumber": {reason: "a mistake is not ignored", seed: "5,x", failure: `SEED=5,x: "x" must be a seed`},
		"Word":         {reason: "the error names file, line and rule", list: "1\nbad luck\n", failure: `testdata/seeds/TestName-Sub:2: "bad luck" must be a seed, a number`},
		"NoComment":    {reason: "a reason needs a #", list: "1 was refused", failure: "a comment begins with #"},
		"Negative":     {reason: "seeds are unsigned", list: "-1", failure: "must be a seed"},
		"Large":        {reason: "seeds have 64 bits", list: "18446744073709551616", failure: "must be a seed"},
		"Descending":   {reason: "an empty range tests nothing", list: "6..1", failure: "must be a seed"},
		"Endless":      {reason: "such a range is a mistake", list: "0..18446744073709551615", failure: "must be a seed"},
		"HalfRange":    {reason: "both ends are named", list: "1..", failure: "must be a seed"},
		"OnlyComments": {reason: "a list without seeds tests nothing", list: "# none\n", failure: "testdata/seeds/TestName-Sub has no seed"},
	} {
		t.Run(name, func(t *testing.T) {
			prepare(t, tc.seed, tc.exhaustive, "TestName-Sub", tc.list)
			got, r := run(t, "TestName/Sub", seeds.All)
			if !strings.Contains(r.failed, tc.failure) || (r.failed != "") != (tc.failure != "") {
				t.Fatalf("%s: failed with %q, want %q", tc.reason, r.failed, tc.failure)
			}
			if isNew := len(got) > len(tc.want); isNew != tc.isNew || !slices.Equal(got[:min(len(got), len(tc.want))], tc.want) {
				t.Errorf("%s: got %d, want %d, and a new one: %t", tc.reason, got, tc.want, tc.isNew)
			}
			if tc.isNew {
				want := fmt.Sprintf("SEED=%d go test -run '^TestName/Sub$' . repeats it. If it fails, add it to testdata/seeds/TestName-Sub", got[len(got)-1])
				if !strings.Contains(r.logged, want) {
					t.Errorf("the log must have %q, got %q", want, r.logged)
				}
			}
			if tc.failure == "" && !strings.Contains(r.logged, fmt.Sprint(tc.want)) {
				t.Errorf("the log must have %d, got %q", tc.want, r.logged)
			}
		})
	}
}

func TestOne(t *testing.T) {
	for name, tc := range map[string]struct {
		reason                 string
		seed, exhaustive, list string
		want                   uint64 // 0: a new one
	}{
		"First":      {reason: "of the list", list: "7\n8\n", want: 7},
		"Exhaustive": {reason: "the new one", exhaustive: "1", list: "7\n8\n"},
		"SEED":       {reason: "it replaces the new one", seed: "5,6", exhaustive: "1", want: 5},
	} {
		t.Run(name, func(t *testing.T) {
			prepare(t, tc.seed, tc.exhaustive, "TestName", tc.list)
			got, _ := run(t, "TestName", seeds.One)
			if listed := slices.Contains([]uint64{5, 6, 7, 8}, got); got != tc.want && (tc.want != 0 || listed) {
				t.Errorf("%s: got %d, want %d", tc.reason, got, tc.want)
			}
		})
	}
}

// Each seed has a subtest, which finds the list of the test by its name.
func TestEach(t *testing.T) {
	prepare(t, "", "", "TestEach", "3\n4 # was refused\n")
	var got []string
	seeds.Each(t, func(t *testing.T, seed uint64) {
		t.Helper()
		got = append(got, fmt.Sprint(t.Name(), " ", seed))
	})
	if want := []string{"TestEach/seed-3 3", "TestEach/seed-4 4"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
