package deploy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// TestInlineVolumePolicy: what the policy does is tested end to end; here, that its parts belong together, and that it fails
// closed where it fails.
func TestInlineVolumePolicy(t *testing.T) {
	list := objects(t, "../components/inline-volume-policy")
	if len(list) != 2 {
		t.Fatalf("got %d objects, want a policy and its binding", len(list))
	}
	policy := one[*admissionregistrationv1.ValidatingAdmissionPolicy](t, list)
	binding := one[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, list)
	deny := admissionregistrationv1.DenyAction
	want := admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: policy.Name,
		// The list is an annotation of the binding itself.
		ParamRef:          &admissionregistrationv1.ParamRef{Name: binding.Name, ParameterNotFoundAction: &deny},
		ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
	}
	if diff := cmp.Diff(want, binding.Spec); diff != "" {
		t.Errorf("binding (-want +got):\n%s", diff)
	}
	if got := binding.Annotations["csi.longshore.dev/allowed-inline-drivers"]; got != driverName {
		t.Errorf("the binding allows %q, want the driver of this directory", got)
	}
	kind := admissionregistrationv1.ParamKind{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicyBinding"}
	if policy.Spec.ParamKind == nil || *policy.Spec.ParamKind != kind {
		t.Errorf("parameter is %+v, want %+v", policy.Spec.ParamKind, kind)
	}
	if policy.Spec.FailurePolicy == nil || *policy.Spec.FailurePolicy != admissionregistrationv1.Fail {
		t.Error("an expression that fails lets the pod pass")
	}
	pods := []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
	}}}
	if diff := cmp.Diff(pods, policy.Spec.MatchConstraints.ResourceRules); diff != "" {
		t.Errorf("what is looked at (-want +got):\n%s", diff)
	}
}
