package integration

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	snapshotGroup = "snapshot.storage.k8s.io"
	groupGroup    = "groupsnapshot.storage.k8s.io"
	metadataGroup = "cbt.storage.k8s.io"
	contentCRD    = "volumegroupsnapshotcontents." + groupGroup
	// metadataService is a SnapshotMetadataService of any version.
	metadataService = "{spec: {address: 'a:1', audience: backup, caCert: eA==}}"
	// pairs are the snapshots of a group as v1beta1 has them, infos as v1beta2 and v1 have them.
	pairs = "volumeSnapshotHandlePairList: [{volumeHandle: vol-1, snapshotHandle: snap-1}, {volumeHandle: vol-2, snapshotHandle: snap-2}]"
	infos = "volumeSnapshotInfoList: [{volumeHandle: vol-1, snapshotHandle: snap-1, creationTime: 1735689600000000000, readyToUse: true, restoreSize: 1024}]"
)

// oldObject is one of a cluster that is upgraded.
type oldObject struct {
	of             schema.GroupVersionResource
	fields, status string
}

func beta(group, resource, fields, status string) oldObject {
	return oldObject{schema.GroupVersionResource{Group: group, Version: "v1beta1", Resource: resource}, fields, status}
}

func oldObjects() []oldObject {
	return []oldObject{
		beta(snapshotGroup, "volumesnapshots", "{spec: {source: {persistentVolumeClaimName: data}}}", "{boundVolumeSnapshotContentName: content, readyToUse: true, restoreSize: 1Gi, creationTime: '2025-01-01T00:00:00Z', error: {message: m, time: '2025-01-01T00:00:00Z'}}"),
		beta(snapshotGroup, "volumesnapshotcontents", "{spec: {deletionPolicy: Delete, driver: d, source: {snapshotHandle: snap}, volumeSnapshotRef: {name: old, namespace: default, uid: u}, volumeSnapshotClassName: class}}", "{snapshotHandle: snap, readyToUse: true, restoreSize: 1024, creationTime: 1735689600000000000}"),
		beta(groupGroup, "volumegroupsnapshots", "{spec: {source: {selector: {matchLabels: {a: b}}}, volumeGroupSnapshotClassName: class}}", "{boundVolumeGroupSnapshotContentName: content, readyToUse: true, creationTime: '2025-01-01T00:00:00Z'}"),
		beta(groupGroup, "volumegroupsnapshotcontents", "{spec: {deletionPolicy: Delete, driver: d, source: {volumeHandles: [vol-1, vol-2]}, volumeGroupSnapshotClassName: class, volumeGroupSnapshotRef: {name: old, namespace: default, uid: u, kind: VolumeGroupSnapshot}}}", "{volumeGroupSnapshotHandle: group, readyToUse: true, creationTime: '2025-01-01T00:00:00Z', "+pairs+"}"),
		beta(groupGroup, "volumegroupsnapshotclasses", "{driver: d, deletionPolicy: Delete, parameters: {a: b}}", ""),
	}
}

