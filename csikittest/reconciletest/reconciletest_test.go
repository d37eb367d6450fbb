package reconciletest_test

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/reconciletest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

func TestTranscripts(t *testing.T) {
	reconciletest.RunWith(t, "testdata", reconciletest.Kinds{Install: snapshotapitest.Install}, runAttacher)
}
