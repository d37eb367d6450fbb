// Package leader_test tests csikit/leader against the API in memory, also beside the elector of client-go.
// The tests are here because csikit does not depend on its test beds.
package leader_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
