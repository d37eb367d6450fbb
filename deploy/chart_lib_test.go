package deploy

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
)

const library = "charts/csi-driver-lib"

// libraryUser is a chart that has nothing but the library.
func libraryUser(t *testing.T) *chartv2.Chart {
	t.Helper()
	lib, err := loader.Load(library)
	if err != nil {
		t.Fatal(err)
	}
	user := &chartv2.Chart{
		Metadata:  &chartv2.Metadata{APIVersion: chartv2.APIVersionV2, Name: "foo", Version: "0.1.0"},
		Templates: []*common.File{{Name: "templates/driver.yaml", Data: []byte(`{{ include "csi-driver-lib.all" . }}`)}},
	}
	user.AddDependency(lib)
	return user
}

func templateLibrary(t *testing.T, values map[string]any) ([]byte, error) {
	t.Helper()
	files, err := templateChart(libraryUser(t), "foo", "foo", values)
	if err != nil {
		return nil, err
	}
	if len(files) != 1 {
		t.Errorf("rendered are %q", slices.Sorted(maps.Keys(files)))
	}
	return []byte(strings.TrimPrefix(files["driver.yaml"], "---\n")), nil
}

// TestLibraryRendered shows in a change what it means for the charts of drivers that use the library.
func TestLibraryRendered(t *testing.T) {
	files, err := filepath.Glob(library + "/testdata/*.values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %q: %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			got, err := templateLibrary(t, readYAML(t, file))
			if err != nil {
				t.Fatal(err)
			}
			decodeStrictly(t, got)
			compareGolden(t, strings.TrimSuffix(file, ".values.yaml")+".golden.yaml", got)
		})
	}
}

// TestLibrarySidecars: which containers and roles the capabilities of a driver ask for.
func TestLibrarySidecars(t *testing.T) {
	none := []string(nil)
	tests := map[string]struct {
		reason             string
		capabilities       []any
		containers, roles  []string
		attaches, capacity bool
	}{
		"None":     {reason: "a driver of volumes that others make has no controller side", containers: none, roles: none},
		"Create":   {"volumes are made and need not be attached", []any{"CREATE_DELETE_VOLUME"}, []string{"driver", "provisioner", "livenessprobe"}, []string{"foo:provisioner"}, false, false},
		"Attach":   {"volumes are attached, and made by others", []any{"PUBLISH_UNPUBLISH_VOLUME"}, []string{"driver", "attacher", "livenessprobe"}, []string{"foo:attacher"}, true, false},
		"Expand":   {"volumes are made and grow", []any{"CREATE_DELETE_VOLUME", "EXPAND_VOLUME"}, []string{"driver", "provisioner", "resizer", "livenessprobe"}, []string{"foo:provisioner", "foo:resizer"}, false, false},
		"Modify":   {"the resizer modifies", []any{"MODIFY_VOLUME"}, []string{"driver", "resizer", "livenessprobe"}, []string{"foo:resizer"}, false, false},
		"Snapshot": {"snapshots are made", []any{"CREATE_DELETE_SNAPSHOT"}, []string{"driver", "snapshotter", "livenessprobe"}, []string{"foo:snapshotter"}, false, false},
		"Capacity": {"the provisioner publishes capacity", []any{"CREATE_DELETE_VOLUME", "GET_CAPACITY"}, []string{"driver", "provisioner", "livenessprobe"}, []string{"foo:provisioner"}, false, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			text, err := templateLibrary(t, map[string]any{"driver": map[string]any{"name": "foo.example.com", "capabilities": tc.capabilities}})
			if err != nil {
				t.Fatal(err)
			}
			list := decodeStrictly(t, text)
			var containers, roles []string
			for _, d := range find[*appsv1.Deployment](list) {
				for _, c := range d.Spec.Template.Spec.Containers {
					containers = append(containers, c.Name)
				}
			}
			for _, r := range find[*rbacv1.ClusterRole](list) {
				roles = append(roles, r.Name)
			}
			if diff := cmp.Diff([][]string{tc.containers, tc.roles}, [][]string{containers, roles}); diff != "" {
				t.Errorf("%s: containers and roles (-want +got)\n%s", tc.reason, diff)
			}
			object := one[*storagev1.CSIDriver](t, list)
			if *object.Spec.AttachRequired != tc.attaches || *object.Spec.StorageCapacity != tc.capacity {
				t.Errorf("%s: CSIDriver %+v", tc.reason, object.Spec)
			}
			if found := strings.Contains(string(text), "--enable-capacity") && strings.Contains(string(text), "csistoragecapacities"); found != tc.capacity {
				t.Errorf("%s: argument and right for capacity: %v", tc.reason, found)
			}
			one[*appsv1.DaemonSet](t, list)
		})
	}
}

