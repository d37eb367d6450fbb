package reconciletest_test

import (
	"testing"

	"github.com/longshore-csi/longshore/csikit/reconciletest"
)

func TestTranscripts(t *testing.T) {
	reconciletest.Run(t, "testdata", runAttacher)
}
