package sidecartest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// Right is what a component may do to a kind of objects: the API group, the resource, sorted verbs with commas, and for what.
type Right struct{ Group, Resource, Verbs, Why string }

// Requests are the requests that an API server got.
type Requests struct {
	cluster *kubetest.Cluster

	mu   sync.Mutex
	seen map[string]map[string]bool // verbs by resource
}

// Record notes the requests that the API server gets from now on.
func Record(cluster *kubetest.Cluster) *Requests {
	r := &Requests{cluster: cluster, seen: map[string]map[string]bool{}}
	for _, resource := range r.resources() {
		r.seen[resource] = map[string]bool{}
		for _, verb := range []string{"create", "update", "patch", "delete", "get", "list", "watch"} {
			cluster.Inject(kubetest.Fault{Verb: verb, Resource: resource, Do: func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.seen[resource][verb] = true
			}})
		}
	}
	return r
}

// Count counts the requests that the API server gets from now on, but those that list and watch, by verb and resource such as
// "patch volumesnapshots/status". The returned function returns what has come so far.
func Count(cluster *kubetest.Cluster) func() map[string]int {
	var mu sync.Mutex
	counts := map[string]int{}
	r := &Requests{cluster: cluster}
	for _, resource := range r.resources() {
		for _, verb := range []string{"create", "update", "patch", "delete", "get"} {
			cluster.Inject(kubetest.Fault{Verb: verb, Resource: resource, Do: func() {
				mu.Lock()
				defer mu.Unlock()
				counts[verb+" "+resource]++
			}})
		}
	}
	return func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(counts)
	}
}

// resources returns all resources, each after its status: a request to the status matches both, and counts for the first.
func (r *Requests) resources() []string {
	known := r.cluster.Resources()
	all := make([]string, 0, 2*len(known))
	for _, resource := range known {
		all = append(all, resource+"/status", resource)
	}
	return all
}

// Compare tests that exactly these rights were used.
func (r *Requests) Compare(tb testing.TB, rights []Right) {
	tb.Helper()
	documented := map[string]string{}
	for _, right := range rights {
		documented[right.Resource] = right.Verbs
	}
	for _, resource := range r.resources() {
		if got := r.verbs(resource); got != documented[resource] {
			tb.Errorf("%s: used %q, documented %q", resource, got, documented[resource])
		}
	}
}

// verbs returns the verbs that were used on a resource.
func (r *Requests) verbs(resource string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.seen[resource]
	if seen["watch"] && resource != "leases" { // of which one is watched
		seen["list"] = true // servers that cannot stream lists are asked for one
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), ", ")
}

// RightsDocument tests that docs/rbac.md has these rights of a component, such as csi-attacher. sources are the kinds of objects that name
// secrets, empty for a component that reads none; notes, which may be empty, come after the table.
func RightsDocument(tb testing.TB, component string, rights []Right, sources, notes string) {
	tb.Helper()
	var table, rules strings.Builder
	for _, r := range rights {
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", r.Group, r.Resource, r.Verbs, r.Why)
		fmt.Fprintf(&rules, "- {apiGroups: [%q], resources: [%s], verbs: [%s]}\n", r.Group, r.Resource, r.Verbs)
	}
	replaced := strings.Replace(component, "csi-", "external-", 1)
	if after, ok := strings.CutPrefix(component, "csi-external-"); ok {
		replaced = "external-" + after
	}
	text := document
	if sources == "" {
		text, _, _ = strings.Cut(document, "\nWith `--secret-namespaces")
	}
	commandtest.Golden(tb, "docs/rbac.md", strings.NewReplacer(
		"COMPONENT", component, "REPLACED", replaced,
		"TABLE\n", table.String(), "RULES\n", rules.String(), "NOTES\n", notes, "SOURCES", sources,
	).Replace(text))
}

const document = `# Rights that COMPONENT needs

The role of the REPLACED is enough. What is optional is used if it is granted. This page is generated from the test that
watches the requests, by ` + "`go test -run TestRightsDoc . -rewrite`" + `.

| API group | Resource | Verbs | For |
|---|---|---|---|
TABLE
NOTES

As a ClusterRole with everything:

` + "```yaml" + `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: COMPONENT
rules:
RULES
` + "```" + `

With ` + "`--secret-namespaces=storage`" + `, secrets of other namespaces are refused with an error that names the flag, even if a
SOURCES names them. The rule for secrets in the ClusterRole is not needed then: in each of the namespaces, bind a Role
to the service account.

` + "```yaml" + `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  namespace: storage
  name: COMPONENT-secrets
rules:
- {apiGroups: [""], resources: [secrets], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  namespace: storage
  name: COMPONENT-secrets
subjects:
- {kind: ServiceAccount, namespace: kube-system, name: COMPONENT}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: COMPONENT-secrets}
` + "```\n"
