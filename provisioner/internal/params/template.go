package params

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Values are the values of the tokens of a secret template.
type Values struct {
	// PVName is the name of the PersistentVolume, token ${pv.name}.
	PVName string
	// ClaimName is the name of the claim, token ${pvc.name}.
	ClaimName string
	// ClaimNamespace is the namespace of the claim, token ${pvc.namespace}.
	ClaimNamespace string
	// ClaimAnnotations are the annotations of the claim, tokens ${pvc.annotations['key']}.
	ClaimAnnotations map[string]string
}

// namespaceTokens are the tokens that may stand in a namespace: nothing that the owner of a claim can
// choose freely, lest a claim reads the secrets of another namespace.
func (v Values) namespaceTokens() map[string]string {
	return map[string]string{"pv.name": v.PVName, "pvc.namespace": v.ClaimNamespace}
}

// nameTokens are the tokens that may stand in a secret name.
func (v Values) nameTokens() map[string]string {
	tokens := v.namespaceTokens()
	tokens["pvc.name"] = v.ClaimName
	for key, value := range v.ClaimAnnotations {
		tokens["pvc.annotations['"+key+"']"] = value
	}
	return tokens
}

// resolve fills in both halves and checks that the result is a name that a secret may have.
func (t template) resolve(v Values) (*corev1.SecretReference, error) {
	namespace, nsErr := expand(t.namespace, v.namespaceTokens())
	if nsErr == nil {
		nsErr = valid("namespace", t.namespace, namespace, validation.IsDNS1123Label(namespace))
	}
	name, nameErr := expand(t.name, v.nameTokens())
	if nameErr == nil {
		nameErr = valid("name", t.name, name, validation.IsDNS1123Subdomain(name))
	}
	if err := errors.Join(nsErr, nameErr); err != nil {
		return nil, err
	}
	return &corev1.SecretReference{Name: name, Namespace: namespace}, nil
}

// valid turns the complaints of a validator into an error that shows where the value came from.
func valid(what, from, value string, complaints []string) error {
	if len(complaints) == 0 {
		return nil
	}
	return fmt.Errorf("%s template %q gives %q: %s", what, from, value, strings.Join(complaints, "; "))
}

// expand replaces every ${token}. A dollar sign which does not begin a known token is an error, for
// otherwise a typing error would select another secret than was meant.
func expand(text string, tokens map[string]string) (string, error) {
	var out strings.Builder
	for rest := text; ; {
		before, after, found := strings.Cut(rest, "$")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		token, remainder, err := cutToken(after)
		if err != nil {
			return "", fmt.Errorf("template %q: %w", text, err)
		}
		value, known := tokens[token]
		if !known {
			return "", fmt.Errorf("template %q: unknown token %q, known here are %q", text, token, slices.Sorted(maps.Keys(tokens)))
		}
		out.WriteString(value)
		rest = remainder
	}
}

// cutToken splits "{token}rest" into token and rest.
func cutToken(s string) (token, rest string, err error) {
	body, opened := strings.CutPrefix(s, "{")
	if !opened {
		return "", "", errors.New("a dollar sign must be followed by {token}")
	}
	token, rest, closed := strings.Cut(body, "}")
	if !closed {
		return "", "", errors.New("a token is not closed by }")
	}
	return token, rest, nil
}
