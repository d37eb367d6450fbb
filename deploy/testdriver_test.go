package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	volumegroupsnapshotv1beta2 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1beta2"
	volumesnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"
)

// driverKeys is what test-driver.yaml may say. It is copied from driverDefinition in k8s.io/kubernetes/test/e2e/storage/external
// v1.36.3, without keys that a driver like ours never needs. Module e2e/k8s checks the file against the types themselves, which
// takes minutes to compile.
func driverKeys() []string {
	return slices.Concat([]string{
		"StorageClass.FromName", "StorageClass.FromFile", "StorageClass.FromExistingClassName",
		"SnapshotClass.FromName", "SnapshotClass.FromFile", "SnapshotClass.FromExistingClassName",
		"GroupSnapshotClass.FromName", "GroupSnapshotClass.FromFile", "GroupSnapshotClass.FromExistingClassName",
		"VolumeAttributesClass.FromFile", "VolumeAttributesClass.FromExistingClassName",
		"InlineVolumes.Attributes.*", "InlineVolumes.Shared", "InlineVolumes.ReadOnly", "ClientNodeName", "NodeSelectors.*", "Timeouts.*",
		"DriverInfo.Name", "DriverInfo.MaxFileSize", "DriverInfo.SupportedSizeRange.Min", "DriverInfo.SupportedSizeRange.Max",
		"DriverInfo.SupportedFsType.*", "DriverInfo.SupportedMountOption.*", "DriverInfo.RequiredMountOption.*",
		"DriverInfo.RequiredAccessModes", "DriverInfo.TopologyKeys", "DriverInfo.NumAllowedTopologies",
		"DriverInfo.StressTestOptions.NumPods", "DriverInfo.StressTestOptions.NumRestarts",
		"DriverInfo.VolumeSnapshotStressTestOptions.NumPods", "DriverInfo.VolumeSnapshotStressTestOptions.NumSnapshots",
		"DriverInfo.VolumeGroupSnapshotStressTestOptions.NumPods", "DriverInfo.VolumeGroupSnapshotStressTestOptions.NumSnapshots",
		"DriverInfo.VolumeModifyStressTestOptions.NumPods",
	}, prefixed("DriverInfo.Capabilities.", driverCapabilities()))
}

func driverCapabilities() []string {
	return []string{
		"persistence", "block", "fsGroup", "volumeMountGroup", "exec", "snapshotDataSource", "snapshotMetadata", "groupSnapshot",
		"pvcDataSource", "multipods", "RWX", "controllerExpansion", "nodeExpansion", "offlineExpansion", "onlineExpansion", "volumeLimits",
		"singleNodeVolume", "topology", "capacity", "FSResizeFromSourceNotSupported", "readWriteOncePod", "multiplePVsSameID",
		"capReadOnlyMany", "seLinuxMount",
	}
}

func prefixed(prefix string, list []string) []string {
	for i := range list {
		list[i] = prefix + list[i]
	}
	return list
}

// testDriver is what the tests here compare with the manifests.
type testDriver struct {
	StorageClass          struct{ FromExistingClassName string }
	SnapshotClass         struct{ FromExistingClassName string }
	GroupSnapshotClass    struct{ FromExistingClassName string }
	VolumeAttributesClass struct{ FromFile string }
	InlineVolumes         []struct{ Shared bool }
	DriverInfo            struct {
		Name         string
		Capabilities map[string]bool
	}
}

func readDriver(t *testing.T) (asJSON []byte, d testDriver) {
	t.Helper()
	data, err := os.ReadFile("test-driver.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if asJSON, err = yaml.YAMLToJSONStrict(data); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(asJSON, &d); err != nil {
		t.Fatal(err)
	}
	return asJSON, d
}

// unknownKeys lists the keys in value that are not known, with a path to each.
func unknownKeys(value any, path string, known []string) []string {
	var unknown []string
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			unknown = append(unknown, unknownKeys(inner, strings.TrimPrefix(path+"."+key, "."), known)...)
		}
		if len(v) > 0 {
			return unknown
		}
	case []any:
		for _, inner := range v {
			if object, ok := inner.(map[string]any); ok {
				unknown = append(unknown, unknownKeys(object, path, known)...)
			}
		}
		if len(v) > 0 {
			if _, ok := v[0].(map[string]any); ok {
				return unknown
			}
		}
	}
	if !slices.ContainsFunc(known, func(k string) bool { return matches(k, path) }) {
		unknown = append(unknown, path)
	}
	return unknown
}

// matches compares a path with a known one, which may end in ".*" for the keys of a map. They mind the case, as the suite does.
func matches(known, path string) bool {
	prefix, open := strings.CutSuffix(known, "*")
	return known == path || open && strings.HasPrefix(path, prefix)
}

// TestDriverKeys: the storage suite ignores keys that it does not know, and tests less than it should.
func TestDriverKeys(t *testing.T) {
	asJSON, _ := readDriver(t)
	var value any
	if err := json.Unmarshal(asJSON, &value); err != nil {
		t.Fatal(err)
	}
	if unknown := unknownKeys(value, "", driverKeys()); len(unknown) > 0 {
		t.Errorf("test-driver.yaml: the storage suite knows no %q", unknown)
	}
}

