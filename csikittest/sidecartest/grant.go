package sidecartest

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/logtest"
)

// mostLists is how often a component may list a kind, and watch it, in the time of a test of some minutes.
const mostLists = 5

// errorLine is a line of the log that reports an error.
var errorLine = regexp.MustCompile(`(?m)^E\d{4} .*$`)

// Granted is an API server that grants a component certain rights only.
type Granted struct {
	log *logtest.Log

	mu     sync.Mutex
	counts map[string]int // by verb and resource, refused requests among them
}

// Grant has the API server refuse, from now on, all requests that rights do not allow, as RBAC does: with Forbidden, whether there is such a kind or not. Faults
// that are injected later do not act.
func Grant(tb testing.TB, cluster *kubetest.Cluster, rights []Right) *Granted {
	tb.Helper()
	verbs := map[string][]string{}
	for _, right := range rights {
		verbs[right.Resource] = append(verbs[right.Resource], strings.Split(right.Verbs, ", ")...)
	}
	g := &Granted{log: &logtest.Log{Copy: tb.Output()}, counts: map[string]int{}}
	r := &Requests{cluster: cluster}
	for _, resource := range r.resources() {
		for _, verb := range []string{"create", "update", "patch", "delete", "get", "list", "watch"} {
			var err error
			if !slices.Contains(verbs[resource], verb) {
				err = apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", fmt.Errorf("the service account cannot %s it", verb))
			}
			cluster.Inject(kubetest.Fault{Verb: verb, Resource: resource, Err: err, Do: func() {
				g.mu.Lock()
				defer g.mu.Unlock()
				g.counts[verb+" "+resource]++
			}})
		}
	}
	return g
}

// Context returns a context with the logger for the component.
func (g *Granted) Context(ctx context.Context) context.Context {
	return klog.NewContext(ctx, textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(g.log))))
}

// Requests returns the number of requests by verb and resource, such as "list volumesnapshots", so far.
func (g *Granted) Requests() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.counts)
}

// Check tests that the component with the logger of Context has logged no error, and that it has not listed or watched a kind again and again.
func (g *Granted) Check(tb testing.TB) {
	tb.Helper()
	if lines := errorLine.FindAllString(g.log.String(), -1); len(lines) > 0 {
		tb.Errorf("%d lines of the log report errors, want none; the first:\n%s", len(lines), lines[0])
	}
	counts := g.Requests()
	for _, request := range slices.Sorted(maps.Keys(counts)) {
		verb, resource, _ := strings.Cut(request, " ")
		if (verb == "list" || verb == "watch") && counts[request] > mostLists {
			tb.Errorf("%d requests to %s %s, want at most %d", counts[request], verb, resource, mostLists)
		}
	}
}
