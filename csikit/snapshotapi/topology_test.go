package snapshotapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

func TestAllowedTopologies(t *testing.T) {
	zones := []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"a", "b"}}}}}
	for _, text := range []string{
		`[{"matchLabelExpressions":[{"key":"zone","values":["a","b"]}]}]`,
		"- matchLabelExpressions:\n  - key: zone\n    values: [a, b]\n",
	} {
		got, err := snapshotapi.AllowedTopologies(map[string]string{snapshotapi.AnnAllowedTopologies: text})
		if diff := cmp.Diff(zones, got); err != nil || diff != "" {
			t.Errorf("%s: %v, -want +got\n%s", text, err, diff)
		}
	}
	if got, err := snapshotapi.AllowedTopologies(nil); got != nil || err != nil {
		t.Errorf("without annotation: %v, %v", got, err)
	}
	for _, text := range []string{"zone", `[{"matchLabels":{}}]`} {
		if _, err := snapshotapi.AllowedTopologies(map[string]string{snapshotapi.AnnAllowedTopologies: text}); err == nil || !strings.Contains(err.Error(), snapshotapi.AnnAllowedTopologies) {
			t.Errorf("%q: got %v, want an error that names the annotation", text, err)
		}
	}
}

func TestAccessibleTopology(t *testing.T) {
	accessible := []map[string]string{{"zone": "b", "rack": "1"}, {"zone": "a"}}
	text := snapshotapi.FormatAccessibleTopology(accessible)
	if want := `[{"rack":"1","zone":"b"},{"zone":"a"}]`; text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	got, err := snapshotapi.AccessibleTopology(map[string]string{snapshotapi.AnnAccessibleTopology: text})
	if diff := cmp.Diff(accessible, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got\n%s", err, diff)
	}
	if got, err := snapshotapi.AccessibleTopology(nil); got != nil || err != nil {
		t.Errorf("without annotation: %v, %v", got, err)
	}
	if _, err := snapshotapi.AccessibleTopology(map[string]string{snapshotapi.AnnAccessibleTopology: "zone-a"}); err == nil || !strings.Contains(err.Error(), snapshotapi.AnnAccessibleTopology) {
		t.Errorf("got %v, want an error that names the annotation", err)
	}
	if text := snapshotapi.FormatAccessibleTopology(nil); text != "" {
		t.Errorf("of nothing: %q", text)
	}
}
