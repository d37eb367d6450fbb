package controller

import (
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// class is what a VolumeSnapshotClass or a VolumeGroupSnapshotClass says.
type class struct {
	driver     string
	parameters map[string]string
	// annotations are those that the cache keeps.
	annotations map[string]string
}

// reservedParameters are the keys with snapshotapi.ParamPrefix that a class may have. The driver does not get them.
func reservedParameters() []string {
	return []string{
		snapshotapi.ParamSecretName, snapshotapi.ParamSecretNamespace,
		snapshotapi.ParamListSecretName, snapshotapi.ParamListSecretNamespace,
		snapshotapi.ParamGroupSecretName, snapshotapi.ParamGroupSecretNamespace,
		snapshotapi.ParamGroupGetSecretName, snapshotapi.ParamGroupGetSecretNamespace,
	}
}

// driverParameters returns the parameters of a class that the driver gets and, if metadata asks for them, the names of the objects.
func driverParameters(n names, r record, c class, metadata bool) (map[string]string, error) {
	parameters := map[string]string{}
	for key, value := range c.parameters {
		switch {
		case slices.Contains(reservedParameters(), key):
		case strings.HasPrefix(key, snapshotapi.ParamPrefix):
			return nil, fmt.Errorf("found unknown parameter key %q with reserved namespace %s in %s %q; correct or remove it",
				key, strings.TrimSuffix(snapshotapi.ParamPrefix, "/"), n.classKind, r.class)
		default:
			parameters[key] = value
		}
	}
	if metadata {
		parameters[n.metaName], parameters[n.metaNamespace], parameters[n.metaContent] = r.ref.Name, r.ref.Namespace, r.name
	}
	return parameters, nil
}

// writeSecret returns the secret of calls that create and delete: the annotations name it. nil: none.
func writeSecret(n names, r record) (*corev1.SecretReference, error) {
	ref := &corev1.SecretReference{Name: r.annotations[n.secretName], Namespace: r.annotations[n.secretNamespace]}
	switch {
	case !r.has(n.secretName) && !r.has(n.secretNamespace):
		return nil, nil //nolint:nilnil // no reference means no secret, which is not an error
	case ref.Name == "" || ref.Namespace == "":
		return nil, fmt.Errorf("annotations %s and %s must both name a secret, or be absent", n.secretName, n.secretNamespace)
	}
	return ref, nil
}

// readSecret returns the secret of calls that read: that of the class, and for a member of a group that of its annotations. Where the class names
// none, it is the one with which the snapshot was made, as for the external-snapshotter, which asks by CreateSnapshot. nil: none.
func readSecret(n names, r record, c class) (*corev1.SecretReference, error) {
	if r.member {
		return writeSecret(n, r)
	}
	name, namespace := c.parameters[n.readSecretName], c.parameters[n.readSecretNamespace]
	_, hasName := c.parameters[n.readSecretName]
	_, hasNamespace := c.parameters[n.readSecretNamespace]
	if !hasName && !hasNamespace {
		if len(r.volumes) > 0 {
			return writeSecret(n, r)
		}
		return nil, nil //nolint:nilnil // no reference means no secret, which is not an error
	}
	if hasName != hasNamespace {
		return nil, fmt.Errorf("%s %q must have both or none of the parameters %s and %s", n.classKind, r.class, n.readSecretName, n.readSecretNamespace)
	}
	// The name of a VolumeSnapshot is its user's choice, so that it is allowed in the name of the secret only.
	tokens := map[string]string{n.token + "content.name": r.name, n.token + ".namespace": r.ref.Namespace}
	resolvedNamespace, err := resolve(namespace, tokens)
	if err == nil {
		err = invalid(validation.IsDNS1123Label(resolvedNamespace), resolvedNamespace)
	}
	if err != nil {
		return nil, fmt.Errorf("parameter %s of %s %q: %w", n.readSecretNamespace, n.classKind, r.class, err)
	}
	tokens[n.token+".name"] = r.ref.Name
	resolvedName, err := resolve(name, tokens)
	if err == nil {
		err = invalid(validation.IsDNS1123Subdomain(resolvedName), resolvedName)
	}
	if err != nil {
		return nil, fmt.Errorf("parameter %s of %s %q: %w", n.readSecretName, n.classKind, r.class, err)
	}
	return &corev1.SecretReference{Name: resolvedName, Namespace: resolvedNamespace}, nil
}

// resolve replaces ${token} in a template.
func resolve(template string, tokens map[string]string) (string, error) {
	var unknown []string
	resolved := os.Expand(template, func(token string) string {
		value, ok := tokens[token]
		if !ok {
			unknown = append(unknown, token)
		}
		return value
	})
	if len(unknown) > 0 {
		return "", fmt.Errorf("%q: invalid tokens: %q", template, unknown)
	}
	return resolved, nil
}

// invalid returns the error of a name that breaks rules.
func invalid(broken []string, name string) error {
	if len(broken) == 0 {
		return nil
	}
	return fmt.Errorf("%q is not a valid name: %s", name, strings.Join(broken, "; "))
}
