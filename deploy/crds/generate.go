// Package crds generates the CustomResourceDefinitions of snapshots, group snapshots and snapshot metadata services in its directory
// snapshot: schemas, validation rules and columns of the former come from the Go types of
// github.com/kubernetes-csi/external-snapshotter/client, everything that the types do not contain is in this package, and the descriptions
// that `kubectl explain` prints are in descriptions.yaml.
//
//	cd deploy && go test ./crds -rewrite    # writes the files
package crds

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	groupv1beta1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1beta1"
	groupv1beta2 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1beta2"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"golang.org/x/tools/go/packages"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-tools/pkg/crd"
	crdmarkers "sigs.k8s.io/controller-tools/pkg/crd/markers"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// RevisionAnnotation marks the definitions of this project. Its value is a number: an installer replaces a definition only by one whose
// revision is the same or higher, and never a definition without this annotation, which belongs to the distribution.
const RevisionAnnotation = "csi.longshore.dev/crd-revision"

// revisions are fingerprints of the definitions, the oldest first. The number of a revision is its place in the list, from 1.
func revisions() []string {
	return []string{"f37c3a8c6cc6", "6d73154eb153", "6e2daea2d771"}
}

// header returns the first line of a definition.
func header(d *apiextensionsv1.CustomResourceDefinition) string {
	source := "the Go types of the snapshot API"
	if d.Spec.Group != snapshotv1.GroupName && d.Spec.Group != groupv1.GroupName {
		source = "../metadata.go"
	}
	return "# Generated from " + source + " and from ../descriptions.yaml by `go test ./crds -rewrite`. Do not edit.\n"
}

// Generate returns the definitions as YAML, by file name.
func Generate() (map[string][]byte, error) {
	definitions, err := load()
	if err != nil {
		return nil, err
	}
	definitions = append(definitions, metadataService())
	for _, d := range definitions {
		if err := complete(d); err != nil {
			return nil, fmt.Errorf("complete %s: %w", d.Name, err)
		}
	}
	texts, err := descriptions()
	if err != nil {
		return nil, err
	}
	if err := describe(definitions, texts); err != nil {
		return nil, err
	}
	files, err := encodeAll(definitions)
	if err != nil {
		return nil, err
	}
	revision, err := revisionOf(files)
	if err != nil {
		return nil, err
	}
	for _, d := range definitions {
		d.Annotations[RevisionAnnotation] = strconv.Itoa(revision)
	}
	return encodeAll(definitions)
}

// load reads the Go types, with their markers, and drops their comments.
func load() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	loaded, err := loader.LoadRoots(
		reflect.TypeFor[snapshotv1.VolumeSnapshot]().PkgPath(), reflect.TypeFor[groupv1.VolumeGroupSnapshot]().PkgPath(),
		reflect.TypeFor[groupv1beta1.VolumeGroupSnapshot]().PkgPath(), reflect.TypeFor[groupv1beta2.VolumeGroupSnapshot]().PkgPath(),
	)
	if err != nil {
		return nil, fmt.Errorf("load the Go types of the snapshot API: %w", err)
	}
	registry := &markers.Registry{}
	if err := crdmarkers.Register(registry); err != nil {
		return nil, fmt.Errorf("register the markers: %w", err)
	}
	parser := &crd.Parser{Collector: &markers.Collector{Registry: registry}, Checker: &loader.TypeChecker{NodeFilters: []loader.NodeFilter{crd.Generator{}.CheckFilter()}}}
	crd.AddKnownTypes(parser)
	for _, p := range loaded {
		parser.NeedPackage(p)
	}
	var found []*apiextensionsv1.CustomResourceDefinition
	for _, kind := range crd.FindKubeKinds(parser, crd.FindMetav1(loaded)) {
		parser.NeedCRDFor(kind, new(0))
		d := parser.CustomResourceDefinitions[kind]
		crd.FixTopLevelMetadata(d)
		found = append(found, &d)
	}
	if loader.PrintErrors(loaded, packages.TypeError) { // which every import has that the schemas do not need
		return nil, errors.New("the Go types of the snapshot API have errors")
	}
	return found, nil
}

// approvals are the reviews by which each API became one of Kubernetes, as https://github.com/kubernetes/enhancements/pull/1111 asks for.
func approvals() map[string]string {
	const (
		snapshots = "https://github.com/kubernetes-csi/external-snapshotter/pull/814"
		contents  = "https://github.com/kubernetes-csi/external-snapshotter/pull/955"
		groups    = "https://github.com/kubernetes-csi/external-snapshotter/pull/1337"
		metadata  = "https://github.com/kubernetes-csi/external-snapshot-metadata/pull/2"
	)
	return map[string]string{
		"VolumeSnapshot": snapshots, "VolumeSnapshotClass": snapshots, "VolumeSnapshotContent": contents,
		"VolumeGroupSnapshot": groups, "VolumeGroupSnapshotClass": groups, "VolumeGroupSnapshotContent": groups,
		"SnapshotMetadataService": metadata,
	}
}

