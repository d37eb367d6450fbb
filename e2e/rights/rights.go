// Package rights compares the calls that components make of the API server with the RBAC rules of deploy/: no component asks for more, and
// TestRightsAreExactlyThoseUsed of package e2e checks that each right is used.
package rights

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/devcluster/apply"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// Set has calls of the API by component: those that are granted, or those that were made.
type Set map[string]map[string]bool

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

func (r Set) add(component, call string) {
	if r[component] == nil {
		r[component] = map[string]bool{}
	}
	r[component][call] = true
}

// Without lists the calls that the other set lacks, sorted, each as "csi-attacher: get secrets".
func (r Set) Without(others Set) (missing []string) {
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

// Components returns the names of the components that talk to the API server with rights of our own; those of a kubelet are of Kubernetes.
func Components() []string { return devcluster.Replaceable() }

// clusterRules has the rules of the development cluster.
const clusterRules = "devcluster/internal/bootstrap/objects/rbac.yaml"

// Granted returns the rights that the rules of deploy/ give. The development cluster has the same; module deploy tests that.
func Granted() (Set, error) {
	all := Set{}
	for _, component := range Components() {
		if strings.Contains(component, "snapshot") {
			// All users may look at what the API server serves (ClusterRole system:discovery).
			all.add(component, "get /apis/groupsnapshot.storage.k8s.io/v1")
		}
		if component == "snapshot-controller" { // which deploy/ has beside the driver, in a namespace of its own
			err1 := all.addRules(component, clusterRules, testbed.ComponentUser+component)
			err2 := all.addRules(component, clusterRules, "leader-election")
			if err := errors.Join(err1, err2); err != nil {
				return nil, err
			}
			continue
		}
		all.add(component, call("get", "secrets", "", "", "")) // by deploy/components/secrets, bound in each namespace with secrets
		for _, file := range []string{"deploy/base/" + strings.TrimPrefix(component, "csi-") + "/rbac.yaml", "deploy/components/leader-election/rbac.yaml"} {
			if err := all.addRules(component, file, ""); err != nil {
				return nil, err
			}
		}
	}
	// A Deployment needs the most to find the owner of what it publishes, and is put together from two components.
	if err := all.addRules("csi-provisioner", "deploy/rendered/deployment.yaml", "csi-hostpath-storage-capacity"); err != nil {
		return nil, err
	}
	return all, nil
}

// addRules adds the rules of a file, or those of the one Role or ClusterRole in it that is named. Those of a Role are for the namespace of the components.
func (r Set) addRules(component, file, role string) error {
	data, err := os.ReadFile(testbed.Path(file))
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
		namespace := ""
		if o.GetKind() == "Role" {
			namespace = devcluster.Namespace
		}
		for _, rule := range rules.Rules {
			r.addRule(component, rule, namespace)
		}
	}
	return nil
}

func (r Set) addRule(component string, rule rbacv1.PolicyRule, namespace string) {
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				r.add(component, call(verb, resource, "", group, namespace))
			}
		}
	}
}

// Asked returns the calls that the components have made since a cluster started, from its audit log.
func Asked(d *testbed.Dev) (Set, error) {
	f, err := os.Open(d.Log("audit"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return asked(f)
}

func asked(r io.Reader) (Set, error) {
	all := Set{}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // what has no end yet is being written
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(line, []byte(`"username":"`+testbed.ComponentUser)) {
			continue
		}
		e, err := testbed.ReadAudit(line)
		if err != nil {
			return nil, err
		}
		o := e.ObjectRef
		if o.Resource == "" {
			all.add(testbed.ShortUser(e.User.Username), e.Verb+" "+e.RequestURI)
			continue
		}
		namespace := ""
		if slices.Contains([]string{"leases", "csistoragecapacities", "pods", "replicasets"}, o.Resource) { // of these alone the rights are bounded by one
			namespace = o.Namespace
		}
		all.add(testbed.ShortUser(e.User.Username), call(e.Verb, o.Resource, o.Subresource, o.APIGroup, namespace))
	}
}

// NotGranted lists the calls that the components have made since a cluster started, and that deploy/ gives no right to.
func NotGranted(d *testbed.Dev) ([]string, error) {
	rules, err := Granted()
	if err != nil {
		return nil, err
	}
	calls, err := Asked(d)
	if err != nil {
		return nil, err
	}
	return calls.Without(rules), nil
}
