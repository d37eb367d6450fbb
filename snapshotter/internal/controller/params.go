package controller

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

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
	_, hasName := c.parameters[n.readSecretName]
	_, hasNamespace := c.parameters[n.readSecretNamespace]
	if !hasName && !hasNamespace {
		if len(r.volumes) > 0 {
			return writeSecret(n, r)
		}
		return nil, nil //nolint:nilnil // no reference means no secret, which is not an error
	}
	ref, err := snapshotapi.ClassSecret(snapshotapi.SecretKeys{Name: n.readSecretName, Namespace: n.readSecretNamespace, Token: n.token}, c.parameters, r.name, r.ref.Namespace, r.ref.Name)
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", n.classKind, r.class, err)
	}
	return ref, nil
}
