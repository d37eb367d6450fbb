package kubetest

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Fault makes matching requests fail, or late. Empty fields match everything.
type Fault struct {
	// Verb is create, update, patch, delete, get, list or watch.
	Verb string
	// Resource such as "persistentvolumes", or "volumeattachments/status" for requests to the status only.
	Resource string
	// Namespace and Name of the object. Names that the server makes up match when the request has the generateName.
	Namespace, Name string
	// Err is the answer. nil: the request is served as usual.
	Err error
	// After lets the request take effect first, and only the answer is Err.
	After bool
	// Delay holds the request back; it ends early when the request's context does.
	Delay time.Duration
	// Hang holds the request back until its context ends.
	Hang bool
	// Do is called when a request matches: before the effect, or behind it with After. It may
	// cancel a context to crash a component at this point.
	Do func()
	// Times is how many requests it hits; 0 is all of them.
	Times int

	hits int
}

// Inject adds a fault. Of several that match a request, the one added first acts.
func (c *Cluster) Inject(f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.hits = 0
	c.faults = append(c.faults, &f)
}

// Fail lets the next times requests (0: all) of that verb and resource fail with err; "" matches any.
func (c *Cluster) Fail(verb, resource string, err error, times int) {
	c.Inject(Fault{Verb: verb, Resource: resource, Err: err, Times: times})
}

// SetLatency makes writes of a resource take that long before they take effect, whatever faults there are. In a synctest bubble, this gives
// requests that are made at the same time an order.
func (c *Cluster) SetLatency(resource string, latency time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latencies == nil {
		c.latencies = map[string]time.Duration{}
	}
	c.latencies[resource] = latency
}

// lag waits for the latency of a resource.
func (c *Cluster) lag(resource string) {
	c.mu.Lock()
	latency := c.latencies[resource]
	c.mu.Unlock()
	if latency > 0 {
		<-time.After(latency)
	}
}

// Heal removes all faults.
func (c *Cluster) Heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = nil
}

// request is what faults match.
type request struct {
	session                                      *Session
	verb, resource, subresource, namespace, name string
}

// target is the resource with its subresource.
func (r request) target() string {
	if r.subresource == "" {
		return r.resource
	}
	return r.resource + "/" + r.subresource
}

func (f *Fault) matches(r request) bool {
	return (f.Verb == "" || f.Verb == r.verb) &&
		(f.Resource == "" || f.Resource == r.resource || f.Resource == r.target()) &&
		(f.Namespace == "" || f.Namespace == r.namespace) &&
		(f.Name == "" || f.Name == r.name)
}

// faultFor returns a copy of the fault that hits the request, and uses it up.
func (c *Cluster) faultFor(r request) Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, f := range c.faults {
		if !f.matches(r) {
			continue
		}
		f.hits++
		if f.hits == f.Times {
			c.faults = slices.Delete(slices.Clone(c.faults), i, i+1)
		}
		return *f
	}
	return Fault{}
}

// serve performs a request under the faults that hit it.
func serve[R any](ctx context.Context, c *Cluster, r request, perform func() (R, error)) (R, error) {
	var none R
	if err := errors.Join(ctx.Err(), r.session.check()); err != nil {
		return none, err
	}
	f := c.faultFor(r)
	if err := f.before(ctx); err != nil {
		c.logFailure(r, err)
		return none, err
	}
	if err := r.session.check(); err != nil {
		return none, err
	}
	if err := c.checkServed(r); err != nil {
		c.logFailure(r, err)
		return none, err
	}
	result, err := perform()
	if err == nil {
		err = f.after()
	}
	if cut := r.session.check(); cut != nil {
		err = cut
	}
	if err != nil {
		return none, err
	}
	return result, nil
}

// before is what happens before the effect of a request.
func (f *Fault) before(ctx context.Context) error {
	if err := f.hold(ctx); err != nil {
		return err
	}
	if f.After {
		return nil
	}
	f.do()
	return f.Err
}

// after is what happens behind it.
func (f *Fault) after() error {
	if !f.After {
		return nil
	}
	f.do()
	return f.Err
}

func (f *Fault) do() {
	if f.Do != nil {
		f.Do()
	}
}

// hold waits as long as the fault says.
func (f *Fault) hold(ctx context.Context) error {
	if f.Hang {
		<-ctx.Done()
		return ctx.Err()
	}
	if f.Delay <= 0 {
		return nil
	}
	timer := time.NewTimer(f.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
