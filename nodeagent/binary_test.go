package nodeagent_test

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
	"github.com/longshore-csi/longshore/nodeagent"
)

func TestBinary(t *testing.T) {
	commandtest.Binary(t, "csi-node-agent", func() nodeagent.Options {
		o := nodeagent.NewOptions()
		o.NodeName = "machine" // wherever the test runs
		return o
	}, "--max-pods=0")
}
