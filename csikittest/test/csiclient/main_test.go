// Package csiclient_test tests calls of csikit/csiclient to the driver in memory: capabilities, waiting, restarts, logs and metrics.
// The tests are here because csikit does not depend on its test beds.
package csiclient_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
