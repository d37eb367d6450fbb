package kube

import (
	"context"
	"fmt"
	"slices"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SecretData reads the secret that ref names from the server and returns its values
// as CSI wants them: strings, which must be UTF-8 (CSI spec v1.13, "Secrets
// Requirements"). No reference, no secret: the result is nil.
//
// Each call reads the secret; SecretCache is for components that make many calls with the same one. Errors never contain a value.
func SecretData(ctx context.Context, c Client, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil //nolint:nilnil // no reference means no secret, which is not an error
	}
	if ref.Name == "" || ref.Namespace == "" {
		return nil, fmt.Errorf("secret reference %q must have a namespace and a name", ref.Namespace+"/"+ref.Name)
	}
	secret, err := c.Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	data := make(map[string]string, len(secret.Data))
	var binary []string
	for key, value := range secret.Data {
		if !utf8.Valid(value) {
			binary = append(binary, key)
		}
		data[key] = string(value)
	}
	if len(binary) > 0 {
		slices.Sort(binary)
		return nil, fmt.Errorf("secret %s/%s: values of %q must be UTF-8 text", ref.Namespace, ref.Name, binary)
	}
	return data, nil
}
