package deploy

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// rights are what rules grant, one right for each verb on each resource.
type rights map[string]bool

func (r rights) add(groups, resources, verbs []string) {
	for _, group := range groups {
		for _, resource := range resources {
			for _, verb := range verbs {
				r[verb+" "+resource+" "+group] = true
			}
		}
	}
}

func (r rights) list() []string { return slices.Sorted(maps.Keys(r)) }

// rightsIn are the rights of some of the roles in a file's text; no name means all roles.
func rightsIn(t *testing.T, text string, names ...string) rights {
	t.Helper()
	found := rights{}
	for _, doc := range splitDocuments([]byte(text)) {
		var role rbacv1.ClusterRole // a Role has the same fields, as far as this goes
		if err := yaml.Unmarshal(doc, &role); err != nil {
			t.Fatal(err)
		}
		if len(names) > 0 && !slices.Contains(names, role.Name) {
			continue
		}
		for _, rule := range role.Rules {
			if len(rule.ResourceNames) > 0 || len(rule.NonResourceURLs) > 0 {
				t.Errorf("%s has a rule that this test does not understand: %+v", role.Name, rule)
			}
			found.add(rule.APIGroups, rule.Resources, rule.Verbs)
		}
	}
	return found
}

func contentOf(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// tableIn reads the first three columns of a document's table: API group, resource, verbs.
func tableIn(text string) rights {
	found := rights{}
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || strings.Contains(line, "---") || strings.Contains(line, "API group") {
			continue
		}
		found.add([]string{strings.TrimSpace(cells[1])}, []string{strings.TrimSpace(cells[2])}, strings.Split(strings.TrimSpace(cells[3]), ", "))
	}
	return found
}

// examplesIn are the blocks of YAML in a document.
func examplesIn(page string) (examples []string) {
	parts := strings.Split(page, "```yaml\n")
	for _, part := range parts[1:] {
		example, _, _ := strings.Cut(part, "```")
		examples = append(examples, example)
	}
	return examples
}

// onEachNode are the rights of a provisioner that works for its own node only.
func onEachNode(t *testing.T) rights {
	t.Helper()
	return rightsIn(t, contentOf(t, "components/distributed/rbac.yaml"), "longshore:csi-provisioner-node", "csi-hostpath-journal")
}

// TestRightsOnEachNode: the manifests grant what the document says, but for what a driver without attachment has no use for.
func TestRightsOnEachNode(t *testing.T) {
	got := onEachNode(t)
	table := tableIn(contentOf(t, "../provisioner/docs/rbac.md"))
	for right := range got {
		if !table[right] {
			t.Errorf("the table in the document lacks %q", right)
		}
	}
	for where, want := range map[string]rights{
		"docs, example":        rightsIn(t, examplesIn(contentOf(t, "../provisioner/docs/rbac.md"))[1]),
		"rendered/distributed": rightsIn(t, string(render(t, "distributed")), "longshore:csi-provisioner-node", "csi-hostpath-journal"),
	} {
		delete(want, "list volumeattachments storage.k8s.io")
		delete(want, "watch volumeattachments storage.k8s.io")
		delete(want, "get csidrivers storage.k8s.io")
		delete(want, "get secrets ") // which no node may read
		if diff := cmp.Diff(want.list(), got.list()); diff != "" || len(got) < 10 {
			t.Errorf("%s (-%s +components/distributed):\n%s", where, where, diff)
		}
	}
}

// TestRightsOfCrossNamespaceSources: both forms of the component grant what the document says, to the account of the provisioner's pods.
func TestRightsOfCrossNamespaceSources(t *testing.T) {
	const role, binding = "longshore:csi-provisioner-reference-grants", "longshore:csi-hostpath:provisioner-reference-grants"
	want := rightsIn(t, examplesIn(contentOf(t, "../provisioner/docs/rbac.md"))[3])
	for overlay, account := range map[string]string{
		"../testdata/cross-namespace-sources": "csi-hostpath-controller", "../testdata/cross-namespace-sources-of-node": "csi-hostpath-node",
	} {
		text := string(render(t, overlay))
		if diff := cmp.Diff(want.list(), rightsIn(t, text, role).list()); diff != "" || len(want) == 0 {
			t.Errorf("%s (-docs +rendered):\n%s", overlay, diff)
		}
		found := false
		for _, object := range unstructuredObjects(t, []byte(text)) {
			if object.GetKind() == "ClusterRoleBinding" && object.GetName() == binding {
				found = true
				var bound rbacv1.ClusterRoleBinding
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &bound); err != nil {
					t.Fatal(err)
				}
				if bound.RoleRef.Name != role || len(bound.Subjects) != 1 || bound.Subjects[0].Name != account {
					t.Errorf("%s binds %q to %+v, want %q to %q", overlay, bound.RoleRef.Name, bound.Subjects, role, account)
				}
			}
		}
		if !found || strings.Count(text, "--feature-gates=CrossNamespaceVolumeDataSource=true") != 1 {
			t.Errorf("%s: the binding is there: %v, the provisioner's arguments must have the feature gate once", overlay, found)
		}
	}
}

// secretsRole is the Role of components/secrets.
const secretsRole = "csi-hostpath-secrets"

// TestRightsAgree: the manifests, the documents and the development cluster grant the same. That a component does not ask for
// more, and uses all of it, is tested end to end, on the development cluster.
func TestRightsAgree(t *testing.T) {
	const election = "leader-election"
	deployment := string(render(t, "../testdata/secrets"))
	devcluster := contentOf(t, "../devcluster/internal/bootstrap/objects/rbac.yaml")
	for _, component := range []string{"provisioner", "attacher", "resizer", "snapshotter"} {
		t.Run(component, func(t *testing.T) {
			role := "longshore:csi-" + component
			want := rightsIn(t, contentOf(t, "base/"+component+"/rbac.yaml"), role)
			maps.Copy(want, rightsIn(t, contentOf(t, "components/leader-election/rbac.yaml"), election))
			maps.Copy(want, rightsIn(t, contentOf(t, "components/secrets/rbac.yaml"), secretsRole))
			page := contentOf(t, "../"+component+"/docs/rbac.md")
			example := rightsIn(t, examplesIn(page)[0])
			roles := []string{role, election, secretsRole}
			if component == "provisioner" {
				maps.Copy(want, rightsIn(t, deployment, capacityRole))
				maps.Copy(example, rightsIn(t, examplesIn(page)[2]))
				roles = append(roles, capacityRole, "storage-capacity")
			}
			table := tableIn(page)
			for right := range table { // it tells of every mode
				if !want[right] && onEachNode(t)[right] {
					delete(table, right)
				}
			}
			places := map[string]rights{
				"docs, table":      table,
				"docs, example":    example,
				"rendered/secrets": rightsIn(t, deployment, roles...),
				"devcluster":       rightsIn(t, devcluster, roles...),
			}
			for where, got := range places {
				if diff := cmp.Diff(want.list(), got.list()); diff != "" || len(got) < 10 {
					t.Errorf("%s (-deploy +%s):\n%s", where, where, diff)
				}
			}
			for right := range want {
				if strings.Contains(right, "*") {
					t.Errorf("%q grants what nobody has looked at", right)
				}
			}
		})
	}
}
