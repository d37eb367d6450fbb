package main

import (
	"os"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/drivertest"
)

// TestDriver runs csi-sanity, the contract of a driver, and the walk over all fault points.
func TestDriver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a tmpfs needs root")
	}
	drivertest.Run(t, newDriver, drivertest.Volatile())
}

// newDriver makes the driver with another place for its volumes.
func newDriver(_ testing.TB, dir string) (driverkit.Options, driverkit.Driver, error) {
	o := newOptions()
	o.Topology = driverkit.Segments{nodeKey: "a"}
	m := &memory{root: dir, node: o.Topology}
	return o.Options, driverkit.Driver{Provisioner: m, Stager: m}, nil
}
