package snapshotapi_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// TestNodeLabel has a label for each name that a node may have, of up to 253 characters (S16).
func TestNodeLabel(t *testing.T) {
	t.Parallel()
	domain := strings.Repeat("abcdefghi.", 25) + "xyz"
	names := []string{
		"node-1", strings.Repeat("x", 63), strings.Repeat("x", 64), domain, domain[:252] + "y",
		strings.Repeat("a", 46) + ".example.com-and-so-on", strings.Repeat("a", 45) + ".example.com-and-so-on",
	}
	of := map[string]string{}
	for _, name := range names {
		label := snapshotapi.NodeLabel(name)
		if broken := validation.IsValidLabelValue(label); len(broken) > 0 {
			t.Errorf("%q gives %q, which is no label: %v", name, label, broken)
		}
		if len(name) <= 63 && label != name {
			t.Errorf("%q gives %q, want the name", name, label)
		}
		if other, ok := of[label]; ok {
			t.Errorf("%q and %q give the same label", name, other)
		}
		of[label] = name
	}
}
