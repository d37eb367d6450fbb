// Package sidecar_test tests components made by csikit/sidecar: flags, connections, elections, and the end, with a driver and an API in memory.
// The tests are here because csikit does not depend on its test beds.
package component_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
