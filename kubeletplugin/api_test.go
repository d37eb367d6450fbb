package kubeletplugin

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/apitest"
)

func TestAPI(t *testing.T) {
	apitest.Compare(t, "github.com/longshore-csi/longshore/kubeletplugin",
		".", "agent", "driver", "fault", "fsgroup", "kubeletplugintest", "layout", "recovery", "registration", "resolve", "stats", "unsupported", "volume")
}
