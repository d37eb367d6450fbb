package agent

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// TestDriverInTheProcess: a driver without a registrar is registered as soon as its socket answers, and after a restart again.
func TestDriverInTheProcess(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.apply(csiDriver(false))
	endpoint := c.driver.Serve(t)
	served := make(chan struct{}, 2)
	c.cfg.Drivers = []Driver{{Name: driverName, Endpoint: endpoint, Run: func(ctx context.Context) error {
		served <- struct{}{}
		<-ctx.Done()
		return nil
	}}}
	c.start()
	<-served
	c.apply(podWith("a", inlineSource()))
	c.eventually("the pod to run", c.running("a"))
	c.halt()
	c.start()
	<-served
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
}

// TestDriverInTheProcessAnswersLate: the registration is tried until the driver answers.
func TestDriverInTheProcessAnswersLate(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.apply(csiDriver(false))
	c.driver.Inject(csitest.Fault{Method: "NodeGetInfo", Code: codes.Unavailable, Times: 3})
	c.cfg.Drivers = []Driver{{Name: driverName, Conn: c.driver.Conn()}}
	c.start()
	c.apply(podWith("a", inlineSource()))
	c.eventually("the pod to run", c.running("a"))
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
}

// TestDriverOfTheProcessEnds: a node without its driver is of no use, so the agent ends and says why.
func TestDriverOfTheProcessEnds(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.cfg.Drivers = []Driver{{Name: driverName, Endpoint: "/nowhere", Run: func(context.Context) error { return errors.New("no disk") }}}
	a, err := New(c.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), driverName) || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("got %v, want the error of the driver", err)
	}
}
