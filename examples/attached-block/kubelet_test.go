package main

import (
	"testing"

	"github.com/longshore-csi/longshore/driverkit/drivertest"
	"github.com/longshore-csi/longshore/kubeletplugin/kubeletplugintest"
)

// TestKubelet has a kubelet attach and mount volumes for pods, by the kernel and without root.
func TestKubelet(t *testing.T) {
	for name, fake := range map[string]bool{"Kernel": false, "Fake": true} {
		t.Run(name, func(t *testing.T) { testKubelet(t, fake, false) })
	}
}

// TestKubeletBlock does the same with raw block volumes.
func TestKubeletBlock(t *testing.T) {
	for name, fake := range map[string]bool{"Kernel": false, "Fake": true} {
		t.Run(name, func(t *testing.T) { testKubelet(t, fake, true) })
	}
}

func testKubelet(t *testing.T, fake, block bool) {
	t.Helper()
	kubeletplugintest.Run(t, func(t *testing.T) kubeletplugintest.Config {
		d := drivertest.Start(t, newRig(t, fake).driver)
		return kubeletplugintest.Config{Endpoint: d.Endpoint, Restart: d.Restart, Secrets: credentials(), Block: block}
	})
}
