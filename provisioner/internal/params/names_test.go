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

// TestExpand covers what may stand around tokens.
func TestExpand(t *testing.T) {
	tokens := map[string]string{"a": "1", "b": "${a}", "empty": ""}
	cases := map[string]struct {
		reason string
		text   string
		want   string
		err    string
	}{
		"Plain":      {reason: "A text without tokens stays.", text: "x-y.z", want: "x-y.z"},
		"Empty":      {reason: "So does no text.", text: ""},
		"Token":      {reason: "A token is replaced.", text: "${a}", want: "1"},
		"Around":     {reason: "What stands around it stays.", text: "x${a}y${a}z", want: "x1y1z"},
		"EmptyValue": {reason: "A token may stand for nothing.", text: "x${empty}y", want: "xy"},
		"NoNesting":  {reason: "What comes out is not expanded again: a user could choose it.", text: "${b}", want: "${a}"},
		"Braces":     {reason: "Braces alone mean nothing.", text: "{a}", want: "{a}"},
		"Unknown":    {reason: "An unknown token is named, with those that are known.", text: "x${c}", err: `unknown token "c", known here are ["a" "b" "empty"]`},
		"Case":       {reason: "Tokens are exact.", text: "${A}", err: `unknown token "A"`},
		"Space":      {reason: "Tokens are exact.", text: "${ a}", err: `unknown token " a"`},
		"Dollar":     {reason: "A dollar sign alone is a typing error.", text: "$a", err: "followed by {token}"},
		"DollarEnd":  {reason: "Also at the end.", text: "x$", err: "followed by {token}"},
		"Escaped":    {reason: "There is no escape: names have no dollar signs.", text: "$$", err: "followed by {token}"},
		"Open":       {reason: "A token must be closed.", text: "${a", err: "not closed"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := expand(tc.text, tokens)
			if tc.err == "" && (err != nil || got != tc.want) {
				t.Errorf("%s\ngot %q, %v, want %q", tc.reason, got, err, tc.want)
			}
			if tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("%s\nerror %v, want it to contain %q", tc.reason, err, tc.err)
			}
		})
	}
}