// TestUpgradeFromV1beta1 upgrades a cluster with objects of 2024: v1beta1 was stored. Each object is read in each version, and written.
func TestUpgradeFromV1beta1(t *testing.T) {
	s := newCRDServer(t)
	s.install(t, decodeFile(t, "testdata/crds-2024.yaml"))
	before := map[string]map[string]any{}
	for _, old := range oldObjects() {
		made, err := s.create(t, old.of, "old", old.fields, old.status)
		if err != nil {
			t.Fatal(err)
		}
		before[old.of.Resource] = content(made)
	}

	s.install(t, snapshotCRDs(t))
	s.unchanged(t, before, "after the upgrade")
	for _, version := range []string{"v1beta1", "v1beta2", "v1"} {
		for _, of := range s.served(t, version) {
			object, err := s.in(of).Get(t.Context(), "old", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			s.write(t, of, object)
			s.unchanged(t, before, "after an update as "+of.String())
		}
	}

	contents := schema.GroupVersionResource{Group: groupGroup, Version: "v1", Resource: "volumegroupsnapshotcontents"}
	migrated, err := s.patch(t, contents, "old", "{status: {"+infos+"}}", "status")
	if err != nil {
		t.Fatal(err)
	}
	lists := content(migrated)["status"].(map[string]any)
	if lists["volumeSnapshotHandlePairList"] == nil || lists["volumeSnapshotInfoList"] == nil {
		t.Errorf("a list is missing: %v", lists)
	}
	before[contents.Resource] = content(migrated)
	s.unchanged(t, before, "after a controller has migrated the handles")
	contents.Version = "v1beta1"
	object, err := s.in(contents).Get(t.Context(), "old", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, contents, object)
	s.unchanged(t, before, "after a write by a program that knows v1beta1")
	s.storedVersions(t, "v1beta1", "v1beta2")
	s.forget(t)
	s.storedVersions(t, "v1beta2")
	s.unchanged(t, before, "after v1beta1 is no longer stored")
}

// TestUpgradeFromWebhook upgrades a cluster of 2025: v1beta2 was stored, and v1beta1 was converted by a webhook, which does not know v1.
func TestUpgradeFromWebhook(t *testing.T) {
	s := newCRDServer(t)
	if err := s.writer(t).Apply(t.Context(), decodeFile(t, "testdata/crds-2025.yaml")...); err != nil {
		t.Fatal(err)
	}
	contents := schema.GroupVersionResource{Group: groupGroup, Version: "v1beta2", Resource: "volumegroupsnapshotcontents"}
	eventually(t, "v1beta2 is served", func(ctx context.Context) string {
		if _, err := s.in(contents).List(ctx, metav1.ListOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	old := oldObjects()[3]
	made, err := s.create(t, contents, "old", old.fields, "{volumeGroupSnapshotHandle: group, "+infos+"}")
	if err != nil {
		t.Fatal(err)
	}
	// What README.md has for definitions of others.
	if _, err := s.patch(t, crdResource, contentCRD, "{spec: {conversion: {strategy: None, webhook: null}}}"); err != nil {
		t.Fatal(err)
	}
	s.install(t, snapshotCRDs(t))
	before := map[string]map[string]any{contents.Resource: content(made)}
	s.unchanged(t, before, "after the upgrade")
	for _, version := range []string{"v1beta1", "v1"} {
		contents.Version = version
		object, err := s.in(contents).Get(t.Context(), "old", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.write(t, contents, object)
		s.unchanged(t, before, "after an update as "+version)
	}
	s.storedVersions(t, "v1beta2")
}

// TestUpgradeOfMetadataServices upgrades a cluster of 2025, which stored v1alpha1: the object is there in both versions.
func TestUpgradeOfMetadataServices(t *testing.T) {
	s := newCRDServer(t)
	services := schema.GroupVersionResource{Group: metadataGroup, Version: "v1alpha1", Resource: "snapshotmetadataservices"}
	old := snapshotCRDs(t)
	old = old[slices.IndexFunc(old, func(d *unstructured.Unstructured) bool { return d.GetName() == services.Resource+"."+metadataGroup }):][:1]
	alpha := versionsOf(t, old[0])["v1alpha1"]
	alpha["storage"] = true
	delete(alpha, "deprecated")
	delete(alpha, "deprecationWarning")
	if err := unstructured.SetNestedSlice(old[0].Object, []any{alpha}, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
	s.install(t, old)
	made, err := s.create(t, services, "old", metadataService, "")
	if err != nil {
		t.Fatal(err)
	}
	s.install(t, snapshotCRDs(t))
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		services.Version = version
		got, err := s.in(services).Get(t.Context(), "old", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(content(made), content(got)); diff != "" {
			t.Errorf("%s: -was +is\n%s", version, diff)
		}
		s.write(t, services, got)
	}
}

// served are the resources of a version.
func (s *crdServer) served(t *testing.T, version string) (all []schema.GroupVersionResource) {
	t.Helper()
	for _, d := range snapshotCRDs(t) {
		for _, of := range resources(t, d) {
			if of.Version == version && of.Group != metadataGroup && of.Resource != "volumesnapshotclasses" { // 2024 had none that matters
				all = append(all, of)
			}
		}
	}
	return all
}

// content is what users and controllers write of an object.
func content(object *unstructured.Unstructured) map[string]any {
	all := maps.Clone(object.DeepCopy().Object)
	delete(all, "metadata")
	delete(all, "apiVersion")
	return all
}

// unchanged compares the objects, in each version, with what they were.
func (s *crdServer) unchanged(t *testing.T, want map[string]map[string]any, when string) {
	t.Helper()
	for _, version := range []string{"v1beta1", "v1beta2", "v1"} {
		for _, of := range s.served(t, version) {
			if want[of.Resource] == nil {
				continue
			}
			got, err := s.in(of).Get(t.Context(), "old", metav1.GetOptions{})
			if err != nil {
				t.Fatalf("%s: %s: %v", when, of, err)
			}
			if diff := cmp.Diff(want[of.Resource], content(got)); diff != "" {
				t.Errorf("%s: %s: -was +is\n%s", when, of, diff)
			}
		}
	}
}

// write puts the object with a label, and its status with an annotation that the subresource ignores.
func (s *crdServer) write(t *testing.T, of schema.GroupVersionResource, object *unstructured.Unstructured) {
	t.Helper()
	object.SetLabels(map[string]string{"written-as": of.Version})
	updated, err := s.in(of).Update(t.Context(), object, metav1.UpdateOptions{FieldValidation: "Strict"})
	if err != nil {
		t.Fatalf("update %s: %v", of, err)
	}
	if object.Object["status"] == nil {
		return
	}
	if _, err := s.in(of).UpdateStatus(t.Context(), updated, metav1.UpdateOptions{FieldValidation: "Strict"}); err != nil {
		t.Fatalf("update the status of %s: %v", of, err)
	}
}

func (s *crdServer) storedVersions(t *testing.T, want ...string) {
	t.Helper()
	got, err := s.dynamic.Resource(crdResource).Get(t.Context(), contentCRD, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stored, _, _ := unstructured.NestedStringSlice(got.Object, "status", "storedVersions")
	slices.Sort(stored)
	if diff := cmp.Diff(want, stored); diff != "" {
		t.Errorf("stored versions: -want +got\n%s", diff)
	}
}

// forget removes v1beta1 from the stored versions, as README.md says, when all objects have been written.
func (s *crdServer) forget(t *testing.T) {
	t.Helper()
	if _, err := s.patch(t, crdResource, contentCRD, "{status: {storedVersions: [v1beta2]}}", "status"); err != nil {
		t.Fatal(err)
	}
}
