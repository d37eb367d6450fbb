package reconciletest_test

import (
	"testing"

	"github.com/longshore-csi/longshore/csikit/reconciletest"
	"github.com/longshore-csi/longshore/csikit/snapshotapitest"
)

func TestTranscripts(t *testing.T) {
	reconciletest.RunWith(t, "testdata", reconciletest.Kinds{Install: snapshotapitest.Install}, runAttacher)
}
