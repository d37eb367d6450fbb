package deploy

import (
	"bytes"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	volumegroupsnapshotv1beta2 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1beta2"
	volumesnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

const chart = "charts/hostpath"

// chartCases are the files of values in the chart's testdata, by name.
func chartCases(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob(chart + "/testdata/*.values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %q: %v", files, err)
	}
	cases := map[string]map[string]any{}
	for _, file := range files {
		cases[strings.TrimSuffix(filepath.Base(file), ".values.yaml")] = readYAML(t, file)
	}
	return cases
}

func readYAML(t *testing.T, file string) map[string]any {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(data, &values); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return values
}

// template does what `helm template csi-hostpath CHART -n csi-hostpath` does.
func template(values map[string]any) (map[string]string, error) {
	return templateAs("csi-hostpath", "csi-hostpath", values)
}

// templateAs does what `helm template RELEASE CHART -n NAMESPACE` does: it checks the values by the schema, then renders. The rendered
// files go by their name.
func templateAs(name, namespace string, values map[string]any) (map[string]string, error) {
	loaded, err := loader.Load(chart)
	if err != nil {
		return nil, err
	}
	return templateChart(loaded, name, namespace, values)
}

func templateChart(loaded *chartv2.Chart, name, namespace string, values map[string]any) (map[string]string, error) {
	if err := chartutil.ProcessDependencies(loaded, values); err != nil {
		return nil, err
	}
	release := common.ReleaseOptions{Name: name, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(loaded, values, release, withSnapshots())
	if err != nil {
		return nil, err
	}
	rendered, err := engine.Render(loaded, all)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for name, text := range rendered {
		if text = strings.TrimSpace(text); text != "" {
			files[path.Base(name)] = text + "\n"
		}
	}
	return files, nil
}

// withSnapshots are the capabilities of a cluster that has the definitions of snapshots and their metadata.
func withSnapshots() *common.Capabilities {
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.APIVersions = append(capabilities.APIVersions, volumesnapshotv1.SchemeGroupVersion.String(), volumegroupsnapshotv1beta2.SchemeGroupVersion.String(), metadataVersion.String())
	return capabilities
}

func mustTemplate(t *testing.T, values map[string]any) map[string]string {
	t.Helper()
	files, err := template(values)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// manifest joins the objects of rendered files, without the CustomResourceDefinitions, which TestChartCRDs looks at.
func manifest(files map[string]string) []byte {
	var text bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if filepath.Ext(name) == ".yaml" && name != crdTemplate {
			text.WriteString(strings.TrimPrefix(files[name], "---\n") + "---\n")
		}
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("---\n"))
}

// TestChartRendered shows in a change what it means for those who install by helm, notes included.
func TestChartRendered(t *testing.T) {
	cases := chartCases(t)
	for name, values := range cases {
		t.Run(name, func(t *testing.T) {
			files := mustTemplate(t, values)
			got := manifest(files)
			for line := range strings.Lines(files["NOTES.txt"]) {
				got = append(got, strings.TrimRight("# "+line, " \n")+"\n"...)
			}
			compareGolden(t, filepath.Join(chart, "testdata", name+".golden.yaml"), got)
		})
	}
	goldens, err := filepath.Glob(chart + "/testdata/*.golden.yaml")
	if err != nil || len(goldens) != len(cases) {
		t.Errorf("%d goldens for %d files of values: %v", len(goldens), len(cases), err)
	}
}

// compareGolden compares with a committed file, or with -rewrite writes it.
func compareGolden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is out of date (go test -rewrite . writes it): -committed +rendered\n%s", file, cmp.Diff(string(want), string(got)))
	}
}

// TestChartLint does what `helm lint --strict` does.
func TestChartLint(t *testing.T) {
	for name, values := range chartCases(t) {
		t.Run(name, func(t *testing.T) {
			for _, message := range lint.RunAll(chart, values, "csi-hostpath").Messages {
				if message.Severity >= support.WarningSev {
					t.Error(message)
				}
			}
		})
	}
}

// TestChartVersion: what helm shows as the version of the application is the driver's.
func TestChartVersion(t *testing.T) {
	loaded, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := common.Values(loaded.Values).PathValue("images.hostpathplugin.tag")
	if err != nil || tag != loaded.Metadata.AppVersion {
		t.Errorf("Chart.yaml has appVersion %s, the driver's image is tagged %v: %v", loaded.Metadata.AppVersion, tag, err)
	}
	for _, file := range slices.Concat(loaded.Files, loaded.Templates) {
		if strings.HasPrefix(file.Name, "testdata/") {
			t.Errorf("%s would be packed into the chart", file.Name)
		}
	}
}
