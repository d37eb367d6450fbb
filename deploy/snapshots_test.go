package deploy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	volumegroupsnapshotv1beta2 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1beta2"
	volumesnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const distributedFlag = "--enable-distributed-snapshotting"

// TestSnapshotClasses: each form has one class of snapshots and one of groups, both of the driver, and a snapshotter.
func TestSnapshotClasses(t *testing.T) {
	for _, overlay := range overlays(t) {
		list := objects(t, overlay)
		class, group := one[*volumesnapshotv1.VolumeSnapshotClass](t, list), one[*volumegroupsnapshotv1beta2.VolumeGroupSnapshotClass](t, list)
		if class.Driver != driverName || group.Driver != driverName {
			t.Errorf("%s: the classes are of %q and %q", overlay, class.Driver, group.Driver)
		}
		workloads(t, list)[controllerLabel].container(t, "snapshotter")
	}
}

// TestSnapshotController: two pods on two nodes, of which one leads, and one is left by a drain; it is restarted when it does not renew its
// Lease, and not while it waits for definitions.
func TestSnapshotController(t *testing.T) {
	for _, directory := range snapshotControllers() {
		t.Run(directory, func(t *testing.T) {
			list := objects(t, directory)
			deployment := one[*appsv1.Deployment](t, list)
			budget := one[*policyv1.PodDisruptionBudget](t, list)
			pod := deployment.Spec.Template
			selected := labels.SelectorFromSet(budget.Spec.Selector.MatchLabels)
			if *deployment.Spec.Replicas != 2 || budget.Spec.MinAvailable.IntValue() != 1 || !selected.Matches(labels.Set(pod.Labels)) {
				t.Errorf("%d pods labelled %v, a drain leaves %v of %v", *deployment.Spec.Replicas, pod.Labels, budget.Spec.MinAvailable, budget.Spec.Selector)
			}
			if spread := pod.Spec.TopologySpreadConstraints; len(spread) != 1 || spread[0].TopologyKey != corev1.LabelHostname {
				t.Errorf("the pods are spread by %+v", spread)
			}
			c := pod.Spec.Containers[0]
			if !slices.Contains(c.Args, "--leader-election") || pathOf(c.LivenessProbe) != "/healthz/leader-election" || pathOf(c.ReadinessProbe) != "/readyz" {
				t.Errorf("it runs with %q, is alive by %q and ready by %q", c.Args, pathOf(c.LivenessProbe), pathOf(c.ReadinessProbe))
			}
			if got := slices.Contains(c.Args, distributedFlag); got != strings.HasSuffix(directory, "/distributed") {
				t.Errorf("it runs with %q", c.Args)
			}
			metricsPort(t, c)
			for _, object := range unstructuredObjects(t, render(t, directory)) {
				if namespaced := !strings.HasPrefix(object.GetKind(), "Cluster"); namespaced != (object.GetNamespace() == "kube-system") {
					t.Errorf("%s %s is in namespace %q", object.GetKind(), object.GetName(), object.GetNamespace())
				}
			}
		})
	}
}

// TestSnapshotControllerRights: the manifests and the document grant the same; what the flag for distributed snapshots needs, is granted
// with it.
func TestSnapshotControllerRights(t *testing.T) {
	page := contentOf(t, "../snapshotcontroller/docs/rbac.md")
	plain, distributed := rightsIn(t, string(render(t, snapshotControllers()[0]))), rightsIn(t, string(render(t, snapshotControllers()[1])))
	for where, got := range map[string]rights{"table": tableIn(page), "example": rightsIn(t, examplesIn(page)[0])} {
		if diff := cmp.Diff(distributed.list(), got.list()); diff != "" || len(got) < 20 {
			t.Errorf("-deploy/snapshot-controller/distributed +docs, %s:\n%s", where, diff)
		}
	}
	nodes := rights{}
	nodes.add([]string{""}, []string{"nodes"}, []string{"list", "watch"})
	nodes.add([]string{"storage.k8s.io"}, []string{"csinodes"}, []string{"list", "watch"})
	maps.Copy(nodes, plain)
	if diff := cmp.Diff(nodes.list(), distributed.list()); diff != "" {
		t.Errorf("-without the flag, and what it needs +with the flag:\n%s", diff)
	}
}

