package params

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// values are those of a claim that all tests share.
func values() Values {
	return Values{
		PVName:           "pvc-1",
		ClaimName:        "data",
		ClaimNamespace:   "team",
		ClaimAnnotations: map[string]string{"example.com/secret": "mine", "bad": "Not A Name"},
	}
}

// pairOf returns parameters that give one operation a secret.
func pairOf(op operation, namespace, name string) map[string]string {
	keys := op.keys()
	return map[string]string{keys.name: name, keys.namespace: namespace}
}

// merge joins parameters.
func merge(maps ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range maps {
		for key, value := range m {
			all[key] = value
		}
	}
	return all
}

func TestResolve(t *testing.T) {
	common := map[string]string{defaultKeys.name: "common", defaultKeys.namespace: "ns"}
	cases := map[string]struct {
		reason     string
		parameters map[string]string
		want       Secrets
		errs       []string
	}{
		"None": {
			reason: "Secrets are optional.",
		},
		"EachOperation": {
			reason: "Each operation may have a secret of its own.",
			parameters: merge(pairOf(provision, "a", "s1"), pairOf(controllerPublish, "b", "s2"), pairOf(nodeStage, "c", "s3"),
				pairOf(nodePublish, "d", "s4"), pairOf(controllerExpand, "e", "s5"), pairOf(nodeExpand, "f", "s6"), pairOf(controllerModify, "g", "s7")),
			want: Secrets{
				Provision: ref("a", "s1"), ControllerPublish: ref("b", "s2"), NodeStage: ref("c", "s3"), NodePublish: ref("d", "s4"),
				ControllerExpand: ref("e", "s5"), NodeExpand: ref("f", "s6"), ControllerModify: ref("g", "s7"),
			},
		},
		"DefaultForAll": {
			reason:     "The default secret serves every operation without one.",
			parameters: merge(common, pairOf(nodeStage, "other", "own")),
			want: Secrets{
				Provision: ref("ns", "common"), ControllerPublish: ref("ns", "common"), NodeStage: ref("other", "own"), NodePublish: ref("ns", "common"),
				ControllerExpand: ref("ns", "common"), NodeExpand: ref("ns", "common"), ControllerModify: ref("ns", "common"),
			},
		},
		"Deprecated": {
			reason: "The keys of the first release still work.",
			parameters: map[string]string{
				"csiProvisionerSecretName": "a", "csiProvisionerSecretNamespace": "x",
				"csiControllerPublishSecretName": "b", "csiControllerPublishSecretNamespace": "x",
				"csiNodeStageSecretName": "c", "csiNodeStageSecretNamespace": "x",
				"csiNodePublishSecretName": "d", "csiNodePublishSecretNamespace": "x",
			},
			want: Secrets{Provision: ref("x", "a"), ControllerPublish: ref("x", "b"), NodeStage: ref("x", "c"), NodePublish: ref("x", "d")},
		},
		"DeprecatedAndPresent": {
			reason:     "Both forms together are an error, not a guess.",
			parameters: merge(pairOf(provision, "a", "s"), map[string]string{"csiProvisionerSecretName": "b", "csiProvisionerSecretNamespace": "c"}),
			errs:       []string{`"csiProvisionerSecretName"`, "may not be given together"},
		},
		"NameOnly": {
			reason:     "A secret is found by name and namespace.",
			parameters: map[string]string{provision.keys().name: "s"},
			errs:       []string{`"csi.storage.k8s.io/provisioner-secret-namespace": must be set together`},
		},
		"NamespaceOnly": {
			reason:     "A secret is found by name and namespace.",
			parameters: map[string]string{provision.keys().namespace: "s"},
			errs:       []string{`"csi.storage.k8s.io/provisioner-secret-name" and`, "must be set together"},
		},
		"EmptyDeprecated": {
			reason:     "Empty values of deprecated keys are errors as well.",
			parameters: map[string]string{"csiNodeStageSecretName": "", "csiNodeStageSecretNamespace": "x"},
			errs:       []string{`"csiNodeStageSecretName" and`, "must be set together"},
		},
		"HalfPairIsNotFilledByDefault": {
			reason:     "The default does not repair half a pair.",
			parameters: merge(common, map[string]string{nodePublish.keys().name: "s"}),
			errs:       []string{`"csi.storage.k8s.io/node-publish-secret-namespace"`},
		},
		"AllTokens": {
			reason:     "A name may be made of everything, a namespace of what the user cannot choose.",
			parameters: pairOf(provision, "${pvc.namespace}-${pv.name}", "${pv.name}.${pvc.namespace}.${pvc.name}.${pvc.annotations['example.com/secret']}"),
			want:       Secrets{Provision: ref("team-pvc-1", "pvc-1.team.data.mine")},
		},
		"UserMayNotChooseNamespace": {
			reason:     "The owner of a claim must not reach into other namespaces.",
			parameters: pairOf(nodeStage, "${pvc.name}", "s"),
			errs:       []string{"resolve node-stage secret", `invalid tokens: ["pvc.name"]`, `["pv.name" "pvc.namespace"]`},
		},
		"UserMayNotAnnotateNamespace": {
			reason:     "The owner of a claim must not reach into other namespaces by annotations.",
			parameters: pairOf(nodeStage, "${pvc.annotations['example.com/secret']}", "s"),
			errs:       []string{"invalid tokens"},
		},
		"MissingAnnotation": {
			reason:     "A claim that lacks the annotation gets a clear error.",
			parameters: pairOf(provision, "ns", "${pvc.annotations['none']}"),
			errs:       []string{`invalid tokens: ["pvc.annotations['none']"]`},
		},
		"ResultIsNoName": {
			reason:     "What comes out must be a name that a secret can have.",
			parameters: pairOf(provision, "ns", "${pvc.annotations['bad']}"),
			errs:       []string{`gives "Not A Name"`},
		},
		"ResultIsNoNamespace": {
			reason:     "A namespace is a label, without dots.",
			parameters: pairOf(provision, "a.b", "s"),
			errs:       []string{`namespace template "a.b"`},
		},
		"DollarWithoutBrace": {
			reason:     "A dollar sign alone is a typing error.",
			parameters: pairOf(provision, "ns", "a$b"),
			errs:       []string{`name template "a$b" gives "a$b"`},
		},
		"OpenBrace": {
			reason:     "An open token is a typing error.",
			parameters: pairOf(provision, "ns", "${pv.name"),
			errs:       []string{`invalid tokens: ["pv.name"]`},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			class, err := Parse(tc.parameters)
			var got Secrets
			if err == nil {
				got, err = class.Resolve(values())
			}
			if checkErr(t, tc.reason, err, tc.errs) {
				return
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\nsecrets (-want +got):\n%s", tc.reason, diff)
			}
			only, err := class.ResolveProvision(values())
			if err != nil || !cmp.Equal(only, tc.want.Provision) {
				t.Errorf("%s\nResolveProvision gives %v, %v, want %v", tc.reason, only, err, tc.want.Provision)
			}
		})
	}
}

func TestDeprecatedSecretKeysReachTheDriver(t *testing.T) {
	parameters := map[string]string{"csiProvisionerSecretName": "a", "csiProvisionerSecretNamespace": "x"}
	class, err := Parse(parameters)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(parameters, class.Driver); diff != "" {
		t.Errorf("driver parameters (-want +got):\n%s", diff)
	}
}
