package params

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestNames states the keys of a StorageClass letter by letter: classes in clusters have them, so they never
// change.
func TestNames(t *testing.T) {
	const p = "csi.storage.k8s.io/"
	cases := map[string]struct {
		reason          string
		name, namespace string
		// pick finds the secret that the keys are for.
		pick func(Secrets) *corev1.SecretReference
		// passes says that the driver gets the keys as well.
		passes bool
	}{
		"Provisioner":       {reason: "CreateVolume and DeleteVolume.", name: p + "provisioner-secret-name", namespace: p + "provisioner-secret-namespace", pick: func(s Secrets) *corev1.SecretReference { return s.Provision }},
		"ControllerPublish": {reason: "ControllerPublishVolume.", name: p + "controller-publish-secret-name", namespace: p + "controller-publish-secret-namespace", pick: func(s Secrets) *corev1.SecretReference { return s.ControllerPublish }},
		"NodeStage":         {reason: "NodeStageVolume.", name: p + "node-stage-secret-name", namespace: p + "node-stage-secret-namespace", pick: func(s Secrets) *corev1.SecretReference { return s.NodeStage }},
		"NodePublish":       {reason: "NodePublishVolume.", name: p + "node-publish-secret-name", namespace: p + "node-publish-secret-namespace", pick: func(s Secrets) *corev1.SecretReference { return s.NodePublish }},
		"ControllerExpand":  {reason: "ControllerExpandVolume.", name: p + "controller-expand-secret-name", namespace: p + "controller-expand-secret-namespace", pick: func(s Secrets) *corev1.SecretReference { return s.ControllerExpand }},
		"NodeExpand":        {reason: "NodeExpandVolume.", name: p + "node-expand-secret-name", namespace: p + "node-expand-secret-namespace", pick: func(s Secrets) *corev1.SecretReference { return s.NodeExpand }},
		"ControllerModify":  {reason: "ControllerModifyVolume.", name: p + "controller-modify-secret-name", namespace: p + "controller-modify-secret-namespace", pick: func(s Secrets) *corev1.SecretReference { return s.ControllerModify }},

		"OldProvisioner":       {reason: "The first release, CreateVolume.", name: "csiProvisionerSecretName", namespace: "csiProvisionerSecretNamespace", pick: func(s Secrets) *corev1.SecretReference { return s.Provision }, passes: true},
		"OldControllerPublish": {reason: "The first release, ControllerPublishVolume.", name: "csiControllerPublishSecretName", namespace: "csiControllerPublishSecretNamespace", pick: func(s Secrets) *corev1.SecretReference { return s.ControllerPublish }, passes: true},
		"OldNodeStage":         {reason: "The first release, NodeStageVolume.", name: "csiNodeStageSecretName", namespace: "csiNodeStageSecretNamespace", pick: func(s Secrets) *corev1.SecretReference { return s.NodeStage }, passes: true},
		"OldNodePublish":       {reason: "The first release, NodePublishVolume.", name: "csiNodePublishSecretName", namespace: "csiNodePublishSecretNamespace", pick: func(s Secrets) *corev1.SecretReference { return s.NodePublish }, passes: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			parameters := map[string]string{tc.name: "s", tc.namespace: "ns", "own": "x"}
			class, err := Parse(parameters)
			if err != nil {
				t.Fatalf("%s\n%v", tc.reason, err)
			}
			secrets, err := class.Resolve(values())
			if err != nil {
				t.Fatalf("%s\n%v", tc.reason, err)
			}
			if diff := cmp.Diff(ref("ns", "s"), tc.pick(secrets)); diff != "" {
				t.Errorf("%s\nsecret (-want +got):\n%s", tc.reason, diff)
			}
			if n := count(secrets); n != 1 {
				t.Errorf("%s\n%d operations got the secret of one", tc.reason, n)
			}
			want := map[string]string{"own": "x"}
			if tc.passes {
				want = parameters
			}
			if diff := cmp.Diff(want, class.Driver); diff != "" {
				t.Errorf("%s\nparameters of the driver (-want +got):\n%s", tc.reason, diff)
			}
			for _, half := range []string{tc.name, tc.namespace} {
				if _, err := Parse(map[string]string{half: "s"}); err == nil || !strings.Contains(err.Error(), half) {
					t.Errorf("%s\nerror %v for %q alone, want one that names it", tc.reason, err, half)
				}
			}
		})
	}
}

// count returns how many operations have a secret.
func count(s Secrets) int {
	all := []*corev1.SecretReference{s.Provision, s.ControllerPublish, s.NodeStage, s.NodePublish, s.ControllerExpand, s.NodeExpand, s.ControllerModify}
	return len(slices.DeleteFunc(all, func(r *corev1.SecretReference) bool { return r == nil }))
}
