// Package events_test tests csikit/events against the API in memory: which events are written, merged, repeated and dropped.
// The tests are here because csikit does not depend on its test beds.
package events_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
