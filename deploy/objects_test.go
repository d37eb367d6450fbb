package deploy

import (
	"fmt"
	"testing"

	volumegroupsnapshotv1beta2 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1beta2"
	volumesnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"
)

const (
	controllerLabel = "csi.longshore.dev/controller"
	nodeLabel       = "csi.longshore.dev/node"
)

// workload is what runs the pods of one side, whatever its kind.
type workload struct {
	metav1.Object
	kind     string
	replicas int32
	pod      corev1.PodTemplateSpec
	selector *metav1.LabelSelector
}

func (w workload) container(t *testing.T, name string) corev1.Container {
	t.Helper()
	for _, c := range w.pod.Spec.Containers {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("%s %s has no container %s", w.kind, w.GetName(), name)
	return corev1.Container{}
}

func (w workload) volume(t *testing.T, name string) corev1.Volume {
	t.Helper()
	for _, v := range w.pod.Spec.Volumes {
		if v.Name == name {
			return v
		}
	}
	t.Fatalf("%s %s has no volume %s", w.kind, w.GetName(), name)
	return corev1.Volume{}
}

// objects decodes a rendered overlay.
func objects(t *testing.T, overlay string) []runtime.Object {
	t.Helper()
	return decodeStrictly(t, render(t, overlay))
}

// decodeStrictly decodes objects of the types that they name: an unknown or doubled field is an error, as is a kind that nobody expects.
func decodeStrictly(t *testing.T, text []byte) []runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistrationv1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, monitoringv1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme,
		rbacv1.AddToScheme, addMetadataService, storagev1.AddToScheme, volumegroupsnapshotv1beta2.AddToScheme, volumesnapshotv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var list []runtime.Object
	for i, doc := range documents(t, text) {
		object, _, err := decoder.Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("document %d: %v\n%s", i, err, doc)
		}
		list = append(list, object)
	}
	return list
}

func documents(t *testing.T, text []byte) [][]byte {
	t.Helper()
	var docs [][]byte
	for _, doc := range splitDocuments(text) {
		json, err := yaml.YAMLToJSONStrict(doc)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, json)
	}
	return docs
}

// workloads gives the workload of each side by its label.
func workloads(t *testing.T, list []runtime.Object) map[string]workload {
	t.Helper()
	found := map[string]workload{}
	for _, object := range list {
		w, ok := asWorkload(object)
		if !ok {
			continue
		}
		for _, side := range []string{controllerLabel, nodeLabel} {
			if w.GetLabels()[side] == "" {
				continue
			}
			if other, twice := found[side]; twice {
				t.Fatalf("%s and %s are both labelled %s", other.GetName(), w.GetName(), side)
			}
			found[side] = w
		}
	}
	if len(found) != 2 {
		t.Fatalf("found %d sides, want the controller and the node side", len(found))
	}
	return found
}

// allWorkloads gives the workloads of both sides, and the snapshot-controller's.
func allWorkloads(list []runtime.Object) (all []workload) {
	for _, object := range list {
		if w, ok := asWorkload(object); ok {
			all = append(all, w)
		}
	}
	return all
}

func asWorkload(object runtime.Object) (workload, bool) {
	switch o := object.(type) {
	case *appsv1.StatefulSet:
		return workload{o, "StatefulSet", *o.Spec.Replicas, o.Spec.Template, o.Spec.Selector}, true
	case *appsv1.Deployment:
		return workload{o, "Deployment", *o.Spec.Replicas, o.Spec.Template, o.Spec.Selector}, true
	case *appsv1.DaemonSet:
		return workload{o, "DaemonSet", 0, o.Spec.Template, o.Spec.Selector}, true
	}
	return workload{}, false
}

func find[T runtime.Object](list []runtime.Object) (found []T) {
	for _, object := range list {
		if o, ok := object.(T); ok {
			found = append(found, o)
		}
	}
	return found
}

func one[T runtime.Object](t *testing.T, list []runtime.Object) T {
	t.Helper()
	found := find[T](list)
	if len(found) != 1 {
		t.Fatalf("found %d of %s, want 1", len(found), fmt.Sprintf("%T", *new(T)))
	}
	return found[0]
}
