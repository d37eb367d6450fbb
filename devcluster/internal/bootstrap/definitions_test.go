package bootstrap

import (
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/devcluster/apply"
)

// TestDefinitionsOfSnapshots are complete, and nothing in them is a placeholder of the driver.
func TestDefinitionsOfSnapshots(t *testing.T) {
	definitions, err := Driver{}.embedded("snapshotcrds.yaml")
	if err != nil || len(definitions) != 7 {
		t.Fatalf("%d definitions, %v", len(definitions), err)
	}
	for _, d := range definitions {
		if d.GetKind() != "CustomResourceDefinition" || !strings.HasSuffix(d.GetName(), ".storage.k8s.io") {
			t.Errorf("%s", apply.Name(d))
		}
	}
}

func TestEstablished(t *testing.T) {
	tests := map[string]struct {
		reason, status string
		want           bool
	}{
		"New":         {reason: "the API server has not looked at it yet", status: "{}"},
		"Established": {reason: "it is served", status: "{conditions: [{type: NamesAccepted, status: 'True'}, {type: Established, status: 'True'}]}", want: true},
		"NotYet":      {reason: "another condition is true", status: "{conditions: [{type: NamesAccepted, status: 'True'}, {type: Established, status: 'False'}]}"},
		"Malformed":   {reason: "what no API server writes", status: "{conditions: [x]}"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			list, err := apply.Decode([]byte("{kind: CustomResourceDefinition, status: " + tc.status + "}"))
			if err != nil {
				t.Fatal(err)
			}
			if got := established(list[0]); got != tc.want {
				t.Errorf("%s: got %v", tc.reason, got)
			}
		})
	}
}
