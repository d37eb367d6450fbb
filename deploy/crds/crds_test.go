package crds

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const directory = "snapshot"

// embedded has all definitions once more, for a module that cannot embed files of this one.
const embedded = "../../devcluster/internal/bootstrap/objects/snapshotcrds.yaml"

var rewrite = flag.Bool("rewrite", false, "write the definitions again") //nolint:gochecknoglobals // a flag of the test binary

// TestGenerated compares the committed definitions, and their copy in devcluster, with those that are generated.
func TestGenerated(t *testing.T) {
	files, err := Generate()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 7 {
		t.Errorf("%d files are generated, want one for each of 7 kinds", len(files))
	}
	for name, got := range files {
		compare(t, filepath.Join(directory, name), got)
	}
	var all [][]byte
	for _, name := range slices.Sorted(maps.Keys(files)) {
		all = append(all, files[name])
	}
	compare(t, embedded, bytes.Join(all, []byte("---\n")))
}

// compare compares a committed file with what it should have, or writes it.
func compare(t *testing.T, file string, got []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is out of date (go test ./crds -rewrite writes it): -committed +generated\n%s", file, diff)
	}
}

// TestKustomization: the directory is applied as a whole, and has nothing else.
func TestKustomization(t *testing.T) {
	result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), directory)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, object := range result.Resources() {
		plural, group, _ := strings.Cut(object.GetName(), ".")
		got = append(got, filepath.Join(directory, group+"_"+plural+".yaml"))
	}
	files, err := filepath.Glob(directory + "/*_*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if diff := cmp.Diff(files, got); diff != "" {
		t.Errorf("-files +kustomization\n%s", diff)
	}
}

// TestEachFieldIsDescribed: a field without a description is an error, and so is a description of a field that no version has.
func TestEachFieldIsDescribed(t *testing.T) {
	schema := &apiextensionsv1.JSONSchemaProps{Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"metadata": {}, "kind": {}, "apiVersion": {},
		"spec": {Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"kind": {}, // of another object
			"list": {Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Properties: map[string]apiextensionsv1.JSONSchemaProps{"name": {}}}}},
		}},
	}}
	definition := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: "K"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Schema:                   &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schema},
			AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{{JSONPath: ".spec.kind"}, {JSONPath: ".metadata.creationTimestamp"}},
		}},
	}}
	texts := map[string]string{"K": "k", "K.spec": "s", "K.spec.kind": "of the spec", "K.spec.list": "l", "K.spec.list.name": "n"}
	definitions := []*apiextensionsv1.CustomResourceDefinition{definition}
	if err := describe(definitions, texts); err != nil {
		t.Error(err)
	}
	spec := schema.Properties["spec"]
	if got := spec.Properties["list"].Items.Schema.Properties["name"].Description; got != "n" || schema.Description != "k" {
		t.Errorf("the descriptions are %q and %q", got, schema.Description)
	}
	columns := definition.Spec.Versions[0].AdditionalPrinterColumns
	if columns[0].Description != "of the spec" || columns[1].Description != "" {
		t.Errorf("the columns are %+v", columns)
	}
	delete(texts, "K.spec.list.name")
	texts["K.status"] = "gone"
	err := describe(definitions, texts)
	const want = "descriptions.yaml: K.spec.list.name is missing\ndescriptions.yaml: no version has the field K.status"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
}
