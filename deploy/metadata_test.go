package deploy

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// metadataVersion is the version of SnapshotMetadataServices, whose Go types are not published where those of snapshots are.
var metadataVersion = schema.GroupVersion{Group: "cbt.storage.k8s.io", Version: "v1beta1"} //nolint:gochecknoglobals // a constant

// SnapshotMetadataService is where backup programs find csi-snapshot-metadata.
type SnapshotMetadataService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Address  string `json:"address"`
		Audience string `json:"audience"`
		CACert   []byte `json:"caCert"`
	} `json:"spec"`
}

// DeepCopyObject implements runtime.Object.
func (s *SnapshotMetadataService) DeepCopyObject() runtime.Object {
	c := *s
	s.DeepCopyInto(&c.ObjectMeta)
	c.Spec.CACert = slices.Clone(s.Spec.CACert)
	return &c
}

func addMetadataService(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(metadataVersion, &SnapshotMetadataService{})
	metav1.AddToGroupVersion(scheme, metadataVersion)
	return nil
}

// TestChartSnapshotMetadata: the service is where the object says it is, with the rights that its document lists.
func TestChartSnapshotMetadata(t *testing.T) {
	values := map[string]any{"enabled": true, "caCert": "Y2E="}
	all := manifest(mustTemplate(t, map[string]any{"snapshotMetadata": values}))
	list := decodeStrictly(t, all)
	pod := workloads(t, list)[controllerLabel]
	container := pod.container(t, "snapshot-metadata")
	service := one[*corev1.Service](t, list)
	object := one[*SnapshotMetadataService](t, list)
	if want := service.Name + "." + service.Namespace + ".svc:6443"; object.Name != driverName || object.Spec.Address != want || object.Spec.Audience != driverName || string(object.Spec.CACert) != "ca" {
		t.Errorf("%s: %+v, want address %s", object.Name, object.Spec, want)
	}
	if diff := cmp.Diff(pod.pod.Labels["app.kubernetes.io/name"], service.Spec.Selector["app.kubernetes.io/name"]); diff != "" || len(service.Spec.Selector) != 1 {
		t.Errorf("the service selects other pods: -pod +service\n%s", diff)
	}
	target := service.Spec.Ports[0].TargetPort.StrVal
	if !slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == target && p.ContainerPort == 50051 }) {
		t.Errorf("port %s is none of %+v", target, container.Ports)
	}
	if !slices.Contains(pod.container(t, driver).Args, "--enable-snapshot-metadata") {
		t.Error("the driver does not serve SnapshotMetadata")
	}
	want := rightsIn(t, examplesIn(contentOf(t, "../snapshotmetadata/docs/rbac.md"))[0])
	delete(want, "get secrets ") // unless secrets.namespaces lists some, see TestSecretsOfNamedNamespaces
	if diff := cmp.Diff(want.list(), rightsIn(t, string(all), "longshore:csi-hostpath:snapshot-metadata").list()); diff != "" || len(want) == 0 {
		t.Errorf("-docs +chart\n%s", diff)
	}
}

// TestChartWithoutSnapshotMetadata: nothing of it is there by default, nor without snapshots; and no object without the certificates that it must have.
func TestChartWithoutSnapshotMetadata(t *testing.T) {
	enabled := map[string]any{"enabled": true}
	for name, values := range map[string]map[string]any{
		"Default":     nil,
		"NoSnapshots": {"snapshots": false, "snapshotMetadata": enabled},
	} {
		if files := mustTemplate(t, values); files["snapshot-metadata.yaml"] != "" || strings.Contains(files["controller.yaml"]+files["NOTES.txt"], "snapshot-metadata") {
			t.Errorf("%s: rendered:\n%s%s", name, files["snapshot-metadata.yaml"], files["controller.yaml"])
		}
	}
	files := mustTemplate(t, map[string]any{"snapshotMetadata": enabled})
	list := decodeStrictly(t, manifest(files))
	if found := find[*SnapshotMetadataService](list); len(found) > 0 || len(find[*appsv1.Deployment](list)) == 0 {
		t.Errorf("without certificates: %+v", found)
	}
	if !strings.Contains(files["NOTES.txt"], "set snapshotMetadata.caCert, or create SnapshotMetadataService "+driverName) {
		t.Errorf("the notes:\n%s", files["NOTES.txt"])
	}
}
