package main

import (
	"os"
	"testing"

	"github.com/longshore-csi/longshore/driverkit/drivertest"
	"github.com/longshore-csi/longshore/kubeletplugin/kubeletplugintest"
)

// TestKubelet has a kubelet mount volumes for pods.
func TestKubelet(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a tmpfs needs root")
	}
	kubeletplugintest.Run(t, func(t *testing.T) kubeletplugintest.Config {
		d := drivertest.Start(t, newDriver)
		return kubeletplugintest.Config{Endpoint: d.Endpoint, Restart: d.Restart}
	})
}
