package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
)

// value is one that a user can set: its path, its default as YAML in one line, and the comment above it.
type value struct{ path, preset, comment string }

// chartValues reads values.yaml in its order.
func chartValues(t *testing.T) []value {
	t.Helper()
	root, err := kyaml.ReadFile(chart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var schema schemaNode
	readSchema(t, &schema)
	return walkValues(t, nil, "", root.YNode(), schema)
}

// walkValues goes as deep as the schema has properties: below that are lists, and maps whose keys the user chooses.
func walkValues(t *testing.T, values []value, prefix string, node *kyaml.Node, schema schemaNode) []value {
	t.Helper()
	for i := 0; i < len(node.Content); i += 2 {
		key, child := node.Content[i], node.Content[i+1]
		property, known := schema.Properties[key.Value]
		path := prefix + key.Value
		if !known {
			t.Errorf("values.yaml: %s is not in the schema", path)
		}
		comment := strings.ReplaceAll(strings.ReplaceAll(key.HeadComment, "\n# ", " "), "# ", "")
		if property.Description != comment {
			t.Errorf("%s: the comment in values.yaml and the description in values.schema.json differ:\n%s\n%s", path, comment, property.Description)
		}
		if len(property.Properties) > 0 {
			values = walkValues(t, values, path+".", child, property)
			continue
		}
		var preset any
		if err := child.Decode(&preset); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(preset)
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, value{path, string(text), comment})
	}
	return values
}

// schemaNode is what the tests look at of a JSON schema.
type schemaNode struct {
	Type                 any
	Description          string
	Properties           map[string]schemaNode
	AdditionalProperties json.RawMessage
	Items                *schemaNode
	Definitions          map[string]schemaNode
}

