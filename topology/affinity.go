package topology

import (
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// NodeAffinity returns the node affinity of a PersistentVolume whose volume is
// accessible from the given topologies (CSI v1.13, Volume.accessible_topology).
// It has Form 1 of seed 001, "Topology Representation in PersistentVolume
// Objects": one term for each distinct segment, one expression with operator
// In and exactly one value for each pair. Terms and expressions are in
// canonical order, so the same topologies give the same object in whatever
// order the driver returns them.
//
// The result is nil when there is no constraint: no topologies, or only
// topologies without segments (a node affinity without terms would match no
// node and be refused by the API server). Topologies without segments among
// others are left out: the volume is then used where the driver named a place.
//
// A malformed key or value gives an error that wraps ErrInvalid.
func NodeAffinity(accessible []*csi.Topology) (*corev1.VolumeNodeAffinity, error) {
	segments := make([]Segment, 0, len(accessible))
	for i, t := range accessible {
		segment, err := FromTopology(t)
		if err != nil {
			return nil, fmt.Errorf("make node affinity from accessible topology %d of %d: %w", i+1, len(accessible), err)
		}
		if !segment.IsEmpty() {
			segments = append(segments, segment)
		}
	}
	if len(segments) == 0 {
		return nil, nil //nolint:nilnil // nil is the API's value for "accessible from everywhere"
	}
	segments = canonical(segments)
	terms := make([]corev1.NodeSelectorTerm, 0, len(segments))
	for _, segment := range segments {
		terms = append(terms, segment.Term())
	}
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}, nil
}

// AffinitySegments returns the segments that a node affinity of Form 1 lists:
// the reverse of [NodeAffinity]. There are none when the affinity is nil or
// requires nothing. The error wraps ErrInvalid when a term has another form.
func AffinitySegments(affinity *corev1.VolumeNodeAffinity) ([]Segment, error) {
	if affinity == nil || affinity.Required == nil {
		return nil, nil
	}
	segments := make([]Segment, 0, len(affinity.Required.NodeSelectorTerms))
	for i, term := range affinity.Required.NodeSelectorTerms {
		segment, err := FromTerm(term)
		if err != nil {
			return nil, fmt.Errorf("read term %d of node affinity: %w", i+1, err)
		}
		segments = append(segments, segment)
	}
	return canonical(segments), nil
}

// Accessible reports whether a node with the given labels satisfies the node
// affinity of a PersistentVolume, of whatever form. A provisioner that runs on
// each node decides with it which volumes are its own to delete.
//
// No affinity, or one that requires nothing, is satisfied everywhere. Terms
// are alternatives; a term without expressions is satisfied nowhere. Only
// labels are known here, so a term with matchFields is not satisfied either.
// A malformed expression gives an error that wraps ErrInvalid, unless another
// term is satisfied.
func Accessible(affinity *corev1.VolumeNodeAffinity, nodeLabels map[string]string) (bool, error) {
	if affinity == nil || affinity.Required == nil {
		return true, nil
	}
	var errs []error
	for i, term := range affinity.Required.NodeSelectorTerms {
		ok, err := termMatches(term, nodeLabels)
		if err != nil {
			errs = append(errs, fmt.Errorf("match term %d of node affinity: %w", i+1, err))
		}
		if ok {
			return true, nil
		}
	}
	return false, errors.Join(errs...)
}

// termMatches evaluates one term; its expressions are ANDed.
func termMatches(term corev1.NodeSelectorTerm, nodeLabels map[string]string) (bool, error) {
	ok := len(term.MatchExpressions) > 0 && len(term.MatchFields) == 0
	for _, e := range term.MatchExpressions {
		operator, err := selectionOperator(e.Operator)
		if err != nil {
			return false, err
		}
		requirement, err := labels.NewRequirement(e.Key, operator, e.Values)
		if err != nil {
			return false, fmt.Errorf("expression on key %q: %w: %w", e.Key, err, ErrInvalid)
		}
		ok = ok && requirement.Matches(labels.Set(nodeLabels))
	}
	return ok, nil
}

// selectionOperator translates the operator of a node selector to that of a
// label selector.
func selectionOperator(op corev1.NodeSelectorOperator) (selection.Operator, error) {
	switch op {
	case corev1.NodeSelectorOpIn:
		return selection.In, nil
	case corev1.NodeSelectorOpNotIn:
		return selection.NotIn, nil
	case corev1.NodeSelectorOpExists:
		return selection.Exists, nil
	case corev1.NodeSelectorOpDoesNotExist:
		return selection.DoesNotExist, nil
	case corev1.NodeSelectorOpGt:
		return selection.GreaterThan, nil
	case corev1.NodeSelectorOpLt:
		return selection.LessThan, nil
	}
	return "", fmt.Errorf("operator %q is unknown: %w", op, ErrInvalid)
}

// canonical sorts the segments in place and drops repetitions.
func canonical(segments []Segment) []Segment {
	slices.SortFunc(segments, Segment.Compare)
	return slices.Compact(segments)
}
