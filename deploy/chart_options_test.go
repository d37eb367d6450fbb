package deploy

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"
)

// TestChartFiles: helm reads no file outside of the chart, and kustomize none outside of the component. The component's is the source.
func TestChartFiles(t *testing.T) {
	sources := map[string]string{"dashboard.json": dashboardFile, "rules.yaml": rulesFile}
	for _, file := range crdFiles(t) {
		sources[filepath.Join("crds", filepath.Base(file))] = file
	}
	for name, source := range sources {
		compareGolden(t, filepath.Join(chart, "files", name), []byte(contentOf(t, source)))
	}
	if strings.Contains(contentOf(t, dashboardFile), "csi-hostpath") {
		t.Error("the dashboard names a namespace or a release; others would see nothing")
	}
	var files []string
	err := fs.WalkDir(os.DirFS(chart+"/files"), ".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if diff := cmp.Diff(slices.Sorted(maps.Keys(sources)), files); diff != "" || err != nil {
		t.Errorf("files of the chart: -want +got\n%s%v", diff, err)
	}
}

// TestChartObjectsAreTyped: what the API server of a cluster without the Prometheus operator cannot be asked.
func TestChartObjectsAreTyped(t *testing.T) {
	for name, values := range chartCases(t) {
		t.Run(name, func(t *testing.T) {
			if list := decodeStrictly(t, manifest(mustTemplate(t, values))); len(list) < 10 {
				t.Errorf("found %d objects", len(list))
			}
		})
	}
}

// chartRules are the alert rules of a release.
func chartRules(t *testing.T, release, namespace string) monitoringv1.PrometheusRuleSpec {
	t.Helper()
	files, err := templateAs(release, namespace, nest("monitoring.prometheusRule.enabled", true))
	if err != nil {
		t.Fatal(err)
	}
	return one[*monitoringv1.PrometheusRule](t, decodeStrictly(t, []byte(files["prometheusrule.yaml"]))).Spec
}

// TestChartRulesFollowTheRelease: in whatever namespace, under whatever name, the rules are about the pods of the release, and otherwise
// the ones of the component.
func TestChartRulesFollowTheRelease(t *testing.T) {
	tests := map[string]struct{ reason, release, namespace string }{
		"AsTheComponent":      {"the default of both", "csi-hostpath", "csi-hostpath"},
		"Elsewhere":           {"both differ", "disks", "storage-system"},
		"OtherNamespace":      {"a release that is called as the component's objects", "csi-hostpath", "kube-system"},
		"OtherName":           {"a namespace that is called as the component's", "disks", "csi-hostpath"},
		"NamespaceWithSuffix": {"a namespace that only begins like the component's", "csi-hostpath-2", "csi-hostpath-test"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			want := read[monitoringv1.PrometheusRuleSpec](t, rulesFile)
			for i := range want.Groups {
				want.Groups[i].Name = tc.release
				for j, rule := range want.Groups[i].Rules {
					want.Groups[i].Rules[j].Expr.StrVal = strings.ReplaceAll(rule.Expr.StrVal, `{namespace="csi-hostpath"`, `{namespace="`+tc.namespace+`"`)
					for key, text := range rule.Annotations {
						rule.Annotations[key] = strings.ReplaceAll(text, "=csi-hostpath-controller`", "="+tc.release+"-controller`")
					}
				}
			}
			if diff := cmp.Diff(want, chartRules(t, tc.release, tc.namespace)); diff != "" {
				t.Errorf("%s: -component +chart\n%s", tc.reason, diff)
			}
		})
	}
}

// TestChartRulesPassPromtool: the unit tests of the component's rules hold for those of a release in another namespace.
func TestChartRulesPassPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool of Prometheus on PATH: `make test` installs it, as root on Debian or Ubuntu")
	}
	rules, err := yaml.Marshal(chartRules(t, "disks", "storage-system"))
	if err != nil {
		t.Fatal(err)
	}
	tests := strings.ReplaceAll(contentOf(t, monitoring+"/rules.test.yaml"), `namespace="csi-hostpath"`, `namespace="storage-system"`)
	dir := t.TempDir()
	for name, text := range map[string]string{"rules.yaml": string(rules), "rules.test.yaml": tests} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules.test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}

// TestChartPodMonitorElsewhere: from another namespace it still selects the pods of the release.
func TestChartPodMonitorElsewhere(t *testing.T) {
	for namespace, want := range map[string][]string{"": nil, "disks": nil, "prometheus": {"disks"}} {
		files, err := templateAs("disks", "disks", map[string]any{"monitoring": map[string]any{"podMonitor": map[string]any{"enabled": true, "namespace": namespace}}})
		if err != nil {
			t.Fatal(err)
		}
		monitor := one[*monitoringv1.PodMonitor](t, decodeStrictly(t, []byte(files["podmonitor.yaml"])))
		if diff := cmp.Diff(want, monitor.Spec.NamespaceSelector.MatchNames); diff != "" {
			t.Errorf("in namespace %q (-want +got):\n%s", namespace, diff)
		}
	}
}

// TestChartInlineDrivers: unset, empty, a list. What the policy makes of the annotation is tested end to end.
func TestChartInlineDrivers(t *testing.T) {
	const annotation = "csi.longshore.dev/allowed-inline-drivers"
	tests := map[string]struct {
		reason  string
		drivers any
		want    map[string]string
	}{
		"Unset": {"null takes the default away; no annotation allows no driver", nil, nil},
		"Empty": {"an empty annotation allows no driver", []any{}, map[string]string{annotation: ""}},
		"One":   {"this driver, and not the default", []any{"disks.example.com"}, map[string]string{annotation: "disks.example.com"}},
		"Two":   {"names are separated", []any{"a.example.com", "b.example.com"}, map[string]string{annotation: "a.example.com b.example.com"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			files := mustTemplate(t, map[string]any{"inlineVolumePolicy": map[string]any{"enabled": true, "allowedDrivers": tc.drivers}})
			binding := one[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](t, decodeStrictly(t, []byte(files["inline-volume-policy.yaml"])))
			if diff := cmp.Diff(tc.want, binding.Annotations); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if binding.Spec.ParamRef.Name != binding.Name {
				t.Errorf("the parameter of %s is %s", binding.Name, binding.Spec.ParamRef.Name)
			}
		})
	}
}
