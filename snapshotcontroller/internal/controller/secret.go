package controller

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// secretKeys are the parameters of a class that name the secret of a call, and how the tokens of their templates begin.
type secretKeys struct{ name, namespace, content, snapshot string }

func snapshotSecretKeys() secretKeys {
	return secretKeys{snapshotapi.ParamSecretName, snapshotapi.ParamSecretNamespace, "volumesnapshotcontent", "volumesnapshot"}
}

func groupSecretKeys() secretKeys {
	return secretKeys{snapshotapi.ParamGroupSecretName, snapshotapi.ParamGroupSecretNamespace, "volumegroupsnapshotcontent", "volumegroupsnapshot"}
}

// secretParameters returns the parameters of a class that name secrets; no other is read.
func secretParameters(parameters map[string]string) map[string]string {
	var kept map[string]string
	for _, keys := range []secretKeys{snapshotSecretKeys(), groupSecretKeys()} {
		for _, key := range []string{keys.name, keys.namespace} {
			if value, ok := parameters[key]; ok {
				if kept == nil {
					kept = map[string]string{}
				}
				kept[key] = value
			}
		}
	}
	return kept
}

// secretOf returns the secret that a class names for a snapshot, nil for none. Its namespace must not depend on the name of the
// snapshot, which users choose: it would lead to the secrets of other namespaces.
func secretOf(keys secretKeys, parameters map[string]string, contentName, namespace, name string) (*corev1.SecretReference, error) {
	nameTemplate, hasName := parameters[keys.name]
	namespaceTemplate, hasNamespace := parameters[keys.namespace]
	switch {
	case !hasName && !hasNamespace:
		return nil, nil //nolint:nilnil // there is none
	case !hasName || !hasNamespace:
		return nil, fmt.Errorf("class parameters %q and %q must be given together", keys.name, keys.namespace)
	}
	tokens := map[string]string{keys.content + ".name": contentName, keys.snapshot + ".namespace": namespace}
	secretNamespace, namespaceErr := expand(namespaceTemplate, tokens)
	if namespaceErr == nil {
		namespaceErr = valid(keys.namespace, secretNamespace, validation.IsDNS1123Label(secretNamespace))
	}
	tokens[keys.snapshot+".name"] = name
	secretName, nameErr := expand(nameTemplate, tokens)
	if nameErr == nil {
		nameErr = valid(keys.name, secretName, validation.IsDNS1123Subdomain(secretName))
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
