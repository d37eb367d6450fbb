package deploy

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// TestNodePolicyOfCharts: the library chart has the policy of the component, with names and keys from values.
func TestNodePolicyOfCharts(t *testing.T) {
	text := strings.NewReplacer(
		"metadata:\n  name: csi-hostpath-node\n", "metadata:\n  name: {{ $name }}\n  labels: {{- include \"csi-driver-lib.labels\" . | nindent 4 }}\n",
		"system:serviceaccount:csi-hostpath:csi-hostpath-node", "system:serviceaccount:{{ .Release.Namespace }}:{{ $name }}",
		`everyNode, expression: "false"`, `everyNode, expression: "{{ or (empty .Values.nodePolicy.key) (contains "resizer" (include "csi-driver-lib.sidecars" .)) }}"`,
		`"'hostpath.csi.k8s.io'"`, `"'{{ .Values.driver.name }}'"`, `"'topology.hostpath.csi/node'"`, `"'{{ .Values.nodePolicy.key }}'"`,
		"policyName: csi-hostpath-node", "policyName: {{ $name }}",
	).Replace(contentOf(t, "components/node-policy/policy.yaml") + "---\n" + contentOf(t, "components/node-policy/binding.yaml"))
	compareGolden(t, library+"/templates/_nodepolicy.tpl", []byte(`{{/* Made of components/node-policy by a test: go test -rewrite. */}}
{{- define "csi-driver-lib.node-policy" -}}
{{- if and .Values.provisionOnNodes .Values.nodePolicy.enabled -}}
{{- $name := printf "%s-node" (include "csi-driver-lib.name" .) -}}
`+text+`{{- end -}}
{{- end -}}
`))
}

// TestNodePolicySeesAllWrites: each right of the account on a node to write is one that the policy limits, but for events.
func TestNodePolicySeesAllWrites(t *testing.T) {
	list := objects(t, "distributed")
	policy := one[*admissionregistrationv1.ValidatingAdmissionPolicy](t, list)
	if binding := one[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, list); binding.Spec.PolicyName != policy.Name || len(binding.Spec.ValidationActions) != 1 {
		t.Errorf("binding %+v", binding.Spec)
	}
	seen := rights{}
	for _, r := range policy.Spec.MatchConstraints.ResourceRules {
		for _, operation := range r.Operations {
			verbs := map[admissionregistrationv1.OperationType][]string{"CREATE": {"create"}, "UPDATE": {"update", "patch"}, "DELETE": {"delete"}}[operation]
			seen.add(r.APIGroups, r.Resources, verbs)
		}
	}
	var free []string
	for right := range rightsIn(t, string(render(t, "distributed"))) {
		verb, _, _ := strings.Cut(right, " ")
		if !slices.Contains([]string{"get", "list", "watch"}, verb) && !seen[right] {
			free = append(free, right)
		}
	}
	slices.Sort(free)
	if diff := cmp.Diff([]string{"create events ", "patch events "}, free); diff != "" {
		t.Errorf("rights that the policy does not limit (-want +got):\n%s", diff)
	}
}
