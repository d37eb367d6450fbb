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
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"

	"github.com/longshore-csi/longshore/deploy/crds"
)

// crdTemplate renders the CustomResourceDefinitions of snapshots.
const crdTemplate = "snapshot-crds.yaml"

func crdFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("crds/snapshot/*_*.yaml")
	if err != nil || len(files) != 7 {
		t.Fatalf("found %q: %v", files, err)
	}
	return files
}

// TestChartCRDs: the chart has the definitions of deploy/crds, and helm never deletes them.
func TestChartCRDs(t *testing.T) {
	got := byName(t, unstructuredObjects(t, []byte(strings.TrimPrefix(mustTemplate(t, nil)[crdTemplate], "---\n"))))
	want := map[string]map[string]any{}
	for _, file := range crdFiles(t) {
		for _, o := range unstructuredObjects(t, []byte(contentOf(t, file))) {
			annotations := o.GetAnnotations()
			annotations["helm.sh/resource-policy"] = "keep"
			o.SetAnnotations(annotations)
			maps.Copy(want, byName(t, []unstructured.Unstructured{o}))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-deploy/crds +chart\n%s", diff)
	}
	if text := mustTemplate(t, nest("snapshotCRDs.install", false))[crdTemplate]; text != "" {
		t.Errorf("not wanted, and rendered:\n%s", text)
	}
}

// TestChartCRDsOfOthers: a definition that does not belong to the release, or is newer, is left unchanged, and the notes name it.
func TestChartCRDsOfOthers(t *testing.T) {
	const name = "volumesnapshots.snapshot.storage.k8s.io"
	of := func(release, namespace, revision string) map[string]string {
		return map[string]string{"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": namespace, crds.RevisionAnnotation: revision}
	}
	tests := map[string]struct {
		reason      string
		annotations map[string]string
		want        bool
	}{
		"Own":            {"upgraded", of("csi-hostpath", "csi-hostpath", "0"), true},
		"OwnAndSame":     {"helm deletes what is no longer rendered, but for its policy", of("csi-hostpath", "csi-hostpath", "2"), true},
		"OwnAndNewer":    {"no downgrade", of("csi-hostpath", "csi-hostpath", "99"), false},
		"OtherRelease":   {"helm would refuse the release", of("other", "csi-hostpath", "0"), false},
		"OtherNamespace": {"a release of the same name", of("csi-hostpath", "other", "0"), false},
		"Kubectl":        {"deploy/crds/apply upgrades it", map[string]string{crds.RevisionAnnotation: "0"}, false},
		"Distribution":   {"the distribution upgrades it", nil, false},
	}
	for test, tc := range tests {
		t.Run(test, func(t *testing.T) {
			there := &unstructured.Unstructured{}
			there.SetAPIVersion("apiextensions.k8s.io/v1")
			there.SetKind("CustomResourceDefinition")
			there.SetName(name)
			there.SetAnnotations(tc.annotations)
			files := templateOn(t, there)
			if got := strings.Contains(files[crdTemplate], "name: "+name+"\n"); got != tc.want {
				t.Errorf("%s: rendered: %v", tc.reason, got)
			}
			if strings.Count(files[crdTemplate], "kind: CustomResourceDefinition\n") < 5 {
				t.Error("the others, which the cluster does not have, are missing")
			}
			if got := strings.Contains(files["NOTES.txt"], "CustomResourceDefinition "+name+" was installed by others, or is newer, and is left unchanged."); got == tc.want {
				t.Errorf("%s: the notes:\n%s", tc.reason, files["NOTES.txt"])
			}
		})
	}
}

// cluster gives helm the objects that it looks up.
type cluster struct{ dynamic.Interface }

var _ engine.ClientProvider = cluster{}

// GetClientFor implements engine.ClientProvider, for the only kind that the chart looks up.
func (c cluster) GetClientFor(_, _ string) (dynamic.NamespaceableResourceInterface, bool, error) {
	return c.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}), false, nil
}

// templateOn does what `helm upgrade csi-hostpath CHART -n csi-hostpath --dry-run=server` does on a cluster with objects.
func templateOn(t *testing.T, there ...runtime.Object) map[string]string {
	t.Helper()
	loaded, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	release := common.ReleaseOptions{Name: "csi-hostpath", Namespace: "csi-hostpath", Revision: 2, IsUpgrade: true}
	values, err := util.ToRenderValues(loaded, nil, release, common.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := engine.RenderWithClientProvider(loaded, values, cluster{fake.NewSimpleDynamicClient(runtime.NewScheme(), there...)})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, name := range slices.Collect(maps.Keys(rendered)) {
		files[filepath.Base(name)] = rendered[name]
	}
	return files
}
