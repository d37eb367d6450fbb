package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/longshore-csi/longshore/devcluster/apply"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// manifests are the files whose objects a user may apply, as globs.
func manifests() []string {
	return []string{
		"../deploy/rendered/*.yaml",
		"../deploy/charts/*/testdata/*.golden.yaml",
		policyFiles + "policy.yaml",
		policyFiles + "binding.yaml",
		"../deploy/components/volume-attributes-class/class.yaml",
		"../deploy/crds/snapshot/*_*.yaml",
	}
}

// extensionKinds need a CustomResourceDefinition that belongs to somebody else. They are left out where it is missing.
func extensionKinds() map[string]string {
	return map[string]string{
		"PodMonitor":     "Prometheus Operator",
		"PrometheusRule": "Prometheus Operator",
		"ServiceMonitor": "Prometheus Operator",

		"VolumeSnapshotClass":      "deploy/crds",
		"VolumeGroupSnapshotClass": "deploy/crds",
		"SnapshotMetadataService":  "deploy/crds",
	}
}

// TestManifestsAreAcceptedWithoutWarning sends every object of the manifests to the API server, which does everything but keep
// them: schema, validation, admission, Pod Security.
func TestManifestsAreAcceptedWithoutWarning(t *testing.T) {
	version, err := bed.Client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("API server %s", version.GitVersion)
	w := bed.NewWriter(t)
	spaces := newNamespaces(t, w)
	for _, glob := range manifests() {
		files, err := filepath.Glob(glob)
		if err != nil || len(files) == 0 {
			t.Errorf("%s: no file, %v", glob, err)
		}
		for _, file := range files {
			t.Run(strings.TrimPrefix(file, "../deploy/"), func(t *testing.T) {
				objects := testbed.ReadManifest(t, file)
				spaces.make(objects)
				dryRun(t, w, objects)
			})
		}
	}
}

func dryRun(t *testing.T, w *apply.Client, objects []*unstructured.Unstructured) {
	sent := 0
	for _, o := range objects {
		if owner := extensionKinds()[o.GetKind()]; owner != "" && !knows(w, o) {
			t.Logf("%s %s is left out: this cluster has no %s", o.GetKind(), o.GetName(), owner)
			continue
		}
		sent++
		if err := w.DryRun(t.Context(), renamed(t.Context(), w, o)); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d of %d objects were sent", sent, len(objects))
}

// settledFields are those that the API server lets nobody change, by kind.
func settledFields() map[string][][]string {
	return map[string][][]string{
		"RoleBinding":        {{"roleRef"}},
		"ClusterRoleBinding": {{"roleRef"}},
		"CSIDriver":          {{"spec", "attachRequired"}, {"spec", "volumeLifecycleModes"}},
	}
}

// renamed gives an object another name where one with its own is there and differs in a settled field, because the driver was installed
// from other manifests: such a field cannot be changed, not even in a dry run.
func renamed(ctx context.Context, w *apply.Client, o *unstructured.Unstructured) *unstructured.Unstructured {
	fields := settledFields()[o.GetKind()]
	resource, err := w.Resource(o)
	if fields == nil || err != nil {
		return o
	}
	there, err := resource.Get(ctx, o.GetName(), metav1.GetOptions{})
	if err != nil {
		return o
	}
	differs := func(field []string) bool {
		want, set, _ := unstructured.NestedFieldNoCopy(o.Object, field...)
		have, _, _ := unstructured.NestedFieldNoCopy(there.Object, field...)
		return set && !reflect.DeepEqual(have, want)
	}
	if !slices.ContainsFunc(fields, differs) {
		return o
	}
	other := o.DeepCopy()
	other.SetName(o.GetName() + "-dry-run")
	return other
}

func knows(w *apply.Client, o *unstructured.Unstructured) bool {
	_, err := w.Resource(o)
	return err == nil
}

// namespaces makes the namespaces of manifests that the cluster does not have, until the test ends: an object cannot be tried in
// a namespace that is not there, and the namespace's labels say what Pod Security warns of.
type namespaces struct {
	t *testing.T
	w *apply.Client
	// ours says of a namespace whether it is ours to make and to remove.
	ours map[string]bool
}

func newNamespaces(t *testing.T, w *apply.Client) *namespaces {
	n := &namespaces{t: t, w: w, ours: map[string]bool{}}
	t.Cleanup(n.remove)
	return n
}

// make makes the namespaces of these objects, as the objects describe them.
func (n *namespaces) make(objects []*unstructured.Unstructured) {
	n.t.Helper()
	for _, o := range objects {
		if o.GetKind() == "Namespace" {
			n.makeOne(o)
		}
	}
	for _, o := range objects {
		if _, made := n.ours[o.GetNamespace()]; made || o.GetNamespace() == "" {
			continue
		}
		n.makeOne(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": o.GetNamespace()},
		}})
	}
}

