package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

const (
	monitoring     = "components/monitoring"
	rulesFile      = monitoring + "/rules.yaml"
	dashboardFile  = monitoring + "/dashboard.json"
	ruleObjectFile = "components/monitoring-operator/prometheusrule.yaml"
	// monitored is the overlay that has both components.
	monitored = "../testdata/monitored"
)

// read decodes a YAML or JSON file strictly.
func read[T any](t *testing.T, path string) (into T) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(data, &into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return into
}

// alerts gives the alert rules by name.
func alerts(t *testing.T) map[string]monitoringv1.Rule {
	t.Helper()
	all := map[string]monitoringv1.Rule{}
	for _, group := range read[monitoringv1.PrometheusRuleSpec](t, rulesFile).Groups {
		for _, rule := range group.Rules {
			if _, twice := all[rule.Alert]; twice || rule.Alert == "" {
				t.Errorf("alert %q: twice, or without a name", rule.Alert)
			}
			all[rule.Alert] = rule
		}
	}
	return all
}

// TestPromtool lets Prometheus's own tool check the rules and run their unit tests.
func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool of Prometheus on PATH: `make test` installs it, as root on Debian or Ubuntu")
	}
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "rules.test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = monitoring
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}

// TestAlertsHelp: whoever is woken up is told what is wrong, how bad it is, and what to do; and no alert is about others' pods.
func TestAlertsHelp(t *testing.T) {
	namespace := one[*corev1.Namespace](t, objects(t, "kind")).Name
	selector := regexp.MustCompile(`\{[^}]*\}`)
	for name, rule := range alerts(t) {
		expr := rule.Expr.String()
		for _, s := range selector.FindAllString(expr, -1) {
			// There is one snapshot-controller in a cluster, wherever it is.
			if !strings.HasPrefix(s, `{namespace="`+namespace+`"`) && s != `{name="snapshot-controller-leader"}` {
				t.Errorf("%s: %s is not about namespace %s", name, s, namespace)
			}
		}
		lines := strings.Split(strings.TrimSpace(expr), "\n")
		if last := lines[len(lines)-1]; !regexp.MustCompile(`^(==|>|<) [0-9.]+$`).MatchString(last) {
			t.Errorf("%s: the last line is %q, want a comparison", name, last)
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) {
			t.Errorf("%s: severity %q", name, rule.Labels["severity"])
		}
		if s := rule.Annotations["summary"]; len(s) < 20 || len(s) > 200 || !strings.HasSuffix(s, ".") {
			t.Errorf("%s: summary %q", name, s)
		}
		if d := rule.Annotations["description"]; len(d) < 150 {
			t.Errorf("%s: the description does not say what to do: %q", name, d)
		}
	}
}

