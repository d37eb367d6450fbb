package topology

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// maxFlattened bounds the segments that allowedTopologies may expand to. More
// would exceed the size of a gRPC message (4 MiB by default) anyway.
const maxFlattened = 1 << 15

// Flatten expands allowedTopologies of a StorageClass to segments: terms are
// alternatives, expressions of a term are ANDed, values of an expression are
// alternatives. So (zone in z1, z2) and (rack in rA, rB) gives four segments.
// As the API says, a term without expressions selects nothing. The result is
// canonical, whatever the order of terms, expressions and values. The error wraps
// ErrInvalid.
func Flatten(terms []corev1.TopologySelectorTerm) ([]Segment, error) {
	var segments []Segment
	for i, term := range terms {
		texts, err := expand(term)
		if err != nil {
			return nil, fmt.Errorf("flatten term %d of allowedTopologies: %w", i+1, err)
		}
		if len(segments)+len(texts) > maxFlattened {
			return nil, fmt.Errorf("flatten allowedTopologies: more than %d combinations of values: %w", maxFlattened, ErrInvalid)
		}
		for _, text := range texts {
			segments = append(segments, intern([]byte(text)))
		}
	}
	return canonical(segments), nil
}

// expand returns the canonical texts of the segments that a term selects.
func expand(term corev1.TopologySelectorTerm) ([]string, error) {
	if len(term.MatchLabelExpressions) == 0 {
		return nil, nil
	}
	expressions, err := sortedExpressions(term)
	if err != nil {
		return nil, err
	}
	texts := []string{""}
	for _, e := range expressions {
		if len(texts)*len(e.Values) > maxFlattened {
			return nil, fmt.Errorf("more than %d combinations of values: %w", maxFlattened, ErrInvalid)
		}
		texts = product(texts, e)
	}
	return texts, nil
}

// sortedExpressions returns the expressions of a term, sorted by key, after
// checking what the API server checks as well.
func sortedExpressions(term corev1.TopologySelectorTerm) ([]corev1.TopologySelectorLabelRequirement, error) {
	expressions := slices.Clone(term.MatchLabelExpressions)
	slices.SortFunc(expressions, func(a, b corev1.TopologySelectorLabelRequirement) int {
		return strings.Compare(a.Key, b.Key)
	})
	for i, e := range expressions {
		if err := checkKey(e.Key); err != nil {
			return nil, err
		}
		if i > 0 && expressions[i-1].Key == e.Key {
			return nil, fmt.Errorf("key %q is repeated: %w", e.Key, ErrInvalid)
		}
		if len(e.Values) == 0 {
			return nil, fmt.Errorf("key %q has no values: %w", e.Key, ErrInvalid)
		}
		for _, value := range e.Values {
			if err := checkValue(e.Key, value); err != nil {
				return nil, err
			}
		}
	}
	return expressions, nil
}

// product appends each value of the expression to each text.
func product(texts []string, e corev1.TopologySelectorLabelRequirement) []string {
	longer := make([]string, 0, len(texts)*len(e.Values))
	for _, text := range texts {
		for _, value := range e.Values {
			longer = append(longer, string(appendPair([]byte(text), e.Key, value)))
		}
	}
	return longer
}

// Permitted reports whether allowedTopologies of a StorageClass permit a volume
// in a segment. No terms permit every segment. A term permits a segment that
// has all of its keys, each with one of the values; as the API says, a term
// without expressions permits none. [Index.Require] decides by the same rule.
func Permitted(allowedTopologies []corev1.TopologySelectorTerm, s Segment) bool {
	return len(allowedTopologies) == 0 || permits(allowedTopologies, s)
}

// permits reports whether a segment satisfies allowedTopologies: whether it lies
// within one of the flattened segments. It does so without flattening.
func permits(terms []corev1.TopologySelectorTerm, s Segment) bool {
	return slices.ContainsFunc(terms, func(term corev1.TopologySelectorTerm) bool {
		return termPermits(term, s)
	})
}

func termPermits(term corev1.TopologySelectorTerm, s Segment) bool {
	for _, e := range term.MatchLabelExpressions {
		value, ok := s.Value(e.Key)
		if !ok || !slices.Contains(e.Values, value) {
			return false
		}
	}
	return len(term.MatchLabelExpressions) > 0
}

// describe returns allowedTopologies for an error message, cut to a sensible
// length.
func describe(terms []corev1.TopologySelectorTerm) string {
	const limit = 256
	var b strings.Builder
	for i, term := range terms {
		if i > 0 {
			b.WriteString(" or ")
		}
		describeTerm(&b, term)
		if b.Len() > limit {
			return b.String()[:limit] + "..."
		}
	}
	return b.String()
}

func describeTerm(b *strings.Builder, term corev1.TopologySelectorTerm) {
	b.WriteByte('(')
	for i, e := range term.MatchLabelExpressions {
		if i > 0 {
			b.WriteString(" and ")
		}
		fmt.Fprintf(b, "%s in %s", e.Key, strings.Join(e.Values, ", "))
	}
	b.WriteByte(')')
}
