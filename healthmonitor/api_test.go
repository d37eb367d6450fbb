package healthmonitor

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/apitest"
)

func TestAPI(t *testing.T) {
	apitest.Compare(t, "github.com/longshore-csi/longshore/healthmonitor", ".")
}