// TestLibraryLaysValuesOver: values of the chart replace the library's defaults also where they are false, zero or empty.
func TestLibraryLaysValuesOver(t *testing.T) {
	type values = map[string]any
	text, err := templateLibrary(t, values{
		"driver":          values{"name": "foo.example.com", "capabilities": []any{"CREATE_DELETE_VOLUME", "GET_CAPACITY"}},
		"storageCapacity": false,
		"logLevel":        0,
		"node":            values{"tolerations": []any{}, "priorityClassName": "", "nodeSelector": values{"storage": "true"}},
		"controller":      values{"nodeSelector": values{"storage": "true"}},
		"csi-driver-lib":  values{"controller": values{"nodeSelector": values{"kubernetes.io/os": nil}}}, // takes the default away
		"extra":           values{"anything": true},
		"global":          values{"region": "eu"},
	})
	if err != nil {
		t.Fatal(err)
	}
	list := decodeStrictly(t, text)
	pod := one[*appsv1.DaemonSet](t, list).Spec.Template.Spec
	want := map[string]string{"kubernetes.io/os": "linux", "storage": "true"}
	if len(pod.Tolerations) > 0 || pod.PriorityClassName != "" || !maps.Equal(pod.NodeSelector, want) || !slices.Contains(pod.Containers[0].Args, "--v=0") {
		t.Errorf("pods of the nodes: %+v", pod)
	}
	if got := one[*appsv1.Deployment](t, list).Spec.Template.Spec.NodeSelector; !maps.Equal(got, map[string]string{"storage": "true"}) {
		t.Errorf("pods of the controller run on %v", got)
	}
	if *one[*storagev1.CSIDriver](t, list).Spec.StorageCapacity {
		t.Error("storageCapacity=false changes nothing")
	}
}

func TestLibraryRefuses(t *testing.T) {
	const named = "driver.name"
	tests := map[string]struct {
		reason string
		path   string
		value  any
		want   string
	}{
		"NoName":        {"nothing works without it", named, "", "driver.name is missing"},
		"UnknownKey":    {"a typing error must not go unseen", "controler", map[string]any{}, "controler is not known; known are controller"},
		"UnknownDeeper": {"nor one further down", "controller.driver.arguments", []any{}, "controller.driver.arguments is not known; known are addCapabilities, args"},
		"NoTable":       {"a value in place of a table", "node.driver", "foo", "node.driver must be a table"},
		"Capability":    {"a sidecar would be missing", "driver.capabilities", []any{"CREATE_VOLUME"}, "CREATE_VOLUME is not one that asks for a sidecar; these do: CREATE_DELETE_VOLUME, "},
		"NoLabels":      {"a node's zone would be lost", "node", map[string]any{"topology": map[string]any{"k": "l"}, "driver": map[string]any{"args": []any{"--x"}}}, "node.topology has no effect beside node.driver.args"},
		"Kind":          {"pods of a DaemonSet would all be controllers", "controller.kind", "DaemonSet", "neither Deployment nor StatefulSet"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			values := util.MergeTables(nest(tc.path, tc.value), nest(named, "foo.example.com"))
			if _, err := templateLibrary(t, values); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
	several := map[string]any{"driver": map[string]any{"name": "foo.example.com"}, "controller": map[string]any{"kind": "StatefulSet", "replicas": 2}}
	if _, err := templateLibrary(t, several); err == nil || !strings.Contains(err.Error(), "controller.replicas must be 0 or 1") {
		t.Errorf("a StatefulSet of several: %v", err)
	}
}

// TestLibraryRefusesOnNodes: what needs one controller for all nodes is not run on each of them.
func TestLibraryRefusesOnNodes(t *testing.T) {
	for _, capability := range []string{"PUBLISH_UNPUBLISH_VOLUME", "MODIFY_VOLUME", "SNAPSHOT_METADATA_SERVICE", "GET_VOLUME_HEALTH", "VOLUME_CONDITION"} {
		driver := map[string]any{"name": "foo.example.com", "capabilities": []any{"CREATE_DELETE_VOLUME", capability}}
		_, err := templateLibrary(t, map[string]any{"driver": driver, "provisionOnNodes": true})
		if err == nil || !strings.Contains(err.Error(), "provisionOnNodes: "+capability+" needs one controller") {
			t.Errorf("%s: %v", capability, err)
		}
	}
}

// TestChartVersions: both charts run the images that this tree makes, in the versions that it will release.
func TestChartVersions(t *testing.T) {
	next := nextVersions(t)
	for _, dir := range []string{library, chart} {
		found := 0
		for name, image := range readYAML(t, dir+"/values.yaml")["images"].(map[string]any) {
			if image, ok := image.(map[string]any); ok && name != "driver" {
				found++
				if next[name] == "" || image["tag"] != next[name] {
					t.Errorf("%s: image %s has tag %v, versions.yaml has %q", dir, name, image["tag"], next[name])
				}
			}
		}
		if found < 7 {
			t.Errorf("%s has %d images", dir, found)
		}
	}
}

// TestPackaged: what `helm package` makes of the chart needs nothing of this repository.
func TestPackaged(t *testing.T) {
	loaded, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := chartutil.Save(loaded, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if loaded, err = loader.Load(archive); err != nil {
		t.Fatal(err)
	}
	got, err := templateChart(loaded, "csi-hostpath", "csi-hostpath", nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(mustTemplate(t, nil), got); diff != "" {
		t.Errorf("-directory +archive\n%s", diff)
	}
	for _, file := range loaded.Raw {
		if strings.Contains(file.Name, "testdata/") {
			t.Errorf("%s is packed", file.Name)
		}
	}
}
