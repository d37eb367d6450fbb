package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/longshore-csi/longshore/csikittest/seeds"
)

const (
	// mutantSteps is how many steps the model has to find a mutant. A hundredth is enough for most of them.
	mutantSteps = 30_000
	// someMutants is how many are tried in an ordinary run of the tests.
	someMutants = 1
	// repository is its directory, and library that of the module whose own tests find some mutants.
	repository = "../../.."
	library    = repository + "/kubeletplugin"
)

// mutant is a deliberate bug.
type mutant struct {
	// Name says what is wrong.
	Name string `json:"name"`
	// File, from the repository's directory, has Old exactly once; New replaces it.
	File string `json:"file"`
	Old  string `json:"old"`
	New  string `json:"new"`
	// Test is the test of the library that finds it; empty: the model does.
	Test string `json:"test"`
}

var violationText = regexp.MustCompile(`VIOLATION of (.+?) after (\d+) steps`)

// TestMutants puts deliberate bugs into the agent, one at a time, and expects TestModel to find each. `make soak TEST=mutants` tries all, an ordinary run one,
// which the seed chooses; MUTANTS=N is another number.
func TestMutants(t *testing.T) {
	all := readMutants(t)
	if testing.Short() {
		t.Skip("each mutant is a build of the test")
	}
	seed := seeds.One(t)
	n := min(number(t, "MUTANTS", someMutants), len(all))
	rand.New(rand.NewPCG(seed, 4)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var (
		mu    sync.Mutex
		table []string
	)
	t.Run("mutants", func(t *testing.T) {
		for _, m := range all[:n] {
			t.Run(m.Name, func(t *testing.T) {
				t.Parallel()
				found := m.find(t, seed)
				mu.Lock()
				defer mu.Unlock()
				table = append(table, fmt.Sprintf("%-56s %s", m.Name, found))
			})
		}
	})
	slices.Sort(table)
	t.Logf("seed %d\n%-56s %s\n%s", seed, "mutant", "steps until found, by which invariant", strings.Join(table, "\n"))
}

func readMutants(t *testing.T) []mutant {
	t.Helper()
	text, err := os.ReadFile("testdata/mutants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []mutant
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		source, err := os.ReadFile(filepath.Join(repository, m.File))
		if err != nil {
			t.Error(err)
		}
		if n := strings.Count(string(source), m.Old); n != 1 || m.Old == "" {
			t.Errorf("mutant %q: %q occurs %d times in %s, must be once: change testdata/mutants.yaml", m.Name, m.Old, n, m.File)
		}
	}
	return all
}

// find runs the model with the mutant, up to three times with other seeds, and returns when it was found.
func (m *mutant) find(t *testing.T, seed uint64) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	program := m.build(ctx, t)
	if m.Test != "" {
		run := exec.CommandContext(ctx, program, "-test.run=^"+m.Test+"$", "-test.timeout=10m")
		run.Dir = library
		if output, err := run.CombinedOutput(); err == nil || !strings.Contains(string(output), "--- FAIL: "+m.Test) {
			t.Errorf("not found by %s: %v\n%s", m.Test, err, output)
		}
		return "        " + m.Test
	}
	var output []byte
	var err error
	const tries = 3
	for try := range uint64(tries) {
		run := exec.CommandContext(ctx, program, "-test.run=^TestModel$", "-test.timeout=20m")
		run.Env = append(os.Environ(), fmt.Sprintf("SEED=%d", seed+try), fmt.Sprintf("MODEL_STEPS=%d", mutantSteps))
		if output, err = run.CombinedOutput(); err != nil {
			break
		}
	}
	if err == nil {
		t.Errorf("not found in %d times %d steps", tries, mutantSteps)
		return "not found"
	}
	found := violationText.FindSubmatch(output)
	if found == nil {
		t.Errorf("the model ended with %v, but without a violation:\n%s", err, output)
		return "the model has failed"
	}
	return fmt.Sprintf("%6s  %s", found[2], found[1])
}

// build compiles the tests of this package, or of the library, with the mutant.
func (m *mutant) build(ctx context.Context, t *testing.T) (program string) {
	t.Helper()
	dir := t.TempDir()
	file, err := filepath.Abs(filepath.Join(repository, m.File))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mutated, overlay := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, mutated, []byte(strings.Replace(string(source), m.Old, m.New, 1)))
	write(t, overlay, replace)
	program = filepath.Join(dir, "model.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay="+overlay, "-o="+program, ".")
	if m.Test != "" {
		build.Dir = library
	}
	output, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("build the mutant: %v\n%s", err, output)
	}
	return program
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
