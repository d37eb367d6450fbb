package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/devcluster/apply"
)

// crdDirectory has the CustomResourceDefinitions of snapshots, and the script that installs them.
const crdDirectory = "../../../deploy/crds"

// crdServer is an API server of its own: there is one set of definitions in a cluster.
type crdServer struct {
	*controlPlane
	dynamic dynamic.Interface
	core    rest.Interface
}

func newCRDServer(t *testing.T) *crdServer {
	t.Helper()
	c := ownServer(t, "")
	config := configOf(t, c.dir.Kubeconfig())
	config.WarningHandler = rest.NoWarnings{} // of v1beta1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &crdServer{controlPlane: c, dynamic: client, core: clientOf(t, config).CoreV1().RESTClient()}
}

func (s *crdServer) writer(t *testing.T) *apply.Client {
	t.Helper()
	return newClient(t, apply.Config{REST: configOf(t, s.dir.Kubeconfig()), Manager: "tests", Strict: true})
}

// snapshotCRDs are the committed definitions.
func snapshotCRDs(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob(crdDirectory + "/snapshot/*_*.yaml")
	if err != nil || len(files) != 7 {
		t.Fatalf("found %q, %v", files, err)
	}
	var all []*unstructured.Unstructured
	for _, file := range files {
		all = append(all, decodeFile(t, file)...)
	}
	return all
}

func decodeFile(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, string(data))
}

// install applies definitions and waits until their versions are served.
func (s *crdServer) install(t *testing.T, definitions []*unstructured.Unstructured) {
	t.Helper()
	if err := s.writer(t).Apply(t.Context(), definitions...); err != nil {
		t.Fatal(err)
	}
	for _, d := range definitions {
		for _, of := range resources(t, d) {
			eventually(t, of.String()+" is served", func(ctx context.Context) string {
				if _, err := s.dynamic.Resource(of).List(ctx, metav1.ListOptions{}); err != nil {
					return err.Error()
				}
				return ""
			})
		}
	}
}

// versionsOf are the versions in a definition, by name.
func versionsOf(t *testing.T, definition *unstructured.Unstructured) map[string]map[string]any {
	t.Helper()
	list, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]map[string]any{}
	for _, v := range list {
		v := v.(map[string]any)
		versions[v["name"].(string)] = v
	}
	return versions
}

// resources are those that a definition serves.
func resources(t *testing.T, definition *unstructured.Unstructured) (served []schema.GroupVersionResource) {
	t.Helper()
	plural, group, _ := strings.Cut(definition.GetName(), ".")
	versions := versionsOf(t, definition)
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		if versions[name]["served"] == true {
			served = append(served, schema.GroupVersionResource{Group: group, Version: name, Resource: plural})
		}
	}
	return served
}

// in is where the objects of a resource are that tests make.
func (s *crdServer) in(of schema.GroupVersionResource) dynamic.ResourceInterface {
	if of.Resource == "volumesnapshots" || of.Resource == "volumegroupsnapshots" {
		return s.dynamic.Resource(of).Namespace("default")
	}
	return s.dynamic.Resource(of)
}

// create makes an object from its fields in YAML, without those that all objects have, and gives it a status.
func (s *crdServer) create(t *testing.T, of schema.GroupVersionResource, name, fields, status string) (*unstructured.Unstructured, error) {
	t.Helper()
	object := decode(t, fields)[0]
	object.SetAPIVersion(of.GroupVersion().String())
	object.SetKind(kinds()[of.Resource])
	object.SetName(name)
	made, err := s.in(of).Create(t.Context(), object, metav1.CreateOptions{FieldValidation: "Strict"})
	if err != nil || status == "" {
		return made, err
	}
	return s.patch(t, of, name, "{status: "+status+"}", "status")
}

// patch changes an object by a merge patch in YAML.
func (s *crdServer) patch(t *testing.T, of schema.GroupVersionResource, name, fields string, subresources ...string) (*unstructured.Unstructured, error) {
	t.Helper()
	data, err := json.Marshal(decode(t, fields)[0])
	if err != nil {
		t.Fatal(err)
	}
	return s.in(of).Patch(t.Context(), name, types.MergePatchType, data, metav1.PatchOptions{FieldValidation: "Strict"}, subresources...)
}

// kinds are those of the resources.
func kinds() map[string]string {
	return map[string]string{
		"volumesnapshots": "VolumeSnapshot", "volumesnapshotcontents": "VolumeSnapshotContent", "volumesnapshotclasses": "VolumeSnapshotClass",
		"volumegroupsnapshots": "VolumeGroupSnapshot", "volumegroupsnapshotcontents": "VolumeGroupSnapshotContent", "volumegroupsnapshotclasses": "VolumeGroupSnapshotClass",
		"snapshotmetadataservices": "SnapshotMetadataService",
	}
}

