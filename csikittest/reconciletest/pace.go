package reconciletest

import (
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// pace fails the test when a component repeats a request that has failed before the pause after that failure is over, although nothing has changed since: what a
// component writes itself must not make it ask the driver again.
type pace struct {
	mu     sync.Mutex
	retry  flagset.Retry
	failed map[string]failure
	// running counts the calls that have not ended, and spared those that were running when something changed: the work that they are part of may have begun with
	// what was before, and may be repeated at once.
	running, spared int
	// ending is set while the component ends: it has little time then.
	ending bool
}

// failure is a request whose last calls have failed.
type failure struct {
	count int
	at    time.Time
}

// begin starts a run of the component with the arguments of the command "start".
func (p *pace) begin(args map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending, p.retry = false, flagset.NewRetry()
	for name, to := range map[string]*time.Duration{"retry-interval-start": &p.retry.Start, "retry-interval-max": &p.retry.Max} {
		if d, err := time.ParseDuration(args[name]); err == nil {
			*to = d
		}
	}
}

// end is called before the component is stopped.
func (p *pace) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending = true
}

// change is called when something has changed on which requests may depend.
func (p *pace) change() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed, p.spared = map[string]failure{}, p.running
}

// write is called with each request of the component: a conflict shows that somebody else has changed the object.
func (p *pace) write(w kubetest.Write) {
	if apierrors.IsConflict(w.Err) {
		p.change()
	}
}

// call is called before a call of the driver, and answered with its error.
func (p *pace) call(tb testing.TB, method string, request proto.Message) (answered func(error)) {
	tb.Helper()
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil || routineCalls()[method] {
		return func(error) {}
	}
	key := method + string(text)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running++
	if before, ok := p.failed[key]; ok && !p.ending {
		p.check(tb, method, request, key, before)
	}
	return func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.running--
		switch {
		case err == nil && method == "ListVolumes": // which says what has changed in the storage system
			p.failed = map[string]failure{}
			return
		case err == nil:
			delete(p.failed, key)
			return
		}
		p.failed[key] = failure{count: p.failed[key].count + 1, at: time.Now()}
	}
}

// check fails the test if the request comes too early. p.mu must be held.
func (p *pace) check(tb testing.TB, method string, request proto.Message, key string, before failure) {
	tb.Helper()
	pause := p.retry.Start
	for n := 1; n < before.count && pause < p.retry.Max; n++ {
		pause *= 2
	}
	pause = min(pause, p.retry.Max)
	waited := time.Since(before.at)
	switch {
	case waited >= pause:
	case p.spared > 0:
		p.spared--
		delete(p.failed, key)
	default:
		tb.Errorf("%s is called again %v after failure %d in a row, and nothing has changed: the pause is at least %v; request:\n%s",
			method, waited, before.count, pause, requestText(request))
	}
}