func (n *namespaces) makeOne(o *unstructured.Unstructured) {
	n.t.Helper()
	name := o.GetName()
	if _, known := n.ours[name]; !known {
		n.ours[name] = !n.exists(name)
	}
	if !n.ours[name] {
		return
	}
	if err := n.w.Apply(n.t.Context(), o); err != nil {
		n.t.Fatal(err)
	}
}

// exists reports whether a namespace is there. One on its way out, of an earlier run, is waited for.
func (n *namespaces) exists(name string) (found bool) {
	n.t.Helper()
	err := testbed.Poll(n.t.Context(), func(ctx context.Context) (bool, error) {
		namespace, err := bed.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		found = err == nil
		return apierrors.IsNotFound(err) || found && namespace.Status.Phase != corev1.NamespaceTerminating, testbed.IgnoreNotFound(err)
	})
	if err != nil {
		n.t.Fatalf("look for namespace %s: %v", name, err)
	}
	return found
}

func (n *namespaces) remove() {
	err := testbed.Poll(context.Background(), func(ctx context.Context) (bool, error) {
		var errs []error
		for name, ours := range n.ours {
			if ours {
				errs = append(errs, testbed.IgnoreNotFound(bed.Client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})))
			}
		}
		err := errors.Join(errs...)
		return err == nil, err
	})
	if err != nil {
		n.t.Errorf("remove the namespaces: %v", err)
	}
}

// TestDryRunSeesWhatIsWrong: what the test above relies on.
func TestDryRunSeesWhatIsWrong(t *testing.T) {
	tests := map[string]struct{ reason, manifest, want string }{
		"UnknownField": {
			reason: "field validation is strict", want: ".data2",
			manifest: `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: default}, data2: {}}`,
		},
		"Invalid": {
			reason: "validation takes place", want: "spec.template.metadata.labels",
			manifest: `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: default}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: c}}, spec: {containers: [{name: c, image: i}]}}}}`,
		},
		"Warning": {
			reason: "a warning is an error", want: "warning 299: ",
			manifest: `{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: default, annotations: {seccomp.security.alpha.kubernetes.io/pod: unconfined}}, spec: {containers: [{name: c, image: i}], nodeSelector: {beta.kubernetes.io/arch: amd64}}}`,
		},
		"UnknownKind": {
			reason: "a kind without definition is an error", want: `no matches for kind "Nonsense"`,
			manifest: `{apiVersion: v1, kind: Nonsense, metadata: {name: x}}`,
		},
		"NoNamespace": {
			reason: "an object cannot be tried in a namespace that is not there", want: `namespaces "nowhere" not found`,
			manifest: `{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: nowhere}}`,
		},
	}
	w := bed.NewWriter(t)
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			objects, err := apply.Decode([]byte(tc.manifest))
			if err != nil || len(objects) != 1 {
				t.Fatalf("%d objects, %v", len(objects), err)
			}
			if err := w.DryRun(t.Context(), objects[0]); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v, want %q in it", tc.reason, err, tc.want)
			}
		})
	}
	if kinds := extensionKinds(); slices.ContainsFunc([]string{"Deployment", "ClusterRole", "Namespace"}, func(kind string) bool { return kinds[kind] != "" }) {
		t.Errorf("built-in kinds would be left out: %v", kinds)
	}
}

// TestManifestsOfAnotherInstallation: manifests can be tried on a cluster where the driver was installed from other ones.
func TestManifestsOfAnotherInstallation(t *testing.T) {
	binding := func(role string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": "e2e-dry-run"},
			"roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
		}}
	}
	driver := func(attach bool) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": map[string]any{"name": "e2e-dry-run.example.com"},
			"spec": map[string]any{"attachRequired": attach},
		}}
	}
	w := bed.NewWriter(t)
	for name, tc := range map[string]struct{ there, another *unstructured.Unstructured }{
		"ClusterRoleBinding": {binding("one"), binding("another")},
		"CSIDriver":          {driver(true), driver(false)},
	} {
		t.Run(name, func(t *testing.T) {
			if err := w.Apply(t.Context(), tc.there); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := w.Delete(context.Background(), tc.there); err != nil {
					t.Error(err)
				}
			})
			if err := w.DryRun(t.Context(), tc.another); !apierrors.IsInvalid(err) {
				t.Errorf("got %v; if it can be changed, it needs no other name", err)
			}
			if err := w.DryRun(t.Context(), renamed(t.Context(), w, tc.another)); err != nil {
				t.Error(err)
			}
			if got := renamed(t.Context(), w, tc.there).GetName(); got != tc.there.GetName() {
				t.Errorf("the same object is tried as %q", got)
			}
		})
	}
}