// complete adds what the Go types do not contain: the version that is stored, the versions that are no longer served, the review of the
// API, the conversion, and the fields that another version has.
func complete(d *apiextensionsv1.CustomResourceDefinition) error {
	review := approvals()[d.Spec.Names.Kind]
	if review == "" {
		return fmt.Errorf("kind %s is unknown", d.Spec.Names.Kind)
	}
	d.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: review}
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	stored := "v1beta2" // so that controllers of 2025, which do not know v1, can take over again
	switch d.Spec.Names.Kind {
	case "VolumeSnapshot", "VolumeSnapshotClass", "VolumeSnapshotContent":
		stored = "v1"
		d.Spec.Versions = append(d.Spec.Versions, notServed("v1beta1"))
	case "SnapshotMetadataService":
		stored = "v1beta1"
	}
	for i := range d.Spec.Versions {
		v := &d.Spec.Versions[i]
		v.Storage = v.Name == stored
		if kind := d.Spec.Names.Kind; v.Served && (kind == "VolumeSnapshot" || kind == "VolumeGroupSnapshot") {
			v.AdditionalPrinterColumns = append(v.AdditionalPrinterColumns, errorColumns()...)
		}
	}
	switch d.Spec.Names.Kind {
	case "VolumeSnapshot": // a string in released definitions, though the Go type would take a number
		status := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"]
		size := status.Properties["restoreSize"]
		size.Type, size.AnyOf = "string", nil
		status.Properties["restoreSize"] = size
	case "VolumeGroupSnapshotContent":
		return shareStatus(d.Spec.Versions)
	}
	return nil
}

// errorColumns say in `kubectl get` what keeps an object from being ready, and since when.
func errorColumns() []apiextensionsv1.CustomResourceColumnDefinition {
	return []apiextensionsv1.CustomResourceColumnDefinition{
		{Name: "ErrorAge", Type: "date", JSONPath: ".status.error.time"}, {Name: "Error", Type: "string", JSONPath: ".status.error.message"},
	}
}

// notServed is a version of which objects may still be in etcd: the API server refuses a definition without it, and reads such objects
// as they are.
func notServed(name string) apiextensionsv1.CustomResourceDefinitionVersion {
	return apiextensionsv1.CustomResourceDefinitionVersion{
		Name: name, Deprecated: true,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}},
	}
}

// shareStatus gives each version the status fields of all others. Under the conversion strategy None the API server drops, at every read and
// write, the fields that the version of the request or of the storage does not have: volumeSnapshotHandlePairList of v1beta1 and
// volumeSnapshotInfoList, which replaced it, would get lost, and with them the handles of the snapshots of a group.
func shareStatus(versions []apiextensionsv1.CustomResourceDefinitionVersion) error {
	lists := map[string]apiextensionsv1.JSONSchemaProps{}
	for _, v := range versions {
		for _, name := range []string{"volumeSnapshotHandlePairList", "volumeSnapshotInfoList"} {
			if list, found := v.Schema.OpenAPIV3Schema.Properties["status"].Properties[name]; found {
				lists[name] = list
			}
		}
	}
	if len(lists) != 2 {
		return fmt.Errorf("found %d lists of snapshots in the versions, want 2", len(lists))
	}
	for _, v := range versions {
		for name, list := range lists {
			v.Schema.OpenAPIV3Schema.Properties["status"].Properties[name] = *list.DeepCopy()
		}
	}
	return nil
}

// revisionOf returns the revision of the definitions, which must be the last of the list: a changed definition needs a revision of its own.
func revisionOf(files map[string][]byte) (int, error) {
	hash := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		hash.Write(files[name])
	}
	all, now := revisions(), hex.EncodeToString(hash.Sum(nil))[:12]
	if slices.Index(all, now) != len(all)-1 {
		return 0, fmt.Errorf("the definitions have changed: add %q at the end of revisions in generate.go, so that installers know that they are newer", now)
	}
	return len(all), nil
}

func encodeAll(definitions []*apiextensionsv1.CustomResourceDefinition) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, d := range definitions {
		text, err := encode(d)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", d.Name, err)
		}
		files[d.Spec.Group+"_"+d.Spec.Names.Plural+".yaml"] = text
	}
	return files, nil
}

func encode(d *apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	data, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	var object map[string]any
	if err := json.Unmarshal(data, &object); err != nil {
		return nil, err
	}
	delete(object, "status")
	text, err := yaml.Marshal(object)
	return append([]byte(header(d)), text...), err
}