func readSchema(t *testing.T, into any) {
	t.Helper()
	data, err := os.ReadFile(chart + "/values.schema.json")
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestChartSchema: whatever is not known is refused, and whatever is known has a default and a description.
func TestChartSchema(t *testing.T) {
	var schema schemaNode
	readSchema(t, &schema)
	checkClosed(t, "", schema)
	delete(schema.Properties, "global") // helm's, see TestChartInChart
	delete(schema.Properties, "csi-driver-lib")
	want := map[string]bool{}
	leaves(want, "", schema)
	got := map[string]bool{}
	for _, v := range chartValues(t) {
		got[v.path] = true
		if v.comment == "" {
			t.Errorf("values.yaml: %s has no comment above it", v.path)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-schema +values.yaml\n%s", diff)
	}
}

func leaves(paths map[string]bool, prefix string, node schemaNode) {
	for name, child := range node.Properties {
		if len(child.Properties) > 0 {
			leaves(paths, prefix+name+".", child)
		} else {
			paths[prefix+name] = true
		}
	}
}

func checkClosed(t *testing.T, path string, node schemaNode) {
	t.Helper()
	if node.Type == "object" && path != "/global" && path != "/csi-driver-lib" && (len(node.AdditionalProperties) == 0 || len(node.Properties) > 0 && string(node.AdditionalProperties) != "false") {
		t.Errorf("schema: %s takes keys that nobody knows", path)
	}
	for _, children := range []map[string]schemaNode{node.Properties, node.Definitions} {
		for name, child := range children {
			checkClosed(t, path+"/"+name, child)
		}
	}
	if node.Items != nil {
		checkClosed(t, path+"/items", *node.Items)
	}
}

// TestChartReadme: the table in README.md is made of values.yaml.
func TestChartReadme(t *testing.T) {
	const file, begin, end = chart + "/README.md", "<!-- values -->\n", "<!-- end of values -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := bytes.Cut(text, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !found || !closed {
		t.Fatalf("%s: no %q followed by %q", file, begin, end)
	}
	table := "| value | default | meaning |\n|---|---|---|\n"
	for _, v := range chartValues(t) {
		table += fmt.Sprintf("| `%s` | `%s` | %s |\n", v.path, v.preset, strings.ReplaceAll(v.comment, "|", `\|`))
	}
	compareGolden(t, file, slices.Concat(before, []byte(begin+table+end), after))
}

// TestChartValuesMatter: each value, set to what testdata/everything.values.yaml has for it, changes what helm prints. It is set alone, or
// with the `enabled` beside it.
func TestChartValuesMatter(t *testing.T) {
	everything := common.Values(readYAML(t, chart+"/testdata/everything.values.yaml"))
	values := chartValues(t)
	for _, v := range values {
		t.Run(v.path, func(t *testing.T) {
			base := map[string]any{}
			if strings.HasPrefix(v.path, "images.csi-snapshot-metadata.") {
				base = nest("snapshotMetadata.enabled", true)
			}
			if strings.HasPrefix(v.path, "images.csi-external-health-monitor-controller.") {
				base = nest("healthMonitor.enabled", true)
			}
			enabled := v.path[:strings.LastIndex(v.path, ".")+1] + "enabled"
			if v.path != enabled && slices.ContainsFunc(values, func(other value) bool { return other.path == enabled }) {
				base = nest(enabled, true)
			}
			if setting := lookup(everything, v.path); setting == nil {
				t.Error("testdata/everything.values.yaml leaves it as it is")
			} else if maps.Equal(mustTemplate(t, base), mustTemplate(t, util.MergeTables(nest(v.path, setting), base))) {
				t.Errorf("set to %v, it changes nothing", setting)
			}
		})
	}
}

func lookup(values map[string]any, path string) any {
	var at any = values
	if v, ok := at.(common.Values); ok {
		at = map[string]any(v)
	}
	for key := range strings.SplitSeq(path, ".") {
		table, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = table[key]
	}
	return at
}

// nest makes the values that `--set path=setting` would.
func nest(path string, setting any) map[string]any {
	keys := strings.Split(path, ".")
	for _, key := range slices.Backward(keys) {
		setting = map[string]any{key: setting}
	}
	return setting.(map[string]any)
}

func TestChartRefuses(t *testing.T) {
	type values = map[string]any
	cases := map[string]struct {
		reason string
		values values
		want   string
	}{
		"Kind": {
			reason: "pods of a DaemonSet would all be controllers",
			values: nest("controller.kind", "DaemonSet"),
			want:   "at '/controller/kind': value must be one of 'Deployment', 'StatefulSet'",
		},
		"SeveralOfAStatefulSet": {
			reason: "nothing would elect one of them",
			values: values{"controller": values{"kind": "StatefulSet", "replicas": 2}},
			want:   "at '/controller/replicas': value must be '0 or 1, because controller.kind is StatefulSet'",
		},
		"UnknownKey": {
			reason: "a typing error must not go unseen",
			values: nest("controler.replicas", 2),
			want:   "additional properties 'controler' not allowed",
		},
		"UnknownKeyOfContainer": {
			reason: "nor one further down",
			values: nest("node.registrar.args", []any{"--v=5"}),
			want:   "at '/node/registrar': additional properties 'args' not allowed",
		},
		"UnknownKeyOfClass": {
			reason: "nor one in a list",
			values: nest("storageClasses", []any{values{"name": "disks", "bindingMode": "Immediate"}}),
			want:   "at '/storageClasses/0': additional properties 'bindingMode' not allowed",
		},
		"ClassWithoutName": {
			reason: "the API server would refuse it halfway through the installation",
			values: nest("storageClasses", []any{values{"default": true}}),
			want:   "at '/storageClasses/0': missing property 'name'",
		},
		"ReplicasAsText": {
			reason: "--set-string, by mistake",
			values: nest("controller.replicas", "2"),
			want:   "at '/controller/replicas': got string, want integer",
		},
		"RelativeDirectory": {
			reason: "hostPath volumes are absolute",
			values: nest("kubeletDir", "var/lib/kubelet"),
			want:   "at '/kubeletDir': 'var/lib/kubelet' does not match pattern",
		},
		"DirectoryWithSlash": {
			reason: "the kubelet compares paths of sockets as text",
			values: nest("kubeletDir", "/var/lib/kubelet/"),
			want:   "at '/kubeletDir': '/var/lib/kubelet/' does not match pattern",
		},
		"DriverName": {
			reason: "the API server would refuse the CSIDriver",
			values: nest("driver.name", "My_Driver"),
			want:   "at '/driver/name': 'My_Driver' does not match pattern",
		},
		"ArgumentWithoutDash": {
			reason: "the container would not start",
			values: nest("controller.attacher.extraArgs", []any{"timeout=1m"}),
			want:   "at '/controller/attacher/extraArgs/0': 'timeout=1m' does not match pattern",
		},
		"Quantity": {
			reason: "the API server would refuse the pods",
			values: nest("node.driver.resources.limits.memory", "256 MB"),
			want:   "at '/node/driver/resources/limits/memory': '256 MB' does not match pattern",
		},
		"Interval": {
			reason: "the Prometheus operator would refuse the PodMonitor",
			values: nest("monitoring.podMonitor.interval", "30 s"),
			want:   "at '/monitoring/podMonitor/interval': '30 s' does not match pattern",
		},
		"NamespaceOfAnObject": {
			reason: "the API server would refuse it halfway through the installation",
			values: nest("monitoring.dashboard.namespace", "Grafana"),
			want:   "at '/monitoring/dashboard/namespace': 'Grafana' does not match pattern",
		},
		"SeveralDriversInOneName": {
			reason: "the policy would allow each of them",
			values: nest("inlineVolumePolicy.allowedDrivers", []any{"a.example.com b.example.com"}),
			want:   "at '/inlineVolumePolicy/allowedDrivers/0': 'a.example.com b.example.com' does not match pattern",
		},
		"DriversAsText": {
			reason: "--set takes a list in braces",
			values: nest("inlineVolumePolicy.allowedDrivers", "a.example.com"),
			want:   "at '/inlineVolumePolicy/allowedDrivers': got string, want",
		},
		"DenyAndWarn": {
			reason: "the API server would refuse the binding, and the policy alone does nothing",
			values: nest("inlineVolumePolicy.validationActions", []any{"Warn", "Deny"}),
			want:   "at '/inlineVolumePolicy/validationActions': value must be 'Deny or Warn, not both'",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := template(c.values); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: got %v, want %q", c.reason, err, c.want)
			}
		})
	}
}

// TestChartInChart: the chart can be part of another, which hands it `global`, known or not.
func TestChartInChart(t *testing.T) {
	loaded, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	parent := &chartv2.Chart{Metadata: &chartv2.Metadata{APIVersion: chartv2.APIVersionV2, Name: "storage", Version: "0.1.0"}}
	parent.AddDependency(loaded)
	for name, values := range map[string]map[string]any{
		"Defaults": {},
		"Global":   {"global": map[string]any{"region": "eu"}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := util.ToRenderValues(parent, values, common.ReleaseOptions{Name: "storage", Namespace: "storage"}, common.DefaultCapabilities); err != nil {
				t.Error(err)
			}
		})
	}
}
