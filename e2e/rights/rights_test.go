package rights

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
)

const callLog = `{"verb":"patch","user":{"username":"longshore:csi-attacher"},"objectRef":{"resource":"volumeattachments","subresource":"status","apiGroup":"storage.k8s.io"}}
{"verb":"get","user":{"username":"longshore:csi-attacher"},"objectRef":{"resource":"secrets","namespace":"a"}}
{"verb":"get","user":{"username":"longshore:csi-attacher"},"objectRef":{"resource":"leases","apiGroup":"coordination.k8s.io","namespace":"kube-system"}}
{"verb":"get","requestURI":"/version","user":{"username":"longshore:csi-provisioner"}}
{"verb":"list","user":{"username":"system:node:node-1"},"objectRef":{"resource":"pods"}}
{"verb":"delete","user":{"username":"longshore:csi-attacher"},"objec`

func TestCallsAreComparedWithRules(t *testing.T) {
	calls, err := asked(strings.NewReader(callLog))
	if err != nil {
		t.Fatal(err)
	}
	want := Set{
		"csi-attacher": {
			"patch volumeattachments/status.storage.k8s.io": true, "get secrets": true, "get leases.coordination.k8s.io in kube-system": true,
		},
		"csi-provisioner": {"get /version": true},
	}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	rules := Set{}
	rules.addRule("csi-attacher", rbacv1.PolicyRule{APIGroups: []string{"", "storage.k8s.io"}, Resources: []string{"secrets", "volumeattachments/status"}, Verbs: []string{"get", "patch"}}, "")
	rules.addRule("csi-attacher", rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get"}}, "elsewhere")
	for name, tc := range map[string]struct {
		reason    string
		got, want []string
	}{
		"TooFew": {
			reason: "a call of another namespace, or that no rule is about, is not granted", got: calls.Without(rules),
			want: []string{"csi-attacher: get leases.coordination.k8s.io in kube-system", "csi-provisioner: get /version"},
		},
		"TooMany": {
			reason: "a rule grants each verb on each resource of each group", got: rules.Without(calls),
			want: []string{
				"csi-attacher: get leases.coordination.k8s.io in elsewhere", "csi-attacher: get secrets.storage.k8s.io", "csi-attacher: get volumeattachments/status",
				"csi-attacher: get volumeattachments/status.storage.k8s.io", "csi-attacher: patch secrets", "csi-attacher: patch secrets.storage.k8s.io",
				"csi-attacher: patch volumeattachments/status",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
	if _, err := asked(strings.NewReader(`{"user":{"username":"longshore:x" torn}` + "\n")); err == nil || !strings.Contains(err.Error(), "torn") {
		t.Errorf("got %v", err)
	}
}
