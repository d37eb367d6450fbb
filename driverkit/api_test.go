package driverkit_test

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/apitest"
)

func TestAPI(t *testing.T) {
	apitest.Compare(t, module, ".", "filesystem", "mount", "state")
}
