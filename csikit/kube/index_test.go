package kube

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestIndex moves objects between values at random, and compares with what was asked for.
func TestIndex(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0)) //nolint:gosec // a test wants to be repeated
	x := newIndex[*corev1.Pod](nil)
	want := map[string][]string{} // values by key
	for range 10_000 {
		key := fmt.Sprint("ns/", random.IntN(6))
		var values []string
		for value := range 4 {
			if random.IntN(3) == 0 {
				values = append(values, fmt.Sprint(value))
			}
		}
		x.move(key, want[key], values)
		want[key] = values
		for value := range 4 {
			value := fmt.Sprint(value)
			var keys []string
			for key, values := range want {
				if slices.Contains(values, value) {
					keys = append(keys, key)
				}
			}
			got := x.keys(value)
			slices.Sort(keys)
			slices.Sort(got)
			if !slices.Equal(got, keys) {
				t.Fatalf("value %s: keys %q, want %q", value, got, keys)
			}
		}
	}
	for key, values := range want {
		x.move(key, values, nil)
	}
	if len(x.one) > 0 || len(x.many) > 0 {
		t.Errorf("left over: %v, %v", x.one, x.many)
	}
}
