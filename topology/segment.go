package topology

import (
	"iter"
	"strings"
	"unique"
)

const (
	pairSeparator  = "," // between two pairs of a segment's text
	valueSeparator = "=" // between the key and the value of a pair
)

// Segment is one place of a cluster: an immutable set of key=value pairs such
// as zone=a,rack=1. It is what the CSI specification v1.13 calls a Topology
// (message Topology), and what is a handful of labels on a Node.
//
// Segments are canonical and interned: two segments with the same pairs are
// equal by ==, whatever they were made from. A Segment is as large as a
// pointer and makes a good map key. Keys and values are always valid label
// keys and values. The zero Segment has no pairs; a volume in it is
// accessible from everywhere.
type Segment struct {
	// handle interns the text form. The empty set is always the zero handle.
	handle unique.Handle[string]
}

// intern returns the segment with the given canonical text.
func intern(text []byte) Segment {
	if len(text) == 0 {
		return Segment{}
	}
	return Segment{handle: unique.Make(string(text))}
}

// IsEmpty reports whether the segment has no pairs.
func (s Segment) IsEmpty() bool {
	return s == Segment{}
}

// Len returns the number of pairs.
func (s Segment) Len() int {
	return textLen(s.String())
}

// String returns the canonical text, for instance "rack=1,zone=a": the pairs
// in the order of their keys. [Parse] reads it.
func (s Segment) String() string {
	if s.IsEmpty() {
		return ""
	}
	return s.handle.Value()
}

// MarshalText returns the text of String; it never fails.
func (s Segment) MarshalText() ([]byte, error) {
	return []byte(s.String()), nil
}

// UnmarshalText sets the segment from the text form. The error wraps
// ErrInvalid.
func (s *Segment) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}

// All iterates over the pairs in the order of their keys.
func (s Segment) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for rest := s.String(); rest != ""; {
			var key, value string
			key, value, rest = cutPair(rest)
			if !yield(key, value) {
				return
			}
		}
	}
}

// Keys returns the keys in order.
func (s Segment) Keys() []string {
	keys := make([]string, 0, s.Len())
	for key := range s.All() {
		keys = append(keys, key)
	}
	return keys
}

// Value returns the value of key, and whether the segment has that key.
func (s Segment) Value(key string) (value string, ok bool) {
	for k, v := range s.All() {
		if k == key {
			return v, true
		}
	}
	return "", false
}

// Map returns the pairs as a new map, nil when there are none.
func (s Segment) Map() map[string]string {
	if s.IsEmpty() {
		return nil
	}
	pairs := make(map[string]string, s.Len())
	for key, value := range s.All() {
		pairs[key] = value
	}
	return pairs
}

// Within reports whether s lies within outer: whether each pair of outer is a
// pair of s as well. Every segment lies within itself and within the empty
// one. For instance zone=a,rack=1 lies within zone=a.
func (s Segment) Within(outer Segment) bool {
	if s == outer {
		return true
	}
	rest := s.String()
	for key, value := range outer.All() {
		var found bool
		if rest, found = skipTo(rest, key, value); !found {
			return false
		}
	}
	return true
}

// Matches reports whether labels have all pairs of the segment.
func (s Segment) Matches(labels map[string]string) bool {
	for key, value := range s.All() {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// Compare orders segments: fewer pairs first, then by the first pair that
// differs, its key before its value. The result is -1, 0 or +1. The order is
// part of the API: it is the order of Requisite in a requirement.
func (s Segment) Compare(other Segment) int {
	if s == other {
		return 0
	}
	a, b := s.String(), other.String()
	if lenA, lenB := textLen(a), textLen(b); lenA != lenB {
		return sign(lenA - lenB)
	}
	for a != "" {
		var keyA, keyB, valueA, valueB string
		keyA, valueA, a = cutPair(a)
		keyB, valueB, b = cutPair(b)
		if c := strings.Compare(keyA, keyB); c != 0 {
			return c
		}
		if c := strings.Compare(valueA, valueB); c != 0 {
			return c
		}
	}
	return 0
}

// textLen returns the number of pairs in a canonical text.
func textLen(text string) int {
	if text == "" {
		return 0
	}
	return strings.Count(text, pairSeparator) + 1
}

// cutPair splits the first pair off a canonical text that is not empty.
func cutPair(text string) (key, value, rest string) {
	pair, rest, _ := strings.Cut(text, pairSeparator)
	key, value, _ = strings.Cut(pair, valueSeparator)
	return key, value, rest
}

// skipTo drops the pairs up to and including key=value from a canonical text.
// It relies on the order of the keys to stop early.
func skipTo(text, key, value string) (rest string, found bool) {
	for text != "" {
		var k, v string
		k, v, text = cutPair(text)
		if k >= key {
			return text, k == key && v == value
		}
	}
	return "", false
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return +1
	}
	return 0
}

// appendPair appends key=value to a canonical text.
func appendPair(text []byte, key, value string) []byte {
	if len(text) > 0 {
		text = append(text, pairSeparator...)
	}
	text = append(text, key...)
	text = append(text, valueSeparator...)
	return append(text, value...)
}
