package deploy

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// everyManifest renders all that a user can apply or install, by name: the overlays with and without components, and both charts with every file of values.
func everyManifest(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, dir := range directories(t) {
		all[dir] = render(t, dir)
	}
	components, err := filepath.Glob("testdata/*/kustomization.yaml")
	if err != nil || len(components) == 0 {
		t.Fatalf("found %q: %v", components, err)
	}
	for _, file := range components {
		all[filepath.Dir(file)] = render(t, "../"+filepath.Dir(file))
	}
	for name, values := range chartCases(t) {
		all["chart hostpath, "+name] = manifest(mustTemplate(t, values))
	}
	files, err := filepath.Glob(library + "/testdata/*.values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %q: %v", files, err)
	}
	for _, file := range files {
		if all["chart csi-driver-lib, "+filepath.Base(file)], err = templateLibrary(t, readYAML(t, file)); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestNoClusterWideSecrets: secrets are read by a Role in their namespace, or not at all. No binding refers to a ClusterRole that is not in the manifest, such as
// cluster-admin.
func TestNoClusterWideSecrets(t *testing.T) {
	for name, text := range everyManifest(t) {
		list := decodeStrictly(t, text)
		known := map[string]bool{}
		for _, role := range find[*rbacv1.ClusterRole](list) {
			known[role.Name] = true
			for _, rule := range role.Rules {
				if slices.Contains(rule.Resources, "secrets") || slices.Contains(rule.Resources, "*") {
					t.Errorf("%s: ClusterRole %s grants %q of %q", name, role.Name, rule.Verbs, rule.Resources)
				}
			}
		}
		for _, binding := range find[*rbacv1.ClusterRoleBinding](list) {
			if !known[binding.RoleRef.Name] {
				t.Errorf("%s: ClusterRoleBinding %s refers to %s, which is not in the manifest", name, binding.Name, binding.RoleRef.Name)
			}
		}
		for _, binding := range find[*rbacv1.RoleBinding](list) {
			if binding.RoleRef.Kind != "Role" {
				t.Errorf("%s: RoleBinding %s refers to a %s", name, binding.Name, binding.RoleRef.Kind)
			}
		}
	}
}

// TestSecretsOfNamedNamespaces: where secrets are read, the sidecars' account may get those of the named namespaces, and each sidecar that reads secrets refuses those
// of other namespaces by itself.
func TestSecretsOfNamedNamespaces(t *testing.T) {
	library := func(onNodes bool) map[string]any {
		capabilities := []any{"CREATE_DELETE_VOLUME", "EXPAND_VOLUME", "CREATE_DELETE_SNAPSHOT"}
		return map[string]any{
			"driver": map[string]any{"name": "foo.example.com", "capabilities": capabilities}, "provisionOnNodes": onNodes,
			"secrets": map[string]any{"namespaces": []any{"foo", "arrays"}},
		}
	}
	must := func(text []byte, err error) []byte {
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	metadata := map[string]any{"secrets": map[string]any{"namespaces": []any{"a", "b"}}, "snapshotMetadata": map[string]any{"enabled": true}}
	four := []string{"attacher", "provisioner", "resizer", "snapshotter"}
	tests := map[string]struct {
		manifest            []byte
		account             string
		namespaces, readers []string
	}{
		"Off":          {manifest: manifest(mustTemplate(t, nil))},
		"Distributed":  {manifest: render(t, "distributed")},
		"Component":    {render(t, "../testdata/secrets"), "csi-hostpath-controller", []string{"csi-hostpath"}, four},
		"Hostpath":     {manifest(mustTemplate(t, metadata)), "csi-hostpath-controller", []string{"a", "b"}, append([]string{"snapshot-metadata"}, four...)},
		"Library":      {must(templateLibrary(t, library(false))), "foo-controller", []string{"arrays", "foo"}, []string{"provisioner", "resizer", "snapshotter"}},
		"LibraryNodes": {must(templateLibrary(t, library(true))), "foo-node", []string{"arrays", "foo"}, []string{"provisioner", "resizer", "snapshotter"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			list := decodeStrictly(t, tc.manifest)
			if diff := cmp.Diff(tc.namespaces, secretNamespaces(t, list, tc.account)); diff != "" {
				t.Errorf("namespaces with a Role and its binding (-want +got):\n%s", diff)
			}
			readers := map[string]bool{}
			for _, w := range allWorkloads(list) {
				for _, c := range w.pod.Spec.Containers {
					for _, arg := range c.Args {
						value, found := strings.CutPrefix(arg, "--secret-namespaces=")
						if !found {
							continue
						}
						readers[c.Name] = true
						if got := slices.Sorted(slices.Values(strings.Split(value, ","))); !slices.Equal(got, tc.namespaces) {
							t.Errorf("%s reads secrets of %q, want %q", c.Name, got, tc.namespaces)
						}
					}
				}
			}
			if diff := cmp.Diff(slices.Sorted(slices.Values(tc.readers)), slices.Sorted(maps.Keys(readers))); diff != "" {
				t.Errorf("sidecars with --secret-namespaces (-want +got):\n%s", diff)
			}
		})
	}
}

// secretNamespaces are the namespaces in which a Role lets the account get secrets, and do nothing else with them.
func secretNamespaces(t *testing.T, list []runtime.Object, account string) (namespaces []string) {
	t.Helper()
	for _, role := range find[*rbacv1.Role](list) {
		if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "secrets") }) {
			continue
		}
		if len(role.Rules) != 1 || !slices.Equal(role.Rules[0].Verbs, []string{"get"}) {
			t.Errorf("Role %s/%s: %+v", role.Namespace, role.Name, role.Rules)
		}
		for _, b := range find[*rbacv1.RoleBinding](list) {
			if b.Namespace == role.Namespace && b.RoleRef.Name == role.Name && len(b.Subjects) == 1 && b.Subjects[0].Name == account {
				namespaces = append(namespaces, role.Namespace)
			}
		}
	}
	slices.Sort(namespaces)
	return namespaces
}
