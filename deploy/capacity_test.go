package deploy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// capacityRole is the role with the rights to CSIStorageCapacity objects.
const capacityRole = "csi-hostpath-storage-capacity"

// TestStorageCapacity: the scheduler looks at objects if and only if the provisioner has what it needs to publish them, in every form of
// both kustomize and helm.
func TestStorageCapacity(t *testing.T) {
	forms := map[string]func(t *testing.T) []runtime.Object{}
	for _, overlay := range overlays(t) {
		forms[overlay] = func(t *testing.T) []runtime.Object { t.Helper(); return objects(t, overlay) }
	}
	for name, values := range chartCases(t) {
		forms["chart/"+name] = func(t *testing.T) []runtime.Object {
			t.Helper()
			return decodeStrictly(t, manifest(mustTemplate(t, values)))
		}
	}
	off := map[string]bool{"chart/everything": true, "without": true}
	forms["without"] = func(t *testing.T) []runtime.Object { t.Helper(); return objects(t, "../testdata/no-capacity") }
	for name, list := range forms {
		t.Run(name, func(t *testing.T) { checkCapacity(t, list(t), !off[name]) })
	}
}

// checkCapacity compares the objects of a form with what storage capacity needs: everything, or nothing at all.
func checkCapacity(t *testing.T, list []runtime.Object, on bool) {
	t.Helper()
	if got := *one[*storagev1.CSIDriver](t, list).Spec.StorageCapacity; got != on {
		t.Errorf("storageCapacity of the CSIDriver is %t, want %t", got, on)
	}
	w := workloads(t, list)[controllerLabel]
	provisioner := w.container(t, "provisioner")
	var args []string
	for _, arg := range provisioner.Args {
		if strings.Contains(arg, "capacity") {
			args = append(args, arg)
		}
	}
	fields := fieldsOf(provisioner)
	delete(fields, "NODE_NAME")
	// The objects belong to what a user deletes: the pod's owner, or for a Deployment the owner of that.
	wantArgs, wantFields, wantRights := []string{"--enable-capacity"}, map[string]string{"NAMESPACE": "metadata.namespace", "POD_NAME": "metadata.name"}, rights{}
	wantRights.add([]string{"storage.k8s.io"}, []string{"csistoragecapacities"}, []string{"get", "list", "watch", "create", "update", "delete"})
	wantRights.add([]string{""}, []string{"pods"}, []string{"get"})
	if w.kind == "Deployment" {
		wantArgs = append(wantArgs, "--capacity-ownerref-level=2")
		wantRights.add([]string{"apps"}, []string{"replicasets"}, []string{"get"})
	}
	if !on {
		wantArgs, wantFields, wantRights = nil, map[string]string{}, rights{}
	}
	if diff := cmp.Diff(wantArgs, args); diff != "" {
		t.Errorf("arguments of the provisioner in a %s (-want +got):\n%s", w.kind, diff)
	}
	if diff := cmp.Diff(wantFields, fields); diff != "" {
		t.Errorf("environment of the provisioner (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantRights.list(), capacityRights(list, w.pod.Spec.ServiceAccountName).list()); diff != "" {
		t.Errorf("rights of %s that have to do with capacity (-want +got):\n%s", w.pod.Spec.ServiceAccountName, diff)
	}
}

// fieldsOf are the fields that the environment variables of a container are taken from.
func fieldsOf(c corev1.Container) map[string]string {
	fields := map[string]string{}
	for _, v := range c.Env {
		fields[v.Name] = v.ValueFrom.FieldRef.FieldPath
	}
	return fields
}

// capacityRights are the rights of a service account to what only storage capacity needs, wherever they come from. Roles grant them in the
// namespace of the pods alone.
func capacityRights(list []runtime.Object, account string) rights {
	found := rights{}
	needs := func(rule rbacv1.PolicyRule) bool {
		return slices.ContainsFunc(rule.Resources, func(r string) bool {
			return slices.Contains([]string{"csistoragecapacities", "pods", "replicasets"}, r)
		})
	}
	for _, binding := range find[*rbacv1.RoleBinding](list) {
		if !slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return s.Name == account && s.Namespace == binding.Namespace }) {
			continue
		}
		for _, role := range find[*rbacv1.Role](list) {
			if role.Name != binding.RoleRef.Name || role.Namespace != binding.Namespace {
				continue
			}
			for _, rule := range role.Rules {
				if needs(rule) {
					found.add(rule.APIGroups, rule.Resources, rule.Verbs)
				}
			}
		}
	}
	for _, role := range find[*rbacv1.ClusterRole](list) {
		if strings.HasSuffix(role.Name, "resizer") || strings.HasSuffix(role.Name, "health-monitor") {
			continue // it lists the pods that use a volume
		}
		for _, rule := range role.Rules {
			if needs(rule) {
				found.add(rule.APIGroups, rule.Resources, []string{"everywhere"})
			}
		}
	}
	return found
}

// TestVolumeLimit: the nodes tell the scheduler the limit that the controller enforces.
func TestVolumeLimit(t *testing.T) {
	for _, overlay := range overlays(t) {
		t.Run(overlay, func(t *testing.T) {
			limits := map[string]bool{}
			for _, w := range workloads(t, objects(t, overlay)) {
				for _, c := range w.pod.Spec.Containers {
					if strings.Contains(c.Image, "/hostpathplugin:") {
						limits[limitOf(c)] = true
					}
				}
			}
			if len(limits) != 1 {
				t.Errorf("the drivers of the two sides have the limits %q", slices.Collect(maps.Keys(limits)))
			}
		})
	}
}

// limitOf is the limit of volumes on a node that a driver is started with; "" means none.
func limitOf(c corev1.Container) string {
	for _, arg := range c.Args {
		if limit, ok := strings.CutPrefix(arg, "--maxvolumespernode="); ok {
			return limit
		}
	}
	return ""
}
