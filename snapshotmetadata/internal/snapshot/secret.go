package snapshot

import (
	"fmt"
	"os"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// annotated returns the secret that the annotations of a content name; nil: none. They are what the snapshot controller has made of the class
// when it created the content.
func annotated(content *snapshotv1.VolumeSnapshotContent) (*corev1.SecretReference, error) {
	name, hasName := content.Annotations[snapshotapi.AnnDeletionSecretName]
	namespace, hasNamespace := content.Annotations[snapshotapi.AnnDeletionSecretNamespace]
	switch {
	case !hasName && !hasNamespace:
		return nil, nil //nolint:nilnil // no reference means no secret, which is not an error
	case name == "" || namespace == "":
		return nil, fmt.Errorf("VolumeSnapshotContent %q: annotations %s and %s must both name a secret, or be absent",
			content.Name, snapshotapi.AnnDeletionSecretName, snapshotapi.AnnDeletionSecretNamespace)
	}
	return &corev1.SecretReference{Name: name, Namespace: namespace}, nil
}

// parameterized returns the secret that the parameters of a class name for a content; nil: none.
func parameterized(class *snapshotv1.VolumeSnapshotClass, content *snapshotv1.VolumeSnapshotContent) (*corev1.SecretReference, error) {
	name, hasName := class.Parameters[snapshotapi.ParamSecretName]
	namespace, hasNamespace := class.Parameters[snapshotapi.ParamSecretNamespace]
	switch {
	case !hasName && !hasNamespace:
		return nil, nil //nolint:nilnil // no reference means no secret, which is not an error
	case hasName != hasNamespace:
		return nil, fmt.Errorf("VolumeSnapshotClass %q must have both or none of the parameters %s and %s",
			class.Name, snapshotapi.ParamSecretName, snapshotapi.ParamSecretNamespace)
	}
	of := content.Spec.VolumeSnapshotRef
	// The name of a VolumeSnapshot is its user's choice, so that it is allowed in the name of the secret only.
	tokens := map[string]string{"volumesnapshotcontent.name": content.Name, "volumesnapshot.namespace": of.Namespace}
	ref := &corev1.SecretReference{}
	var err error
	if ref.Namespace, err = resolve(namespace, tokens, validation.IsDNS1123Label); err != nil {
		return nil, fmt.Errorf("parameter %s of VolumeSnapshotClass %q: %w", snapshotapi.ParamSecretNamespace, class.Name, err)
	}
	tokens["volumesnapshot.name"] = of.Name
	if ref.Name, err = resolve(name, tokens, validation.IsDNS1123Subdomain); err != nil {
		return nil, fmt.Errorf("parameter %s of VolumeSnapshotClass %q: %w", snapshotapi.ParamSecretName, class.Name, err)
	}
	return ref, nil
}

// resolve replaces each ${token} of a template, whose result must be valid.
func resolve(template string, tokens map[string]string, broken func(string) []string) (string, error) {
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
	if rules := broken(resolved); len(rules) > 0 {
		return "", fmt.Errorf("%q is not a valid name: %s", resolved, strings.Join(rules, "; "))
	}
	return resolved, nil
}
