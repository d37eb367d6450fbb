package agent

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/kubeletplugin"
	"github.com/longshore-csi/longshore/kubeletplugin/fault"
)

// The model test runs whole agents of two nodes, with two drivers and an API server in memory, and a model of the attach/detach controller,
// in model time: hours of a cluster pass in a second. What happens is chosen at random from a seed. The files:
//
//	model_test.go             the test, its runs and their summary
//	model_world_test.go       the cluster, and the life and death of agents
//	model_driver_test.go      drivers that fail, hang and lose answers
//	model_controller_test.go  the attach/detach controller, attacher and node lifecycle controller
//	model_steps_test.go       what happens at random, and what is expected once it ends
//	model_check_test.go       what must hold at every moment
//	mutants_test.go           deliberate bugs that the model must find

const (
	// modelSteps is how many steps there are in an ordinary test run; MODEL_STEPS has another number.
	modelSteps = 1000
	// stepsPerRun is how many steps one cluster lives.
	stepsPerRun = 100
)

// modelStats counts over all runs.
type modelStats struct {
	steps, kills, reboots int
	// reached is how often agents have come to each fault point, and killed how often they were killed there.
	reached, killed map[fault.Point]int
	// calls counts calls to drivers by method and code, and events what happened besides.
	calls, events map[string]int
}

// TestModel checks the invariants of model_check_test.go while pods come and go on two nodes, and agents, drivers, nodes and the API server fail. In
// the end of each run all works again: pods must run, and after their deletion nothing may be left. Each seed of the list has a run, and the numbers after
// the last one have as many more as there are steps for. `make soak TEST=model` runs more steps. A failure prints its seed: SEED=N repeats the run.
func TestModel(t *testing.T) {
	listed, steps := seeds.All(t), number(t, "MODEL_STEPS", modelSteps)
	inotify, err := kubeletplugin.NewInotify() // which the kernel wakes, so it cannot be in the bubble of a run
	if err != nil {
		t.Fatal(err)
	}
	defer inotify.Close()
	stats := &modelStats{reached: map[fault.Point]int{}, killed: map[fault.Point]int{}, calls: map[string]int{}, events: map[string]int{}}
	t.Logf("%d steps", steps)
	long := steps >= 10*modelSteps
	last := len(listed) - 1
	for run := 0; run <= last || stats.steps < steps || long && len(stats.untried()) > 0 && stats.steps < 3*steps; run++ {
		seed := listed[min(run, last)] + uint64(max(run-last, 0))
		if !t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) { modelRun(t, seed, inotify, stats) }) {
			t.Fatalf("SEED=%d MODEL_STEPS=%d repeats the run that has failed", seed, stepsPerRun)
		}
	}
	t.Log(stats.summary())
	if long && len(stats.untried()) > 0 {
		t.Errorf("a long test must try more: %s", strings.Join(stats.untried(), "; "))
	}
}

// number reads a number from the environment.
func number(t *testing.T, name string, standard int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return standard
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s=%s: must be a number", name, text)
	}
	return n
}

// modelRun is the life of one cluster.
func modelRun(t *testing.T, seed uint64, inotify *kubeletplugin.Inotify, stats *modelStats) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newModel(t, seed, inotify, stats)
		defer m.stop()
		for i := 0; i < stepsPerRun && !m.failed(); i++ {
			stats.steps++
			m.step()
		}
		m.settle()
		m.report()
	})
}

// summary is what was tried, for a reader who asks whether the test shows anything.
func (s *modelStats) summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d steps, agents killed %d times (%d of these by a reboot of the node)\n", s.steps, s.kills, s.reboots)
	fmt.Fprintf(&b, "%-24s %8s %8s\n", "fault point", "reached", "killed")
	for _, p := range fault.All() {
		fmt.Fprintf(&b, "%-24s %8d %8d\n", p, s.reached[p], s.killed[p])
	}
	for _, counts := range []map[string]int{s.calls, s.events} {
		names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Compare(a, b) })
		for _, name := range names {
			fmt.Fprintf(&b, "%-44s %8d\n", name, counts[name])
		}
	}
	return b.String()
}

// untried lists what a long test is there for, but has not tried often enough: it goes on until it has.
func (s *modelStats) untried() []string {
	var all []string
	if s.kills < 500 {
		all = append(all, fmt.Sprintf("agents were killed %d times, want 500", s.kills))
	}
	for _, p := range fault.All() {
		if s.killed[p] < 10 {
			all = append(all, fmt.Sprintf("agents were killed %d times %s, want 10", s.killed[p], p))
		}
	}
	return all
}
