package deploy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	volumegroupsnapshotv1beta2 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1beta2"
	volumesnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// difference is one that chart and overlay have on purpose. Its undo makes the chart's object the overlay's, and says if it had to.
type difference struct {
	reason string
	undo   func(object unstructured.Unstructured) bool
}

func differences() map[string]difference {
	return map[string]difference{
		"Labels": {
			reason: "helm's own labels, by which its tools find the objects of a chart",
			undo: func(o unstructured.Unstructured) bool {
				managed := remove(o, "metadata", "labels", "app.kubernetes.io/managed-by")
				return remove(o, "metadata", "labels", "helm.sh/chart") && managed
			},
		},
		"PartOf": {
			reason: "the label is on all objects of a chart, but only on those of base/hostpathdriver",
			undo: func(o unstructured.Unstructured) bool {
				others := []string{
					rbacv1.GroupName, policyv1.GroupName, admissionregistrationv1.GroupName, networkingv1.GroupName, monitoringv1.SchemeGroupVersion.Group,
					volumesnapshotv1.GroupName, volumegroupsnapshotv1beta2.GroupName,
				}
				if o.GetKind() != "ConfigMap" && !slices.Contains(others, o.GroupVersionKind().Group) {
					return false
				}
				return remove(o, "metadata", "labels", "app.kubernetes.io/part-of")
			},
		},
		"NamespaceIsKept": {
			reason: "helm would remove the namespace with the release, and whatever else is in it",
			undo: func(o unstructured.Unstructured) bool {
				return o.GetKind() == "Namespace" && remove(o, "metadata", "annotations")
			},
		},
		"SnapshotClassesAreOfTheCluster": {
			reason: "kustomize takes kinds that it does not know for namespaced ones; the API server ignores the namespace",
			undo: func(o unstructured.Unstructured) bool {
				group := o.GroupVersionKind().Group
				if group != volumesnapshotv1.GroupName && group != volumegroupsnapshotv1beta2.GroupName || o.GetNamespace() != "" {
					return false
				}
				o.SetNamespace("csi-hostpath")
				return true
			},
		},
		"RolesByRelease": {
			reason: "an object belongs to one release, so that several drivers cannot share a role as they do with kustomize",
			undo: func(o unstructured.Unstructured) bool {
				roles := strings.NewReplacer("longshore:csi-hostpath:", "longshore:csi-", "csi-hostpath-leader-election", "leader-election")
				fields := map[string][]string{
					"Role": {"metadata", "name"}, "ClusterRole": {"metadata", "name"}, "RoleBinding": {"roleRef", "name"}, "ClusterRoleBinding": {"roleRef", "name"},
				}[o.GetKind()]
				if fields == nil {
					return false
				}
				name, _, _ := unstructured.NestedString(o.Object, fields...)
				err := unstructured.SetNestedField(o.Object, roles.Replace(name), fields...)
				return err == nil && roles.Replace(name) != name
			},
		},
		"DriverName": {
			reason: "a value; kustomize leaves it to the driver, whose default it is",
			undo: func(o unstructured.Unstructured) bool {
				changed := false
				containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
				for _, c := range containers {
					args, _, _ := unstructured.NestedStringSlice(c.(map[string]any), "args")
					if i := slices.Index(args, "--drivername="+driverName); i >= 0 {
						_ = unstructured.SetNestedStringSlice(c.(map[string]any), slices.Delete(args, i, i+1), "args")
						changed = true
					}
				}
				return changed && unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers") == nil
			},
		},
	}
}

func remove(o unstructured.Unstructured, fields ...string) bool {
	_, found, err := unstructured.NestedFieldNoCopy(o.Object, fields...)
	unstructured.RemoveNestedField(o.Object, fields...)
	return found && err == nil
}

// TestChartIsOverlay: object by object, helm makes of each form's values what kustomize makes of the directory, but for the differences.
func TestChartIsOverlay(t *testing.T) {
	forms := map[string]string{
		"statefulset":         "statefulset",
		"deployment":          "deployment",
		"deployment-replicas": "deployment-replicas",
		"kind":                "kind",
		"monitored":           monitored,
		"inline-volumes":      "../testdata/inline-volumes",

		"cross-namespace-sources": "../testdata/cross-namespace-sources",
		"health-monitor":          healthMonitor,
		"network-policy":          "../testdata/network-policy",
		"secrets":                 "../testdata/secrets",
	}
	for form, overlay := range forms {
		t.Run(form, func(t *testing.T) {
			got := byName(t, withoutDifferences(t, manifest(mustTemplate(t, readYAML(t, chart+"/testdata/"+form+".values.yaml")))))
			want := byName(t, unstructuredObjects(t, render(t, overlay)))
			if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
				t.Errorf("objects: -overlay +chart\n%s", diff)
			}
			for name, object := range got {
				if diff := cmp.Diff(want[name], object); diff != "" {
					t.Errorf("%s: -overlay +chart\n%s", name, diff)
				}
			}
		})
	}
}

// withoutDifferences are the objects of a chart with each difference undone. One that is not there is an error.
func withoutDifferences(t *testing.T, text []byte) []unstructured.Unstructured {
	t.Helper()
	used := map[string]bool{}
	list := unstructuredObjects(t, text)
	for _, object := range list {
		for name, d := range differences() {
			used[name] = d.undo(object) || used[name]
		}
		if len(object.GetLabels()) == 0 {
			remove(object, "metadata", "labels")
		}
	}
	for name, d := range differences() {
		if !used[name] {
			t.Errorf("the difference %s (%s) is none any more", name, d.reason)
		}
	}
	return list
}

func unstructuredObjects(t *testing.T, text []byte) []unstructured.Unstructured {
	t.Helper()
	var list []unstructured.Unstructured
	for _, doc := range documents(t, text) {
		object := map[string]any{}
		if err := yaml.Unmarshal(doc, &object); err != nil {
			t.Fatal(err)
		}
		list = append(list, unstructured.Unstructured{Object: object})
	}
	return list
}

func byName(t *testing.T, list []unstructured.Unstructured) map[string]map[string]any {
	t.Helper()
	objects := map[string]map[string]any{}
	for _, o := range list {
		key := fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
		if _, twice := objects[key]; twice {
			t.Errorf("%s appears twice", key)
		}
		objects[key] = o.Object
	}
	return objects
}
