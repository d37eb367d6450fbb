package crds

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// metadataService returns the definition of SnapshotMetadataServices (KEP-3314), whose Go types are not published where those of snapshots are.
// Schemas and names are those of external-snapshot-metadata v1.1; the columns are ours. v1alpha1 has the same fields, and is served for clusters
// and programs of 2025.
func metadataService() *apiextensionsv1.CustomResourceDefinition {
	const group = "cbt.storage.k8s.io"
	names := apiextensionsv1.CustomResourceDefinitionNames{
		Kind: "SnapshotMetadataService", ListKind: "SnapshotMetadataServiceList", Plural: "snapshotmetadataservices", Singular: "snapshotmetadataservice",
		ShortNames: []string{"sms"},
	}
	beta := metadataVersion("v1beta1")
	alpha := metadataVersion("v1alpha1")
	alpha.Deprecated, alpha.DeprecationWarning = true, new(group+"/v1alpha1 is deprecated; use "+group+"/v1beta1.")
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: names.Plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Names: names, Scope: apiextensionsv1.ClusterScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{beta, alpha},
		},
	}
}

func metadataVersion(name string) apiextensionsv1.CustomResourceDefinitionVersion {
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	return apiextensionsv1.CustomResourceDefinitionVersion{
		Name: name, Served: true,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object", Required: []string{"spec"},
			Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"apiVersion": text, "kind": text, "metadata": {Type: "object"},
				"spec": {
					Type: "object", Required: []string{"address", "audience", "caCert"},
					Properties: map[string]apiextensionsv1.JSONSchemaProps{"address": text, "audience": text, "caCert": {Type: "string", Format: "byte"}},
				},
			},
		}},
		AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
			{Name: "Address", Type: "string", JSONPath: ".spec.address"},
			{Name: "Audience", Type: "string", JSONPath: ".spec.audience"},
			{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"},
		},
	}
}
