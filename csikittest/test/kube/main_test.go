// Package kube_test tests informers, secrets and errors of csikit/kube against the API in memory.
// The tests are here because csikit does not depend on its test beds.
package kube_test

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
