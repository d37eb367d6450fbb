// Package secretref fills in the references to secrets in the parameters of StorageClasses and VolumeSnapshotClasses: pairs of templates, in which ${token} stands
// for the name of an object, for instance.
package secretref

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Template is a reference in which tokens may still stand.
type Template struct{ Name, Namespace string }

// Resolve replaces the tokens in the name, and in the namespace, by their values, and returns an error that names the template for an unknown token, and for a
// result that no secret can have as its name. The tokens of a namespace must have no value that users choose, who could reach into other namespaces.
func (t Template) Resolve(name, namespace map[string]string) (*corev1.SecretReference, error) {
	ref := &corev1.SecretReference{}
	var nameErr, namespaceErr error
	if ref.Namespace, namespaceErr = expand(t.Namespace, namespace); namespaceErr == nil {
		namespaceErr = valid("namespace", t.Namespace, ref.Namespace, validation.IsDNS1123Label(ref.Namespace))
	}
	if ref.Name, nameErr = expand(t.Name, name); nameErr == nil {
		nameErr = valid("name", t.Name, ref.Name, validation.IsDNS1123Subdomain(ref.Name))
	}
	if err := errors.Join(namespaceErr, nameErr); err != nil {
		return nil, err
	}
	return ref, nil
}

// valid turns the complaints of a validator into an error that shows where the value came from.
func valid(what, template, value string, complaints []string) error {
	if len(complaints) == 0 {
		return nil
	}
	return fmt.Errorf("%s template %q gives %q: %s", what, template, value, strings.Join(complaints, "; "))
}

// expand replaces each ${token}; values are not expanded again.
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
