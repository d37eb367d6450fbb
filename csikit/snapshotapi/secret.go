package snapshotapi

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
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
	tokens := map[string]string{keys.Token + "content.name": content, keys.Token + ".namespace": namespace}
	secretNamespace, namespaceErr := expand(namespaceTemplate, tokens)
	if namespaceErr == nil {
		namespaceErr = valid(keys.Namespace, secretNamespace, validation.IsDNS1123Label(secretNamespace))
	}
	tokens[keys.Token+".name"] = name
	secretName, nameErr := expand(nameTemplate, tokens)
	if nameErr == nil {
		nameErr = valid(keys.Name, secretName, validation.IsDNS1123Subdomain(secretName))
	}
	if err := errors.Join(nameErr, namespaceErr); err != nil {
		return nil, err
	}
	return &corev1.SecretReference{Name: secretName, Namespace: secretNamespace}, nil
}

func valid(key, value string, complaints []string) error {
	if len(complaints) == 0 {
		return nil
	}
	return fmt.Errorf("class parameter %q gives %q: %s", key, value, strings.Join(complaints, "; "))
}

// expand replaces each ${token}.
func expand(template string, tokens map[string]string) (string, error) {
	var out strings.Builder
	for rest := template; ; {
		before, after, found := strings.Cut(rest, "${")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		token, remainder, closed := strings.Cut(after, "}")
		value, known := tokens[token]
		if !closed || !known {
			return "", fmt.Errorf("template %q: invalid tokens: [%q]; known here are %q", template, token, slices.Sorted(maps.Keys(tokens)))
		}
		out.WriteString(value)
		rest = remainder
	}
}
