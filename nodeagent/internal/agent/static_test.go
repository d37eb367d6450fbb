package agent

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// TestStaticDriver: a driver without a registrar is used by its name and socket, and its entry is in the CSINode.
func TestStaticDriver(t *testing.T) {
	c := newCluster(t, csitest.Options{})
	c.driver.AddVolume(csitest.Volume{ID: "vol-1"})
	c.cfg.Drivers = []Driver{{Name: driverName, Endpoint: c.driver.Serve(t)}}
	c.driver.Inject(csitest.Fault{Method: "NodeGetInfo", Code: 14, Times: 1}) // it is starting
	c.apply(csiDriver(false), claim(), persistentVolume(), podWith("a", claimSource()))
	c.start()
	c.eventually("the pod to run", c.running("a"))
	c.deletePod("a", 30)
	c.eventually("the pod to be gone", c.gone("a"))
	c.expectClean()
}
