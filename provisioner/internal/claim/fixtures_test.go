package claim

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"

	"go.uber.org/goleak"

	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

const driver = fixtures.Driver

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// newIntent returns an intent of the claim's volume in some stage.
func newIntent(stage journal.Stage) *journal.Intent {
	return &journal.Intent{Stage: stage, Spec: volume.Spec{Name: "pvc-uid-1", Claim: fixtures.Claim(), Class: fixtures.Class()}}
}

// late makes the volumes of a class wait for their consumer.
func late(class *storagev1.StorageClass) {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	class.VolumeBindingMode = &mode
}
