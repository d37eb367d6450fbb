package reconciletest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// Env has the connections and arguments of one run of the component.
type Env struct {
	// Kube is the API server. Its connection ends at a crash.
	Kube kube.Client
	// Conn leads to the driver, for csiclient.Config.Conn. Calls by this connection are
	// in the transcript; those by Driver.Conn are not.
	Conn grpc.ClientConnInterface
	// Driver is the driver itself.
	Driver *csitest.Driver
	// Session is the connection that Kube has, for clients of kinds that Kube does not have.
	Session *kubetest.Session
	// Cluster is the API server itself.
	Cluster *kubetest.Cluster
	// Args are the pairs of the command "start".
	Args map[string]string
}

// Arg returns a pair of the command "start", or fallback.
func (e *Env) Arg(key, fallback string) string {
	if value, ok := e.Args[key]; ok {
		return value
	}
	return fallback
}

// Start runs the component until ctx is done.
type Start func(ctx context.Context, env *Env) error

// Kinds are custom resources that the transcripts of a component have, beside those of Kubernetes.
type Kinds struct {
	// Install defines them in a cluster; see kubetest.Cluster.Define.
	Install func(*kubetest.Cluster)
	// Related returns names of an object that related objects have as well, such as "claim ns/data" for a snapshot of that claim: lines about
	// related objects are in the order of time. An object has always the name "<kind in lower case> <namespace/name>", but "claim",
	// "volume" and "attachment" for the kinds so called. Calls about a snapshot or group snapshot have the name "snapshot <UID>" if its name or
	// handle is made of that UID, else "snapshot <handle>". nil: none are related.
	Related func(kube.Object) []string
	// Instant is the time within which lines count as simultaneous, and are sorted by related objects: longer than the latencies that the
	// component's writes are given. 0: a microsecond.
	Instant time.Duration
}

// Run runs every file in dir as a test of its own, in a testing/synctest bubble.
func Run(t *testing.T, dir string, start func(ctx context.Context, env *Env) error) {
	t.Helper()
	RunWith(t, dir, Kinds{}, start)
}

// RunWith is Run with custom resources. Objects of these kinds can be applied, patched, deleted and dumped as all others.
func RunWith(t *testing.T, dir string, kinds Kinds, start func(ctx context.Context, env *Env) error) {
	t.Helper()
	datadriven.Walk(t, dir, func(t *testing.T, path string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			t.Helper()
			s := newStage(silent{t}, kinds, start)
			defer s.finish() // also after a failure: no goroutine may stay behind in the bubble
			datadriven.RunTestAny(silent{t}, path, s.play)
		})
	})
}

// play runs one command of a transcript.
func (s *stage) play(_ testing.TB, d *datadriven.TestData) string {
	s.t.Helper()
	return s.do(d)
}

// silent drops the progress messages of datadriven, which appear by virtual time.
type silent struct{ testing.TB }

// Logf implements testing.TB.
func (s silent) Logf(format string, args ...any) {
	s.Helper()
	if !strings.Contains(format, "still running after") {
		s.TB.Logf(format, args...)
	}
}

// verb is one command.
type verb struct {
	run func(s *stage, c *command) string
	// acts is set for verbs after which the component may act, so that its work is awaited.
	acts bool
	// looks is set for verbs that change nothing but the time.
	looks bool
}

func verbs() map[string]verb {
	return map[string]verb{
		"start":         {run: (*stage).start, acts: true},
		"stop":          {run: (*stage).stop},
		"restart":       {run: (*stage).restart, acts: true},
		"crash":         {run: (*stage).crash},
		"settle":        {run: (*stage).nothing, acts: true, looks: true},
		"advance":       {run: (*stage).advance, looks: true},
		"expect-none":   {run: (*stage).nothing, acts: true, looks: true},
		"apply":         {run: (*stage).apply, acts: true},
		"patch":         {run: (*stage).patch, acts: true},
		"delete":        {run: (*stage).remove, acts: true},
		"drop":          {run: (*stage).drop, acts: true},
		"dump":          {run: (*stage).dump, looks: true},
		"api-fault":     {run: (*stage).apiFault},
		"serve":         {run: (*stage).serve, acts: true},
		"break-watches": {run: (*stage).breakWatches, acts: true},
		"driver":        {run: (*stage).newDriver},
		"caps":          {run: (*stage).caps},
		"volume":        {run: (*stage).volume},
		"vanish":        {run: (*stage).vanish},
		"health":        {run: (*stage).health},
		"volumes":       {run: (*stage).volumes, looks: true},
		"snapshot":      {run: (*stage).snapshot},
		"groupsnapshot": {run: (*stage).groupSnapshot},
		"snapshots":     {run: (*stage).snapshots, looks: true},
		"fault":         {run: (*stage).fault},
		"heal":          {run: (*stage).heal},
	}
}

// do runs one command and returns its output.
func (s *stage) do(d *datadriven.TestData) string {
	s.t.Helper()
	v, ok := verbs()[d.Cmd]
	if !ok {
		names := make([]string, 0, len(verbs()))
		for name := range verbs() {
			names = append(names, name)
		}
		slices.Sort(names)
		d.Fatalf(s.t, "unknown command %q, known are: %s", d.Cmd, strings.Join(names, ", "))
	}
	s.log.begin()
	c := &command{t: s.t, data: d, used: map[string]bool{}}
	if !v.looks {
		s.pace.change()
	}
	printed := v.run(s, c)
	c.finish()
	if v.acts {
		s.settle()
	}
	happened := s.log.render(s.cluster, s.kinds)
	if d.Cmd == "expect-none" && happened != "" {
		d.Fatalf(s.t, "nothing was expected, but this happened:\n%s", happened)
	}
	if printed+happened == "" && v.acts && s.running != nil {
		return "(nothing)\n"
	}
	return printed + happened
}