// TestSnapshotCRDs installs the definitions and looks at what the API server does with objects.
func TestSnapshotCRDs(t *testing.T) {
	s := newCRDServer(t)
	if err := s.writer(t).DryRun(t.Context(), snapshotCRDs(t)...); err != nil {
		t.Fatal(err)
	}
	s.install(t, snapshotCRDs(t))
	t.Run("AreApproved", s.areApproved)
	t.Run("Names", s.names)
	t.Run("Columns", s.columns)
	t.Run("Rules", s.rules)
	t.Run("Values", s.values)
}

// areApproved: definitions of *.k8s.io without the review of their API are not served everywhere.
func (s *crdServer) areApproved(t *testing.T) {
	for _, d := range snapshotCRDs(t) {
		eventually(t, d.GetName()+" is complete", func(ctx context.Context) string {
			got, err := s.dynamic.Resource(crdResource).Get(ctx, d.GetName(), metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			conditions, _, _ := unstructured.NestedSlice(got.Object, "status", "conditions")
			met := map[any]any{}
			for _, c := range conditions {
				met[c.(map[string]any)["type"]] = c.(map[string]any)["status"]
			}
			return cmp.Diff(map[any]any{"NamesAccepted": "True", "Established": "True", "KubernetesAPIApprovalPolicyConformant": "True"}, met)
		})
	}
}

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// names: what a user types, and which version kubectl prefers.
func (s *crdServer) names(t *testing.T) {
	got := map[string]string{}
	for _, group := range []string{"snapshot.storage.k8s.io/v1", "groupsnapshot.storage.k8s.io/v1", "cbt.storage.k8s.io/v1beta1"} {
		var list metav1.APIResourceList
		data, err := s.core.Get().AbsPath("/apis/" + group).DoRaw(t.Context())
		if err == nil {
			err = json.Unmarshal(data, &list)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			got[r.Name] = strings.Join(append([]string{r.Kind, r.SingularName, fmt.Sprint(r.Namespaced)}, r.ShortNames...), " ")
		}
	}
	want := map[string]string{
		"volumesnapshots": "VolumeSnapshot volumesnapshot true vs", "volumesnapshots/status": "VolumeSnapshot  true",
		"volumesnapshotcontents": "VolumeSnapshotContent volumesnapshotcontent false vsc vscs", "volumesnapshotcontents/status": "VolumeSnapshotContent  false",
		"volumesnapshotclasses": "VolumeSnapshotClass volumesnapshotclass false vsclass vsclasses",
		"volumegroupsnapshots":  "VolumeGroupSnapshot volumegroupsnapshot true vgs", "volumegroupsnapshots/status": "VolumeGroupSnapshot  true",
		"volumegroupsnapshotcontents": "VolumeGroupSnapshotContent volumegroupsnapshotcontent false vgsc vgscs", "volumegroupsnapshotcontents/status": "VolumeGroupSnapshotContent  false",
		"volumegroupsnapshotclasses": "VolumeGroupSnapshotClass volumegroupsnapshotclass false vgsclass vgsclasses",
		"snapshotmetadataservices":   "SnapshotMetadataService snapshotmetadataservice false sms",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// columns: what `kubectl get` prints of an object, in each version.
func (s *crdServer) columns(t *testing.T) {
	const failed = "error: {message: no space, time: '2025-01-02T00:00:00Z'}"
	const snapshotStatus = "{readyToUse: true, restoreSize: 1Gi, boundVolumeSnapshotContentName: content, creationTime: '2025-01-01T00:00:00Z', " + failed + "}"
	for resource, tc := range map[string]struct{ fields, status, want string }{
		"volumesnapshots": {
			"{spec: {source: {persistentVolumeClaimName: data}, volumeSnapshotClassName: class}}", snapshotStatus,
			"Name=columns ReadyToUse=true SourcePVC=data SourceSnapshotContent=<nil> RestoreSize=1Gi SnapshotClass=class SnapshotContent=content CreationTime:date Age:date ErrorAge:date Error=no space",
		},
		"volumesnapshotcontents": {
			"{spec: {driver: d, deletionPolicy: Delete, source: {volumeHandle: vol}, volumeSnapshotClassName: class, volumeSnapshotRef: {name: snap, namespace: space}}}", "{readyToUse: true, restoreSize: 1024}",
			"Name=columns ReadyToUse=true RestoreSize=1024 DeletionPolicy=Delete Driver=d VolumeSnapshotClass=class VolumeSnapshot=snap VolumeSnapshotNamespace=space Age:date",
		},
		"volumesnapshotclasses": {"{driver: d, deletionPolicy: Retain}", "", "Name=columns Driver=d DeletionPolicy=Retain Age:date"},
		"volumegroupsnapshots": {
			"{spec: {source: {selector: {matchLabels: {a: b}}}, volumeGroupSnapshotClassName: class}}", "{readyToUse: true, boundVolumeGroupSnapshotContentName: content, creationTime: '2025-01-01T00:00:00Z', " + failed + "}",
			"Name=columns ReadyToUse=true VolumeGroupSnapshotClass=class VolumeGroupSnapshotContent=content CreationTime:date Age:date ErrorAge:date Error=no space",
		},
		"volumegroupsnapshotcontents": {
			"{spec: {driver: d, deletionPolicy: Delete, source: {volumeHandles: [vol]}, volumeGroupSnapshotClassName: class, volumeGroupSnapshotRef: {name: snap, namespace: space}}}", "{readyToUse: true}",
			"Name=columns ReadyToUse=true DeletionPolicy=Delete Driver=d VolumeGroupSnapshotClass=class VolumeGroupSnapshotNamespace=space VolumeGroupSnapshot=snap Age:date",
		},
		"volumegroupsnapshotclasses": {"{driver: d, deletionPolicy: Retain}", "", "Name=columns Driver=d DeletionPolicy=Retain Age:date"},
		"snapshotmetadataservices":   {metadataService, "", "Name=columns Address=a:1 Audience=backup Age:date"},
	} {
		made := false
		for _, d := range snapshotCRDs(t) {
			for _, of := range resources(t, d) {
				if of.Resource != resource {
					continue
				}
				if !made {
					if _, err := s.create(t, of, "columns", tc.fields, tc.status); err != nil {
						t.Fatal(err)
					}
					made = true
				}
				if diff := cmp.Diff(tc.want, s.table(t, of)); diff != "" {
					t.Errorf("%s: -want +got\n%s", of, diff)
				}
			}
		}
	}
}

// table is the one row that the API server prints, with the names of the columns. Dates are ages, which change.
func (s *crdServer) table(t *testing.T, of schema.GroupVersionResource) string {
	t.Helper()
	var table metav1.Table
	data, err := s.core.Get().AbsPath("/apis", of.Group, of.Version, of.Resource).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err == nil {
		err = json.Unmarshal(data, &table)
	}
	if err != nil || len(table.Rows) != 1 {
		t.Fatalf("%s: %d rows, %v", of, len(table.Rows), err)
	}
	var row []string
	for i, column := range table.ColumnDefinitions {
		if column.Type == "date" {
			row = append(row, column.Name+":date")
		} else {
			row = append(row, fmt.Sprintf("%s=%v", column.Name, table.Rows[0].Cells[i]))
		}
	}
	return strings.Join(row, " ")
}

// values: those that the schemas refuse.
func (s *crdServer) values(t *testing.T) {
	contents := schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotcontents"}
	classes := schema.GroupVersionResource{Group: "groupsnapshot.storage.k8s.io", Version: "v1", Resource: "volumegroupsnapshotclasses"}
	for name, tc := range map[string]struct {
		reason         string
		of             schema.GroupVersionResource
		fields, status string
		want           string
	}{
		"policy": {
			reason: "there are two policies", of: classes, fields: "{driver: d, deletionPolicy: Recycle}",
			want: `deletionPolicy: Unsupported value: "Recycle": supported values: "Delete", "Retain"`,
		},
		"driver": {reason: "a class without a driver", of: classes, fields: "{deletionPolicy: Retain}", want: "driver: Required value"},
		"size": {
			reason: "a size is not negative", of: contents, status: "{restoreSize: -1}",
			fields: "{spec: {driver: d, deletionPolicy: Delete, source: {volumeHandle: vol}, volumeSnapshotRef: {name: snap, namespace: space}}}",
			want:   "status.restoreSize: Invalid value: -1: restoreSize in body should be greater than or equal to 0",
		},
	} {
		_, err := s.create(t, tc.of, name, tc.fields, tc.status)
		if !slices.Contains(complaints(err), tc.want) {
			t.Errorf("%s: got %q, want %q", tc.reason, complaints(err), tc.want)
		}
	}
}

// complaints are what the API server has against an object, as "field: text".
func complaints(err error) (all []string) {
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Details == nil {
		return []string{fmt.Sprint(err)}
	}
	for _, cause := range status.Status().Details.Causes {
		all = append(all, cause.Field+": "+cause.Message)
	}
	return all
}
