package volume_test

import (
	"errors"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// TestStageSecretOnlyForStagingDrivers: the secret for NodeStageVolume is needed only if that call is made, as in the
// kubelet. A volume that names a missing one works with a driver that only publishes.
func TestStageSecretOnlyForStagingDrivers(t *testing.T) {
	cases := map[string]struct {
		reason    string
		caps      []csi.NodeServiceCapability_RPC_Type
		published bool
	}{
		"PublishOnly": {reason: "the driver has no NodeStageVolume", caps: []csi.NodeServiceCapability_RPC_Type{}, published: true},
		"Stages":      {reason: "the call cannot be made without its secret", caps: nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{Node: tc.caps}, func(t *testing.T, w *world) {
				w.set(func() { w.secretErr = errors.New("secret not found") })
				p := persistentOf("a", "vol-1")
				p.Volume.StageSecret = &corev1.SecretReference{Namespace: "ns", Name: "missing"}
				w.m.Want(p)
				time.Sleep(time.Minute)
				w.expectPublished(p, tc.published)
			})
		})
	}
}
