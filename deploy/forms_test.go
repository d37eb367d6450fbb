package deploy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// form is a way to run the controller side.
type form struct {
	reason   string
	kind     string
	replicas int32
	elects   bool
	budget   bool
	// distributed is true where each node has a controller side of its own.
	distributed bool
}

// forms are those of the seed 001, "Cluster-Level Deployment" and, for the DaemonSet, "Recommended Mechanism for Deploying CSI
// Drivers on Kubernetes"; and one for storage that each node has for itself.
func forms() map[string]form {
	return map[string]form{
		"statefulset":         {reason: "never two at a time, so no election", kind: "StatefulSet", replicas: 1},
		"deployment-replicas": {reason: "recovers fastest; a drain must leave one", kind: "Deployment", replicas: 2, elects: true, budget: true},
		"deployment":          {reason: "a compromise; a budget would keep nodes from being drained", kind: "Deployment", replicas: 1, elects: true},
		"kind":                {reason: "the form that asks most of the sidecars and the driver", kind: "Deployment", replicas: 2, elects: true, budget: true},
		"daemonset":           {reason: "one on each node, of which one works; a drain leaves the pods of a DaemonSet alone", kind: "DaemonSet", elects: true},
		"distributed":         {reason: "each works for its own node, so no election", kind: "DaemonSet", distributed: true},
	}
}

func TestForms(t *testing.T) {
	cases := forms()
	for _, overlay := range overlays(t) {
		t.Run(overlay, func(t *testing.T) {
			want, known := cases[overlay]
			if !known {
				t.Fatal("an overlay that no form stands for")
			}
			list := objects(t, overlay)
			controller := workloads(t, list)[controllerLabel]
			got := form{
				reason: want.reason, kind: controller.kind, replicas: controller.replicas,
				budget: len(find[*policyv1.PodDisruptionBudget](list)) == 1,
				elects: slices.ContainsFunc(find[*rbacv1.Role](list), func(r *rbacv1.Role) bool { return r.Name == "leader-election" }),
			}
			provisioner := controller.container(t, "provisioner")
			got.distributed = slices.Contains(provisioner.Args, "--node-deployment")
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(form{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", want.reason, diff)
			}
			sidecars := []corev1.Container{provisioner, controller.container(t, "snapshotter")}
			if !want.distributed {
				sidecars = append(sidecars, controller.container(t, "attacher"), controller.container(t, "resizer"))
			}
			for _, c := range sidecars {
				if slices.Contains(c.Args, "--leader-election") != want.elects {
					t.Errorf("%s: %s has %q", want.reason, c.Name, c.Args)
				}
			}
			for _, w := range workloads(t, list) {
				// The pods of a DaemonSet are not to be waited for when a controller is stopped.
				if onNodes := w.GetLabels()[nodeLabel] != ""; onNodes && w.pod.Labels[controllerLabel] != "" {
					t.Errorf("the pods of %s carry the label of a controller's", w.GetName())
				}
			}
		})
	}
}

// TestDistributed: a node's volumes lie on that node and are of no use to others, so nothing is attached and nothing is shared.
func TestDistributed(t *testing.T) {
	list := objects(t, "distributed")
	w := workloads(t, list)[nodeLabel]
	if object := one[*storagev1.CSIDriver](t, list); *object.Spec.AttachRequired {
		t.Error("nobody attaches, and volumes are to be attached")
	}
	for _, c := range w.pod.Spec.Containers {
		if c.Name == "attacher" || slices.Contains(c.Args, "--enable-attach") {
			t.Errorf("%s has to do with attaching: %q", c.Name, c.Args)
		}
	}
	for _, sidecar := range []string{"provisioner", "snapshotter"} {
		c := w.container(t, sidecar)
		if fieldsOf(c)["NODE_NAME"] != "spec.nodeName" || !slices.Contains(c.Args, "--node-deployment") {
			t.Errorf("the %s does not work for its node: %q, %+v", sidecar, c.Args, c.Env)
		}
	}
	here := w.volume(t, "state-dir").HostPath.Path
	for _, other := range []string{"statefulset", "daemonset"} {
		if there := workloads(t, objects(t, other))[nodeLabel].volume(t, "state-dir").HostPath.Path; there == here {
			t.Errorf("%s lies where %s, whose nodes share the directory, has its volumes", here, other)
		}
	}
}

// TestSecondDriver: in a pod of the node side, the controller side is what it is in a pod of its own, but for names,
// ports, and who owns the pod.
func TestSecondDriver(t *testing.T) {
	alone, beside := workloads(t, objects(t, "deployment"))[controllerLabel], workloads(t, objects(t, "daemonset"))[controllerLabel]
	for name, second := range map[string]string{
		driver: secondDriver, "livenessprobe": "livenessprobe-controller", "provisioner": "provisioner", "attacher": "attacher", "resizer": "resizer",
		"snapshotter": "snapshotter",
	} {
		want, got := alone.container(t, name), beside.container(t, second)
		for _, c := range []*corev1.Container{&want, &got} {
			c.Name = name
			c.Ports, c.LivenessProbe = nil, nil
			c.Args = slices.DeleteFunc(c.Args, func(a string) bool {
				return strings.HasPrefix(a, "--http-endpoint=") || strings.HasPrefix(a, "--capacity-ownerref-level=")
			})
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -alone +on a node\n%s", second, diff)
		}
	}
	probe := beside.container(t, "livenessprobe-controller")
	if got := beside.container(t, secondDriver).LivenessProbe.HTTPGet.Port.IntVal; got != probe.Ports[0].ContainerPort {
		t.Errorf("the second driver is judged by port %d, its probe listens at %d", got, probe.Ports[0].ContainerPort)
	}
	ports := map[int32]string{}
	for _, c := range beside.pod.Spec.Containers {
		for _, p := range c.Ports {
			if ports[p.ContainerPort] != "" {
				t.Errorf("%s and %s listen at %d", ports[p.ContainerPort], c.Name, p.ContainerPort)
			}
			ports[p.ContainerPort] = c.Name
		}
	}
}

// TestMovesLeaveNothing: the script that applies an overlay removes what another overlay has, and this one does not.
func TestMovesLeaveNothing(t *testing.T) {
	all := overlays(t)
	in := map[string]int{}
	for _, overlay := range all {
		for _, o := range unstructuredObjects(t, render(t, overlay)) {
			switch kind := o.GroupVersionKind(); kind.Kind {
			case "StatefulSet", "Deployment": // found by their label
			case "Role", "ClusterRole": // shared with other drivers
			case "ConfigMap": // the dashboard, which is no part of a form
			case "CustomResourceDefinition":
				t.Errorf("%s has %s: whoever removes the driver would delete the snapshots of all drivers", overlay, o.GetName())
			default:
				in[strings.TrimSuffix(fmt.Sprintf("%s.%s", strings.ToLower(kind.Kind), kind.Group), ".")+"/"+o.GetName()]++
			}
		}
	}
	maps.DeleteFunc(in, func(_ string, times int) bool { return times == len(all) })
	text := regexp.MustCompile(`(?s)\nof_some_forms=\(\n(.*?)\n\)`).FindStringSubmatch(contentOf(t, "apply"))
	if text == nil {
		t.Fatal("apply has no list of_some_forms")
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(in)), slices.Sorted(slices.Values(strings.Fields(text[1])))); diff != "" {
		t.Errorf("of_some_forms: -overlays +apply\n%s", diff)
	}
}
