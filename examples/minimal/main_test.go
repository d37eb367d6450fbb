package main

import (
	"os"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/drivertest"
)

// TestDriver runs csi-sanity, the contract of a Backend, and the walk over all fault points.
func TestDriver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a tmpfs needs root")
	}
	drivertest.Run(t, func(dir string) (driverkit.Options, driverkit.Backend, error) {
		o := newOptions()
		o.Topology = driverkit.Segments{nodeKey: "a"}
		return o.Options, &memory{root: dir, node: o.Topology}, nil
	}, drivertest.Volatile())
}