// TestEveryAlertIsTested: each is seen to fire, and seen not to.
func TestEveryAlertIsTested(t *testing.T) {
	type file struct {
		Tests []struct {
			Exprs []struct {
				Expr    string
				Samples []struct{ Labels string } `json:"exp_samples"`
			} `json:"promql_expr_test"`
		}
	}
	data, err := os.ReadFile(monitoring + "/rules.test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var tests file
	if err := yaml.Unmarshal(data, &tests); err != nil {
		t.Fatal(err)
	}
	fires, rests := map[string]bool{}, map[string]bool{}
	named := regexp.MustCompile(`alertname=~?"([^"]+)"`)
	for _, test := range tests.Tests {
		for _, e := range test.Exprs {
			for _, s := range e.Samples {
				if m := named.FindStringSubmatch(s.Labels); m != nil {
					fires[m[1]] = true
				}
			}
			m := named.FindStringSubmatch(e.Expr)
			for name := range alerts(t) {
				if m != nil && len(e.Samples) == 0 && regexp.MustCompile("^("+m[1]+")$").MatchString(name) {
					rests[name] = true
				}
			}
		}
	}
	for name := range alerts(t) {
		if !fires[name] || !rests[name] {
			t.Errorf("%s: is seen to fire: %v, and not to: %v", name, fires[name], rests[name])
		}
	}
}

// TestAlertsAreDocumented with their severity.
func TestAlertsAreDocumented(t *testing.T) {
	data, err := os.ReadFile("../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, rule := range alerts(t) {
		row := regexp.MustCompile("(?m)^\\|.*`" + name + "`.*\\| " + rule.Labels["severity"] + " \\|")
		if !row.Match(data) {
			t.Errorf("%s, %s, has no row in docs/monitoring.md", name, rule.Labels["severity"])
		}
	}
}

// TestRuleObject: the operator gets the same rules.
func TestRuleObject(t *testing.T) {
	object := monitoringv1.PrometheusRule{
		TypeMeta:   metav1.TypeMeta{APIVersion: "monitoring.coreos.com/v1", Kind: "PrometheusRule"},
		ObjectMeta: metav1.ObjectMeta{Name: "csi-hostpath"},
		Spec:       read[monitoringv1.PrometheusRuleSpec](t, rulesFile),
	}
	text, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	text = append([]byte("# Made of ../monitoring/rules.yaml by `go test . -rewrite`.\n"), text...)
	if *rewrite {
		if err := os.WriteFile(ruleObjectFile, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(ruleObjectFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(text), string(got)); diff != "" {
		t.Errorf("%s is not made of %s (go test . -rewrite makes it): -want +committed\n%s", ruleObjectFile, rulesFile, diff)
	}
}

// TestScraping: with annotations and with the PodMonitor, Prometheus finds every container of both sides.
func TestScraping(t *testing.T) {
	list := objects(t, monitored)
	monitor := one[*monitoringv1.PodMonitor](t, list)
	if one[*monitoringv1.PrometheusRule](t, list).Namespace != monitor.Namespace {
		t.Error("rules and targets are not in one namespace")
	}
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	var monitors, serves []string
	for _, e := range monitor.Spec.PodMetricsEndpoints {
		monitors = append(monitors, *e.Port)
	}
	for _, w := range workloads(t, list) {
		if !selector.Matches(labels.Set(w.pod.Labels)) || w.GetNamespace() != monitor.Namespace {
			t.Errorf("%s/%s is not monitored: %v", w.GetNamespace(), w.GetName(), w.pod.Labels)
		}
		if a := w.pod.Annotations; a["prometheus.io/scrape"] != "true" || a["prometheus.io/path"] != "/metrics" || a["prometheus.io/port"] != "" {
			t.Errorf("%s: annotations %v; a port would hide the others", w.GetName(), a)
		}
		for _, c := range w.pod.Spec.Containers {
			serves = append(serves, metricsPort(t, c))
		}
	}
	for _, w := range workloads(t, objects(t, "daemonset")) { // which has a second driver in the pod
		for _, c := range w.pod.Spec.Containers {
			serves = append(serves, metricsPort(t, c))
		}
	}
	serves = append(serves, metricsPort(t, workloads(t, objects(t, healthMonitor))[controllerLabel].container(t, "health-monitor")))
	slices.Sort(monitors)
	slices.Sort(serves)
	if diff := cmp.Diff(slices.Compact(serves), monitors); diff != "" {
		t.Errorf("ports: -of containers +monitored\n%s", diff)
	}
}

// metricsPort is the name of the port at which a container serves its metrics, the only one it declares.
func metricsPort(t *testing.T, c corev1.Container) string {
	t.Helper()
	if len(c.Ports) != 1 || !slices.Contains(c.Args, "--http-endpoint=:"+strconv.Itoa(int(c.Ports[0].ContainerPort))) {
		t.Fatalf("%s declares %v and runs with %q", c.Name, c.Ports, c.Args)
	}
	return c.Ports[0].Name
}

type (
	dashboard struct {
		Title, UID string
		Templating struct{ List []variable }
		Panels     []panel
	}
	variable struct {
		Name, Type, Definition string
	}
	panel struct {
		ID                       int
		Type, Title, Description string
		Targets                  []struct{ Expr string }
		Datasource               struct{ UID string }
	}
)

// TestDashboardFindsAnyDriver: drivers of others export no csi_plugin_operations_seconds, and have only the metrics of the sidecars.
func TestDashboardFindsAnyDriver(t *testing.T) {
	var d dashboard
	if err := json.Unmarshal([]byte(contentOf(t, dashboardFile)), &d); err != nil {
		t.Fatal(err)
	}
	for _, v := range d.Templating.List {
		if v.Type != "datasource" && !strings.Contains(v.Definition, `{__name__=~"csi_(sidecar|plugin)_operations_seconds_count"`) {
			t.Errorf("variable %s finds only drivers with the metrics of %s", v.Name, v.Definition)
		}
	}
}

// TestDashboard: it is well-formed, explains itself, and uses no variable that is not there.
func TestDashboard(t *testing.T) {
	data, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	defined := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		defined[v.Name] = true
	}
	for _, want := range []string{"datasource", "namespace", "driver"} {
		if !defined[want] {
			t.Errorf("no variable %s", want)
		}
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d %q: its number is taken, or it has no title", p.ID, p.Title)
		}
		ids[p.ID] = true
		if p.Type != "row" && (p.Description == "" || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}") {
			t.Errorf("panel %q: no description, no question, or a data source of its own", p.Title)
		}
		for _, target := range p.Targets {
			for _, m := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if !defined[m[1]] {
					t.Errorf("panel %q: $%s is not defined", p.Title, m[1])
				}
			}
		}
	}
}

// TestDashboardIsInstalled as the ConfigMap that Grafana's sidecar looks for.
func TestDashboardIsInstalled(t *testing.T) {
	for _, overlay := range []string{"kind", monitored} {
		cm := one[*corev1.ConfigMap](t, objects(t, overlay))
		want, err := os.ReadFile(filepath.FromSlash(dashboardFile))
		if err != nil {
			t.Fatal(err)
		}
		if cm.Labels["grafana_dashboard"] != "1" || cm.Data["csi.json"] != string(want) {
			t.Errorf("%s: labels %v, %d bytes", overlay, cm.Labels, len(cm.Data["csi.json"]))
		}
	}
}
