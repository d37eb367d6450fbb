package deploy

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// TestPrometheus: the Prometheus of a cluster to try things on has the rules and the dashboard of the component, and few rights.
func TestPrometheus(t *testing.T) {
	options := krusty.MakeDefaultOptions()
	options.LoadRestrictions = types.LoadRestrictionsNone
	result, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	text, err := result.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	list := decodeStrictly(t, text)
	data := map[string]string{}
	for _, cm := range find[*corev1.ConfigMap](list) {
		for name, content := range cm.Data {
			data[name] = content
		}
	}
	for _, file := range []string{rulesFile, dashboardFile} {
		if data[file[strings.LastIndex(file, "/")+1:]] != contentOf(t, file) {
			t.Errorf("%s is not in its ConfigMap", file)
		}
	}
	if ns := one[*corev1.Namespace](t, list); ns.Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
		t.Errorf("namespace %s: labels %v", ns.Name, ns.Labels)
	}
	pod := one[*appsv1.Deployment](t, list).Spec.Template.Spec
	if sc := pod.SecurityContext; sc == nil || sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot || sc.RunAsUser == nil || *sc.RunAsUser == 0 {
		t.Errorf("the pod may be root: %+v", sc)
	}
	for _, c := range pod.Containers {
		if sc := c.SecurityContext; !slices.Contains(sc.Capabilities.Drop, "ALL") || *sc.AllowPrivilegeEscalation || !*sc.ReadOnlyRootFilesystem {
			t.Errorf("%s keeps privileges: %+v", c.Name, sc)
		}
	}
}

// TestPrometheusConfig lets Prometheus's own tool check the configuration.
func TestPrometheusConfig(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool (package prometheus): `make test` installs it as root on Debian and Ubuntu")
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "check", "config", "--syntax-only", "prometheus/config.yaml").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