func TestUnknownKeys(t *testing.T) {
	tests := map[string]struct {
		reason string
		text   string
		want   string
	}{
		"None":       {reason: "known keys, a map and a list", text: `{"ClientNodeName":"n","NodeSelectors":{"a.b/c":"d"},"InlineVolumes":[{"Attributes":{"size":"1"}}]}`, want: "[]"},
		"Top":        {reason: "an unknown key", text: `{"ClientNode":"n"}`, want: "[ClientNode]"},
		"Case":       {reason: "a key in another case", text: `{"clientNodeName":"n"}`, want: "[clientNodeName]"},
		"Inner":      {reason: "an unknown key further down", text: `{"DriverInfo":{"Capabilities":{"blocks":true}}}`, want: "[DriverInfo.Capabilities.blocks]"},
		"InList":     {reason: "an unknown key in a list", text: `{"InlineVolumes":[{"Shared":true},{"Share":true}]}`, want: "[InlineVolumes.Share]"},
		"Empty":      {reason: "an empty object is no excuse", text: `{"DriverInfo":{"Topology":{}}}`, want: "[DriverInfo.Topology]"},
		"EmptyValue": {reason: "sets have empty objects as values", text: `{"DriverInfo":{"SupportedFsType":{"":{}}}}`, want: "[]"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var value any
			if err := json.Unmarshal([]byte(tc.text), &value); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(unknownKeys(value, "", driverKeys())); got != tc.want {
				t.Errorf("%s: got %s, want %s", tc.reason, got, tc.want)
			}
		})
	}
}

// TestDriverSaysWhatIsDeployed compares what the suite is told with the manifests that it runs on.
func TestDriverSaysWhatIsDeployed(t *testing.T) {
	_, d := readDriver(t)
	list := objects(t, "kind")
	driver := one[*storagev1.CSIDriver](t, list)
	if d.DriverInfo.Name != driver.Name {
		t.Errorf("it names the driver %q, the manifests %q", d.DriverInfo.Name, driver.Name)
	}
	if !slices.ContainsFunc(find[*storagev1.StorageClass](list), func(c *storagev1.StorageClass) bool { return c.Name == d.StorageClass.FromExistingClassName }) {
		t.Errorf("there is no StorageClass %q", d.StorageClass.FromExistingClassName)
	}
	if name := one[*volumesnapshotv1.VolumeSnapshotClass](t, list).Name; d.SnapshotClass.FromExistingClassName != name {
		t.Errorf("it names the class of snapshots %q, the manifests %q", d.SnapshotClass.FromExistingClassName, name)
	}
	if name := one[*volumegroupsnapshotv1beta2.VolumeGroupSnapshotClass](t, list).Name; d.GroupSnapshotClass.FromExistingClassName != name {
		t.Errorf("it names the class of group snapshots %q, the manifests %q", d.GroupSnapshotClass.FromExistingClassName, name)
	}
	sides := workloads(t, list)
	provisioner := sides[controllerLabel].container(t, "provisioner").Args
	onNode := sides[nodeLabel].container(t, "hostpath")
	node := onNode.Args
	want := map[string]bool{
		"block":        slices.ContainsFunc(onNode.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/dev" }),
		"fsGroup":      *driver.Spec.FSGroupPolicy == storagev1.FileFSGroupPolicy,
		"capacity":     slices.Contains(provisioner, "--enable-capacity") && *driver.Spec.StorageCapacity,
		"seLinuxMount": driver.Spec.SELinuxMount != nil && *driver.Spec.SELinuxMount,
		"topology":     !slices.Contains(node, "--enable-topology=false"),
		"volumeLimits": limitOf(onNode) != "",
	}
	for name, has := range want {
		if d.DriverInfo.Capabilities[name] != has {
			t.Errorf("capability %s is said to be %t, the manifests make it %t", name, d.DriverInfo.Capabilities[name], has)
		}
	}
	if inline := slices.Contains(driver.Spec.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral); inline != (len(d.InlineVolumes) > 0) {
		t.Errorf("it has %d inline volumes, the manifests allow them: %t", len(d.InlineVolumes), inline)
	}
}

// TestSuiteModifiesVolumes: the class of the suite is the driver's, which accepts its parameters, on both sides.
func TestSuiteModifiesVolumes(t *testing.T) {
	_, d := readDriver(t)
	data, err := os.ReadFile(d.VolumeAttributesClass.FromFile)
	if err != nil {
		t.Fatal(err)
	}
	var class storagev1.VolumeAttributesClass
	if err := yaml.UnmarshalStrict(data, &class); err != nil {
		t.Fatal(err)
	}
	if class.Kind != "VolumeAttributesClass" || class.DriverName != d.DriverInfo.Name || len(class.Parameters) == 0 {
		t.Errorf("%s %s is driver %q's, with %d parameters", class.Kind, class.Name, class.DriverName, len(class.Parameters))
	}
	sides := workloads(t, objects(t, "kind"))
	for _, side := range []string{controllerLabel, nodeLabel} {
		args := sides[side].container(t, "hostpath").Args
		for name := range class.Parameters {
			if !slices.Contains(args, "--accepted-mutable-parameter-names="+name) {
				t.Errorf("%s does not accept %q: %q", side, name, args)
			}
		}
	}
}

// TestDriverSaysSomethingAboutEachCapability: what a driver lacks is said too, so that nothing is forgotten.
func TestDriverSaysSomethingAboutEachCapability(t *testing.T) {
	_, d := readDriver(t)
	implied := []string{"offlineExpansion", "onlineExpansion", "FSResizeFromSourceNotSupported"} // by the other capabilities
	for _, name := range driverCapabilities() {
		if _, said := d.DriverInfo.Capabilities[name]; !said && !slices.Contains(implied, name) {
			t.Errorf("test-driver.yaml says nothing about %s", name)
		}
	}
	for i, inline := range d.InlineVolumes {
		if inline.Shared {
			t.Errorf("inline volume %d is said to be shared, which switches off the check that it is not", i)
		}
	}
}