// TestChartSnapshotController: the release's is that of the kustomize directory, under the names of the release and in its namespace, but
// for the Lease.
func TestChartSnapshotController(t *testing.T) {
	const file = "snapshot-controller.yaml"
	got := unstructuredObjects(t, []byte(mustTemplate(t, nest("monitoring.annotations", true))[file]))
	names := strings.NewReplacer("longshore:csi-hostpath:snapshot-controller", "longshore:snapshot-controller", "csi-hostpath-snapshot-controller", "snapshot-controller")
	for i, object := range got {
		for _, d := range []string{"Labels", "PartOf"} {
			differences()[d].undo(object)
		}
		remove(object, "metadata", "labels", "app.kubernetes.io/part-of")
		remove(object, "spec", "template", "metadata", "labels", "app.kubernetes.io/part-of")
		if len(object.GetLabels()) == 0 {
			remove(object, "metadata", "labels")
		}
		got[i].Object = replaceStrings(object.Object, func(s string) string {
			if s == "csi-hostpath" {
				return "kube-system"
			}
			return names.Replace(s)
		}).(map[string]any)
	}
	if diff := cmp.Diff(byName(t, unstructuredObjects(t, render(t, snapshotControllers()[0]))), byName(t, got)); diff != "" {
		t.Errorf("-deploy/snapshot-controller/standard +chart\n%s", diff)
	}
	for _, off := range []string{"snapshots", "snapshotController.install"} {
		if text := mustTemplate(t, nest(off, false))[file]; text != "" {
			t.Errorf("%s=false:\n%s", off, text)
		}
	}
}

// replaceStrings changes each text in a JSON value; the argument that names the namespace of the Lease is none that the directory needs.
func replaceStrings(value any, change func(string) string) any {
	switch v := value.(type) {
	case string:
		return change(v)
	case []any:
		v = slices.DeleteFunc(v, func(item any) bool { return item == "--leader-election-namespace=kube-system" })
		for i := range v {
			v[i] = replaceStrings(v[i], change)
		}
		return v
	case map[string]any:
		for key := range v {
			v[key] = replaceStrings(v[key], change)
		}
	}
	return value
}

// TestChartWithoutSnapshots: a cluster without snapshots needs nothing of them.
func TestChartWithoutSnapshots(t *testing.T) {
	text := string(manifest(mustTemplate(t, nest("snapshots", false))))
	for _, object := range unstructuredObjects(t, []byte(text)) {
		if strings.Contains(object.GetKind(), "Snapshot") || strings.Contains(object.GetName(), "snapshot") {
			t.Errorf("there is %s %s", object.GetKind(), object.GetName())
		}
	}
	if strings.Contains(text, "csi-snapshotter") {
		t.Error("the controller has a snapshotter")
	}
}

// TestChartClassesNeedKinds: helm refuses a release with objects of kinds that the API server does not serve; the notes say how to add them.
func TestChartClassesNeedKinds(t *testing.T) {
	loaded, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	const missing = "The classes of snapshots are not installed yet"
	for name, tc := range map[string]struct {
		capabilities *common.Capabilities
		classes      []string
	}{
		"Without": {common.DefaultCapabilities, nil},
		"With":    {withSnapshots(), []string{"VolumeGroupSnapshotClass", "VolumeSnapshotClass"}},
	} {
		t.Run(name, func(t *testing.T) {
			values, err := util.ToRenderValues(loaded, nil, common.ReleaseOptions{Name: "csi-hostpath", Namespace: "csi-hostpath"}, tc.capabilities)
			if err != nil {
				t.Fatal(err)
			}
			files, err := engine.Render(loaded, values)
			if err != nil {
				t.Fatal(err)
			}
			var kinds []string
			if text := strings.TrimSpace(files["hostpath/templates/snapshotclasses.yaml"]); text != "" {
				for _, object := range unstructuredObjects(t, []byte(strings.TrimPrefix(text, "---\n"))) {
					kinds = append(kinds, object.GetKind())
				}
			}
			slices.Sort(kinds)
			if diff := cmp.Diff(tc.classes, kinds); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if said := strings.Contains(files["hostpath/templates/NOTES.txt"], missing); said != (tc.classes == nil) {
				t.Errorf("the notes say %q: %v", missing, said)
			}
		})
	}
}

// TestSnapshotControllerIsMonitored: by annotations, and by the operator.
func TestSnapshotControllerIsMonitored(t *testing.T) {
	monitor := one[*monitoringv1.PodMonitor](t, decodeStrictly(t, []byte(contentOf(t, "snapshot-controller/podmonitor.yaml"))))
	deployment := one[*appsv1.Deployment](t, objects(t, snapshotControllers()[0]))
	pod := deployment.Spec.Template
	selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	if !selector.Matches(labels.Set(pod.Labels)) || monitor.Namespace != deployment.Namespace {
		t.Errorf("%s/%s is not monitored: %v", deployment.Namespace, deployment.Name, pod.Labels)
	}
	if ports := monitor.Spec.PodMetricsEndpoints; len(ports) != 1 || *ports[0].Port != metricsPort(t, pod.Spec.Containers[0]) {
		t.Errorf("ports %+v", ports)
	}
	if pod.Annotations["prometheus.io/scrape"] != "true" || pod.Annotations["prometheus.io/path"] != "/metrics" {
		t.Errorf("annotations %v", pod.Annotations)
	}
}
