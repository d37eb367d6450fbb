package crds

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:embed descriptions.yaml
var descriptionsFile []byte

// descriptions returns the description of each kind and field, by path, such as VolumeSnapshot.spec.source.
func descriptions() (texts map[string]string, err error) {
	if err = yaml.UnmarshalStrict(descriptionsFile, &texts); err != nil {
		return nil, fmt.Errorf("read descriptions.yaml: %w", err)
	}
	return texts, nil
}

// describe writes the descriptions into the schemas and the columns. The error lists every field without a description, and every
// description without a field.
func describe(definitions []*apiextensionsv1.CustomResourceDefinition, texts map[string]string) error {
	d := describer{texts: texts, used: map[string]bool{}}
	for _, definition := range definitions {
		kind := definition.Spec.Names.Kind
		for i := range definition.Spec.Versions {
			version := &definition.Spec.Versions[i]
			schema := version.Schema.OpenAPIV3Schema
			schema.Description = d.text(kind)
			d.fields(kind, schema)
			for j := range version.AdditionalPrinterColumns {
				column := &version.AdditionalPrinterColumns[j]
				column.Description = texts[kind+column.JSONPath] // none for the age, a field of all kinds
			}
		}
	}
	for path := range texts {
		if !d.used[path] {
			d.errs = append(d.errs, fmt.Errorf("descriptions.yaml: no version has the field %s", path))
		}
	}
	slices.SortFunc(d.errs, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(slices.CompactFunc(d.errs, func(a, b error) bool { return a.Error() == b.Error() })...)
}

type describer struct {
	texts map[string]string
	used  map[string]bool
	errs  []error
}

func (d *describer) text(path string) string {
	text, found := d.texts[path]
	if !found || text == "" {
		d.errs = append(d.errs, fmt.Errorf("descriptions.yaml: %s is missing", path))
	}
	d.used[path] = true
	return text
}

// fields describes the fields of an object, or of the objects in a list. The API server has descriptions of its own for the fields of all kinds.
func (d *describer) fields(path string, of *apiextensionsv1.JSONSchemaProps) {
	for name, field := range of.Properties {
		if top := !strings.Contains(path, "."); top && slices.Contains([]string{"apiVersion", "kind", "metadata"}, name) {
			continue
		}
		field.Description = d.text(path + "." + name)
		d.fields(path+"."+name, &field)
		if field.Items != nil && field.Items.Schema != nil {
			d.fields(path+"."+name, field.Items.Schema)
		}
		of.Properties[name] = field
	}
}
