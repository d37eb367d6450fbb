package drivertest

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Driver is a driver that runs in the process of a test, for tests of one's own: those of package kubeletplugintest, for instance.
type Driver struct {
	// Endpoint is its socket, as a URL.
	Endpoint string

	machine *machine
	stop    func()
}

// Start starts a driver with a storage system and a state directory of its own, and returns when it serves. It runs until the test ends, which then fails if volumes, mounts or records are
// left.
func Start(t *testing.T, newDriver New) *Driver {
	t.Helper()
	d := &Driver{machine: (&settings{new: newDriver}).newMachine(t)}
	d.start()
	t.Cleanup(func() {
		d.machine.checkLeaks(t)
		d.stop()
	})
	return d
}

// Restart ends the driver and starts another one with the same storage system and state directory, at the same endpoint.
func (d *Driver) Restart() {
	d.machine.t.Helper()
	d.stop()
	d.start()
}

func (d *Driver) start() {
	d.machine.t.Helper()
	conn, stop := d.machine.start(nil)
	d.Endpoint, d.stop = d.machine.options.Endpoint, stop
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{}); err != nil { // it waits for the socket
		d.machine.t.Errorf("probe: %v", err)
	}
}
