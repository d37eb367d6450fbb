package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"
)

// TestClusterDriverRegistrar: the component replaces the CSIDriver object by a container whose flags give the object the same fields, with the rights of the document.
func TestClusterDriverRegistrar(t *testing.T) {
	const overlay, name = "../testdata/cluster-driver-registrar", "cluster-driver-registrar"
	list := objects(t, overlay)
	if found := find[*storagev1.CSIDriver](list); len(found) > 0 {
		t.Errorf("the manifest has the object %s, too", found[0].Name)
	}
	spec := one[*storagev1.CSIDriver](t, objects(t, "deployment")).Spec
	modes := make([]string, len(spec.VolumeLifecycleModes))
	for i, mode := range spec.VolumeLifecycleModes {
		modes[i] = string(mode)
	}
	controller := workloads(t, list)[controllerLabel]
	container := controller.container(t, name)
	for _, want := range []string{"--fs-group-policy=" + string(*spec.FSGroupPolicy), "--volume-lifecycle-modes=" + strings.Join(modes, ","), "--leader-election"} {
		if !slices.Contains(container.Args, want) {
			t.Errorf("%q lacks %s", container.Args, want)
		}
	}
	for flag, want := range map[string]bool{"--pod-info-mount": *spec.PodInfoOnMount, "--storage-capacity": *spec.StorageCapacity} {
		if slices.Contains(container.Args, flag) != want {
			t.Errorf("%q: %s, want %t", container.Args, flag, want)
		}
	}
	if attaches := slices.Contains(controller.container(t, driver).Args, "--enable-attach"); attaches != *spec.AttachRequired {
		t.Errorf("the driver attaches: %t, which the object follows; that of the manifest has %t", attaches, *spec.AttachRequired)
	}
	var documented rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict([]byte(examplesIn(contentOf(t, "../clusterregistrar/docs/rbac.md"))[0]), &documented); err != nil {
		t.Fatal(err)
	}
	var granted []rbacv1.PolicyRule
	for _, role := range find[*rbacv1.ClusterRole](list) {
		if strings.HasSuffix(role.Name, name) {
			granted = append(granted, role.Rules...)
		}
	}
	for _, role := range find[*rbacv1.Role](list) {
		if strings.HasSuffix(role.Name, name) {
			granted = append(granted, role.Rules...)
		}
	}
	sorted := func(rules []rbacv1.PolicyRule) []string {
		var texts []string
		for _, rule := range rules {
			texts = append(texts, fmt.Sprint(rule.APIGroups, rule.Resources, rule.ResourceNames, rule.Verbs))
		}
		slices.Sort(texts)
		return texts
	}
	if diff := cmp.Diff(sorted(documented.Rules), sorted(granted)); diff != "" || len(granted) == 0 {
		t.Errorf("rights (-docs +component):\n%s", diff)
	}
}
