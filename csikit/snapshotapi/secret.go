package snapshotapi

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/secretref"
)

// SecretKeys are the parameters of a class that name the secret of some calls.
type SecretKeys struct {
	Name, Namespace string
	// Token is what the tokens of their templates begin with: "volumesnapshot" for ${volumesnapshot.name}, ${volumesnapshot.namespace} and
	// ${volumesnapshotcontent.name}.
	Token string
}

// ClassSecret returns the secret that the parameters of a class name for a snapshot, nil for none. content is the name of its content, namespace
// and name are those of the snapshot. The namespace of the secret must not depend on the name of the snapshot, which users choose: it would
// lead to the secrets of other namespaces.
func ClassSecret(keys SecretKeys, parameters map[string]string, content, namespace, name string) (*corev1.SecretReference, error) {
	nameTemplate, hasName := parameters[keys.Name]
	namespaceTemplate, hasNamespace := parameters[keys.Namespace]
	switch {
	case !hasName && !hasNamespace:
		return nil, nil //nolint:nilnil // there is none
	case !hasName || !hasNamespace:
		return nil, fmt.Errorf("class parameters %q and %q must be given together", keys.Name, keys.Namespace)
	}
	ofNamespace := map[string]string{keys.Token + "content.name": content, keys.Token + ".namespace": namespace}
	ofName := maps.Clone(ofNamespace)
	ofName[keys.Token+".name"] = name
	return secretref.Template{Name: nameTemplate, Namespace: namespaceTemplate}.Resolve(ofName, ofNamespace)
}
