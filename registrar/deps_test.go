package registrar

import (
	"testing"

	"github.com/longshore-csi/longshore/csikittest/commandtest"
)

// TestDependencies keeps the binary small: a registrar runs on each node, once
// per driver, and needs no Kubernetes API.
func TestDependencies(t *testing.T) {
	commandtest.Links(t, "./cmd/csi-node-driver-registrar", map[string]string{
		"k8s.io/client-go":         "there is no API server to talk to",
		"k8s.io/api":               "no API object is read or written",
		"k8s.io/apimachinery":      "no API object is read or written",
		"k8s.io/component-base":    "flags and logs come from csikit",
		"github.com/spf13/cobra":   "the flag package of Go suffices",
		"github.com/gogo/protobuf": "the registration API uses the present protobuf module",
		"testing":                  "its flags would show up in --help",
		"go.opentelemetry.io":      "nobody traces it",
		"github.com/longshore-csi/longshore/csikittest": "it is for tests",
	})
}
