package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/devcluster/apply"
)

// Rights are calls of the API by component: which are granted, or which were made.
type Rights map[string]map[string]bool

// call names what is done to which resources, and where, if not everywhere: "update leases.coordination.k8s.io in kube-system".
func call(verb, resource, subresource, group, namespace string) string {
	if subresource != "" {
		resource += "/" + subresource
	}
	if group != "" {
		resource += "." + group
	}
	if namespace != "" {
		return verb + " " + resource + " in " + namespace
	}
	return verb + " " + resource
}

func (r Rights) add(component, call string) {
	if r[component] == nil {
		r[component] = map[string]bool{}
	}
	r[component][call] = true
}

// without lists what the others lack.
func (r Rights) without(others Rights) (missing []string) {
	for component, calls := range r {
		for call := range calls {
			if !others[component][call] {
				missing = append(missing, component+": "+call)
			}
		}
	}
	slices.Sort(missing)
	return missing
}

// components are those that talk to the API server with rights of our own; the kubelet's are of Kubernetes.
func components() []string { return devcluster.Replaceable() }

// clusterRules has the rules of the development cluster.
const clusterRules = "../devcluster/internal/bootstrap/objects/rbac.yaml"

// granted reads the rules of deploy/. The development cluster has the same; module deploy tests that.
func granted() (Rights, error) {
	all := Rights{}
	for _, component := range components() {
		if strings.Contains(component, "snapshot") {
			// All users may look at what the API server serves (ClusterRole system:discovery).
			all.add(component, "get /apis/groupsnapshot.storage.k8s.io/v1")
		}
		if component == "snapshot-controller" { // which deploy/ has beside the driver, in a namespace of its own
			err1 := all.addRules(component, clusterRules, "", componentUser+component)
			err2 := all.addRules(component, clusterRules, devcluster.Namespace, "leader-election")
			if err := errors.Join(err1, err2); err != nil {
				return nil, err
			}
			continue
		}
		for file, namespace := range map[string]string{
			"../deploy/base/" + strings.TrimPrefix(component, "csi-") + "/rbac.yaml": "",
			"../deploy/components/leader-election/rbac.yaml":                         devcluster.Namespace,
		} {
			if err := all.addRules(component, file, namespace, ""); err != nil {
				return nil, err
			}
		}
	}
	// A Deployment needs the most to find the owner of what it publishes, and is put together from two components.
	if err := all.addRules("csi-provisioner", "../deploy/rendered/deployment.yaml", devcluster.Namespace, "csi-hostpath-storage-capacity"); err != nil {
		return nil, err
	}
	return all, nil
}

// addRules adds the rules of a file, or those of the one Role or ClusterRole in it that is named.
func (r Rights) addRules(component, file, namespace, role string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	objects, err := apply.Decode(data)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, o := range objects {
		if role != "" && (!strings.HasSuffix(o.GetKind(), "Role") || o.GetName() != role) {
			continue
		}
		var rules rbacv1.ClusterRole // a Role has the same rules
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &rules); err != nil {
			return fmt.Errorf("%s: %s %s: %w", file, o.GetKind(), o.GetName(), err)
		}
		for _, rule := range rules.Rules {
			r.addRule(component, rule, namespace)
		}
	}
	return nil
}

func (r Rights) addRule(component string, rule rbacv1.PolicyRule, namespace string) {
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				r.add(component, call(verb, resource, "", group, namespace))
			}
		}
	}
}

// Asked reads from the audit log what the components have asked of the API server since the cluster came up.
func (d *Dev) Asked() (Rights, error) {
	f, err := os.Open(d.Log("audit"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return asked(f)
}

func asked(r io.Reader) (Rights, error) {
	all := Rights{}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // what has no end yet is being written
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(line, []byte(`"username":"`+componentUser)) {
			continue
		}
		e, err := readAudit(line)
		if err != nil {
			return nil, err
		}
		o := e.ObjectRef
		if o.Resource == "" {
			all.add(who(e.User.Username), e.Verb+" "+e.RequestURI)
			continue
		}
		namespace := ""
		if slices.Contains([]string{"leases", "csistoragecapacities", "pods", "replicasets"}, o.Resource) { // of these alone the rights are bounded by one
			namespace = o.Namespace
		}
		all.add(who(e.User.Username), call(e.Verb, o.Resource, o.Subresource, o.APIGroup, namespace))
	}
}

// notGranted lists calls of the whole run that deploy/ gives no right to.
func (d *Dev) notGranted() ([]string, error) {
	rules, err := granted()
	if err != nil {
		return nil, err
	}
	calls, err := d.Asked()
	if err != nil {
		return nil, err
	}
	return calls.without(rules), nil
}

// TestRightsAreExactlyThoseUsed makes the components use all of their rights, and compares what they have asked of the API
// server with the rules in deploy/. That they never asked for more is looked at again when all tests have run.
func TestRightsAreExactlyThoseUsed(t *testing.T) {
	d := dev(t)
	rules, err := granted()
	if err != nil {
		t.Fatal(err)
	}
	if len(rules) != len(components()) {
		t.Fatalf("rules %v", rules)
	}
	for name, use := range uses() {
		t.Run(name, func(t *testing.T) { use(&story{Scene: bed.NewScene(t), t: t}) })
	}
	var unused []string
	err = poll(t.Context(), func(context.Context) (bool, error) { // the log may lag behind
		calls, err := d.Asked()
		unused = rules.without(calls)
		return len(unused) == 0, err
	})
	if err != nil {
		t.Errorf("rights that nobody used: %q: %v", unused, err)
	}
	calls, err := d.Asked()
	if err != nil {
		t.Fatal(err)
	}
	if more := calls.without(rules); len(more) > 0 {
		t.Errorf("calls that no rule of deploy/ allows: %q", more)
	}
}

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
	want := Rights{
		"csi-attacher": {
			"patch volumeattachments/status.storage.k8s.io": true, "get secrets": true, "get leases.coordination.k8s.io in kube-system": true,
		},
		"csi-provisioner": {"get /version": true},
	}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	rules := Rights{}
	rules.addRule("csi-attacher", rbacv1.PolicyRule{APIGroups: []string{"", "storage.k8s.io"}, Resources: []string{"secrets", "volumeattachments/status"}, Verbs: []string{"get", "patch"}}, "")
	rules.addRule("csi-attacher", rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get"}}, "elsewhere")
	for name, tc := range map[string]struct {
		reason    string
		got, want []string
	}{
		"TooFew": {
			reason: "a call of another namespace, or that no rule is about, is not granted", got: calls.without(rules),
			want: []string{"csi-attacher: get leases.coordination.k8s.io in kube-system", "csi-provisioner: get /version"},
		},
		"TooMany": {
			reason: "a rule grants each verb on each resource of each group", got: rules.without(calls),
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
