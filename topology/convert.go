package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
)

// NewSegment returns the segment of the given pairs. Keys must be valid label
// keys and values valid label values, as the API server demands it of labels
// and node selectors; otherwise the error wraps ErrInvalid and names the key
// or value and the rule. The map is neither kept nor changed.
func NewSegment(pairs map[string]string) (Segment, error) {
	var text []byte
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		if err := checkPair(key, pairs[key]); err != nil {
			return Segment{}, err
		}
		text = appendPair(text, key, pairs[key])
	}
	return intern(text), nil
}

// FromTopology returns the segment of a CSI topology; nil means no pairs.
// Errors are those of [NewSegment].
func FromTopology(t *csi.Topology) (Segment, error) {
	return NewSegment(t.GetSegments())
}

// FromLabels returns the segment that the given keys have in labels. The order
// of keys does not matter, nor do repetitions. The error wraps ErrMissingLabel
// and names the keys that are no labels, or ErrInvalid.
func FromLabels(labels map[string]string, keys []string) (Segment, error) {
	if missing := missingKeys(labels, keys); len(missing) > 0 {
		return Segment{}, fmt.Errorf("look up topology keys in labels: no label %s: %w",
			quoted(missing), ErrMissingLabel)
	}
	pairs := make(map[string]string, len(keys))
	for _, key := range keys {
		pairs[key] = labels[key]
	}
	return NewSegment(pairs)
}

// FromTerm returns the segment that a node selector term of Form 1 (see
// [NodeAffinity]) describes. A term with fields, with an operator other than
// In, with more or less than one value, or with a repeated key is no segment:
// the error wraps ErrInvalid.
func FromTerm(term corev1.NodeSelectorTerm) (Segment, error) {
	if len(term.MatchFields) > 0 {
		return Segment{}, fmt.Errorf("read segment from node selector term: it has matchFields: %w", ErrInvalid)
	}
	pairs := make(map[string]string, len(term.MatchExpressions))
	for _, e := range term.MatchExpressions {
		if e.Operator != corev1.NodeSelectorOpIn || len(e.Values) != 1 {
			return Segment{}, fmt.Errorf("read segment from node selector term: key %q has operator %q and %d values, want %q and 1: %w",
				e.Key, e.Operator, len(e.Values), corev1.NodeSelectorOpIn, ErrInvalid)
		}
		if _, repeated := pairs[e.Key]; repeated {
			return Segment{}, fmt.Errorf("read segment from node selector term: key %q is repeated: %w", e.Key, ErrInvalid)
		}
		pairs[e.Key] = e.Values[0]
	}
	return NewSegment(pairs)
}

// Parse reads the text form of a segment, for instance "rack=1,zone=a". The
// pairs may come in any order. The error wraps ErrInvalid.
func Parse(text string) (Segment, error) {
	if text == "" {
		return Segment{}, nil
	}
	pairs := make(map[string]string, textLen(text))
	for pair := range strings.SplitSeq(text, pairSeparator) {
		key, value, ok := strings.Cut(pair, valueSeparator)
		if !ok {
			return Segment{}, fmt.Errorf("parse segment %q: pair %q has no %q: %w", text, pair, valueSeparator, ErrInvalid)
		}
		if _, repeated := pairs[key]; repeated {
			return Segment{}, fmt.Errorf("parse segment %q: key %q is repeated: %w", text, key, ErrInvalid)
		}
		pairs[key] = value
	}
	return NewSegment(pairs)
}

// Topology returns the segment as a new CSI message.
func (s Segment) Topology() *csi.Topology {
	return &csi.Topology{Segments: s.Map()}
}

// Term returns the segment as a node selector term of Form 1 (see
// [NodeAffinity]): one expression for each pair, in the order of the keys,
// with operator In and exactly one value.
func (s Segment) Term() corev1.NodeSelectorTerm {
	expressions := make([]corev1.NodeSelectorRequirement, 0, s.Len())
	for key, value := range s.All() {
		expressions = append(expressions, corev1.NodeSelectorRequirement{
			Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value},
		})
	}
	return corev1.NodeSelectorTerm{MatchExpressions: expressions}
}

// checkPair returns an error unless key and value may be a label.
func checkPair(key, value string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	return checkValue(key, value)
}

func checkKey(key string) error {
	if rules := content.IsLabelKey(key); len(rules) > 0 {
		return fmt.Errorf("topology key %q is no label key: %s: %w", key, strings.Join(rules, "; "), ErrInvalid)
	}
	return nil
}

func checkValue(key, value string) error {
	if rules := content.IsLabelValue(value); len(rules) > 0 {
		return fmt.Errorf("value %q of topology key %q is no label value: %s: %w",
			value, key, strings.Join(rules, "; "), ErrInvalid)
	}
	return nil
}

// missingKeys returns the keys that are no labels, sorted and without
// repetitions.
func missingKeys(labels map[string]string, keys []string) []string {
	var missing []string
	for _, key := range keys {
		if _, ok := labels[key]; !ok {
			missing = append(missing, key)
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

// quoted returns the items in quotes, separated by commas.
func quoted(items []string) string {
	return `"` + strings.Join(items, `", "`) + `"`
}
