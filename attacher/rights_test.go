package attacher

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/commandtest"
	"github.com/longshore-csi/longshore/csikit/kubetest"
)

// right is what the component may do to a kind of objects.
type right struct{ group, resource, verbs, why string }

func rights() []right {
	return []right{
		{"", "persistentvolumes", "get, list, patch, watch", "the volume and its finalizer"},
		{"storage.k8s.io", "volumeattachments", "list, patch, watch", "what to attach, finalizer and annotations"},
		{"storage.k8s.io", "volumeattachments/status", "patch", "the outcome"},
		{"storage.k8s.io", "csinodes", "list, watch", "node IDs"},
		{"coordination.k8s.io", "leases", "create, get, update, watch", "`--leader-election`; a Role in the namespace of the pod is enough"},
		{"", "secrets", "get", "optional: drivers with `controllerPublishSecretRef`; a Role in the namespace of the secrets is enough"},
		{"", "events", "create", "optional: events on VolumeAttachments (namespace `default`) and claims"},
		{"", "nodes", "get", "optional: nodes whose driver is published by annotation only"},
	}
}

// secretsDoc says how to grant less than all secrets.
const secretsDoc = `With ` + "`--secret-namespaces=storage`" + `, secrets of other namespaces are refused with an error that names the flag, even if a
PersistentVolume or VolumeAttachment names them. The rule for secrets in the ClusterRole is not needed then: in each of the namespaces, bind a Role
to the service account.

` + "```yaml" + `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  namespace: storage
  name: csi-attacher-secrets
rules:
- {apiGroups: [""], resources: [secrets], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  namespace: storage
  name: csi-attacher-secrets
subjects:
- {kind: ServiceAccount, namespace: kube-system, name: csi-attacher}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: csi-attacher-secrets}
` + "```\n"

func TestRightsDoc(t *testing.T) {
	var table, rules strings.Builder
	for _, r := range rights() {
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", r.group, r.resource, r.verbs, r.why)
		fmt.Fprintf(&rules, "- {apiGroups: [%q], resources: [%s], verbs: [%s]}\n", r.group, r.resource, r.verbs)
	}
	commandtest.Golden(t, "docs/rbac.md", `# Rights that csi-attacher needs

The role of the external-attacher is enough. What is optional is used if it is granted. This page is generated from the test that
watches the requests, by `+"`go test -run TestRightsDoc . -rewrite`"+`.

| API group | Resource | Verbs | For |
|---|---|---|---|
`+table.String()+`
As a ClusterRole with everything:

`+"```yaml"+`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: csi-attacher
rules:
`+rules.String()+"```\n\n"+secretsDoc)
}

// TestRights uses everything that asks the API server for something, and compares what was asked with
// the table.
func TestRights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		used := record(w.cluster)
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "keys"}}
		pv := testPV()
		pv.Spec.CSI.ControllerPublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: "keys"}
		va, stray, orphan := testVA("va-1"), testVA("va-2"), testVA("va-3")
		va.Spec.NodeName, stray.Spec.NodeName = "node-1", "no-such-node"
		orphan.Spec.Source.PersistentVolumeName = new("no-such-volume")
		w.must(w.cluster.Apply(secret, pv, va, stray, orphan))
		w.launch()
		pass(time.Minute)
		leader := *w
		w.launch() // it waits for the Lease
		pass(time.Minute)
		w.end(false)
		w.session, w.cancel, w.ended, w.running = leader.session, leader.cancel, leader.ended, leader.running
		w.must(w.cluster.Remove("volumeattachments", "", "va-1"))
		pass(time.Minute)
		w.end(false)

		documented := map[string]string{}
		for _, r := range rights() {
			documented[r.resource] = r.verbs
		}
		for _, resource := range resources(w.cluster) {
			if got := used(resource); got != documented[resource] {
				t.Errorf("%s: used %q, documented %q", resource, got, documented[resource])
			}
		}
	})
}

// resources returns all resources, subresources first: these are more special.
func resources(cluster *kubetest.Cluster) []string {
	return append([]string{"volumeattachments/status", "persistentvolumes/status", "nodes/status"}, cluster.Resources()...)
}

// record notes all requests; the result returns the verbs that were used on a resource.
func record(cluster *kubetest.Cluster) func(resource string) string {
	var mu sync.Mutex
	seen := map[string]map[string]bool{}
	for _, resource := range resources(cluster) {
		seen[resource] = map[string]bool{}
		for _, verb := range []string{"create", "update", "patch", "delete", "get", "list", "watch"} {
			cluster.Inject(kubetest.Fault{Verb: verb, Resource: resource, Do: func() {
				mu.Lock()
				defer mu.Unlock()
				seen[resource][verb] = true
			}})
		}
	}
	return func(resource string) string {
		mu.Lock()
		defer mu.Unlock()
		if seen[resource]["watch"] && resource != "leases" { // of which one is watched
			seen[resource]["list"] = true // servers that cannot stream lists are asked for one
		}
		return strings.Join(slices.Sorted(maps.Keys(seen[resource])), ", ")
	}
}
