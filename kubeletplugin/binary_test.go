package kubeletplugin_test

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
	"github.com/longshore-csi/longshore/kubeletplugin/agent"
)

func TestBinary(t *testing.T) {
	commandtest.Binary(t, "csi-node-agent", func() agent.Options {
		o := agent.NewOptions()
		o.NodeName = "machine" // wherever the test runs
		return o
	}, "--max-pods=0")
}
