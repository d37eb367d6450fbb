package topology

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
)

// Spread says how the claims of an immediately binding class, for which no
// node is selected, are spread over the segments: for which claim names the
// requirement has preferred topologies, and so a first choice that depends on
// the name.
type Spread int

const (
	// SpreadAnyName prefers a segment by the name of the claim, whatever the
	// name is. It is the default, and what external-provisioner does.
	SpreadAnyName Spread = iota

	// SpreadStatefulSets prefers a segment only for claims whose name ends in
	// an ordinal, as those of a StatefulSet do, and none for others. It is
	// what seed 001 asks for, with its feature flag on.
	SpreadStatefulSets

	// SpreadOff never prefers a segment. It is what seed 001 asks for, with
	// its feature flag off: the driver is free to choose among the requisite
	// topologies.
	SpreadOff
)

// String returns the text form: "any-name", "statefulsets" or "off".
func (s Spread) String() string {
	switch s {
	case SpreadAnyName:
		return "any-name"
	case SpreadStatefulSets:
		return "statefulsets"
	case SpreadOff:
		return "off"
	}
	return fmt.Sprintf("Spread(%d)", int(s))
}

// MarshalText returns the text form, or an error that wraps ErrInvalid. With
// UnmarshalText it makes Spread a value for flag.TextVar.
func (s Spread) MarshalText() ([]byte, error) {
	if s < SpreadAnyName || s > SpreadOff {
		return nil, fmt.Errorf("spread mode %d is unknown: %w", int(s), ErrInvalid)
	}
	return []byte(s.String()), nil
}

// UnmarshalText sets the mode from its text form, or returns an error that
// wraps ErrInvalid.
func (s *Spread) UnmarshalText(text []byte) error {
	for _, mode := range []Spread{SpreadAnyName, SpreadStatefulSets, SpreadOff} {
		if string(text) == mode.String() {
			*s = mode
			return nil
		}
	}
	return fmt.Errorf("spread mode %q is none of %q, %q, %q: %w",
		text, SpreadAnyName, SpreadStatefulSets, SpreadOff, ErrInvalid)
}

// prefers reports whether claims of this name get preferred topologies.
func (s Spread) prefers(claimName string) bool {
	_, _, ok := splitOrdinal(claimName)
	return s == SpreadAnyName || s == SpreadStatefulSets && ok
}

// spreadIndex picks one of n > 0 places by the name of a claim. The claims of
// one StatefulSet go round all places in the order of their ordinals, and all
// claims of one replica get the same place, so that a pod with two volumes can
// be scheduled at all.
//
// The number is the same as that of the GCE PD provisioner and of
// external-provisioner, so volumes stay spread when a StatefulSet is scaled
// after an upgrade: FNV-1 (32 bit) of the base name, plus the ordinal, modulo
// 2^32, modulo n.
func spreadIndex(claimName string, n int) int {
	base, ordinal, ok := splitOrdinal(claimName)
	if !ok {
		base = claimName
	}
	hash := fnv.New32()
	_, _ = hash.Write([]byte(base)) // a hash never fails
	return int((hash.Sum32() + ordinal) % uint32(n))
}

// splitOrdinal splits the name of a StatefulSet's claim, which is
// <template>-<set>-<ordinal>, into what its replicas share and the ordinal.
// As a set's name and a template's may both have dashes, only the part after
// the last dash before the ordinal counts as the base. Names of the form
// <name>-<ordinal> are taken alike. ok is false when the name does not end in
// a dash and a decimal number below 2^32.
func splitOrdinal(claimName string) (base string, ordinal uint32, ok bool) {
	dash := strings.LastIndexByte(claimName, '-')
	if dash < 0 {
		return "", 0, false
	}
	number, err := strconv.ParseUint(claimName[dash+1:], 10, 32)
	if err != nil {
		return "", 0, false
	}
	prefix := claimName[:dash]
	return prefix[strings.LastIndexByte(prefix, '-')+1:], uint32(number), true
}
