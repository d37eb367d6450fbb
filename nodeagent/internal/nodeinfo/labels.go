package nodeinfo

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
)

// Collision says what to do when a topology label of the Node has another
// value than the driver reports.
type Collision string

const (
	// CollisionFail refuses the driver, as the kubelet does.
	CollisionFail Collision = "fail"
	// CollisionOverwrite replaces values that this package wrote itself, and
	// refuses the driver otherwise. What it wrote is recorded in the annotation
	// LabelsAnnotation.
	CollisionOverwrite Collision = "overwrite"
)

// LabelsAnnotation records on the Node, as a JSON map, the topology labels
// that were written under CollisionOverwrite.
const LabelsAnnotation = "csi.longshore.dev/topology-labels"

// ErrCollision is returned for a driver whose topology contradicts a label of
// the Node.
var ErrCollision = errors.New("detected topology value collision")

// labelChange is what to write for the topology of one driver.
type labelChange struct {
	set map[string]string
	// record is the new value of LabelsAnnotation, nil for no change.
	record *string
}

// planLabels compares the labels of a Node with a driver's topology. Labels
// that the topology does not name stay unchanged, also stale ones: volumes may
// still refer to them.
func planLabels(labels map[string]string, record string, topology map[string]string, policy Collision) (labelChange, error) {
	change := labelChange{set: map[string]string{}}
	ours := map[string]string{}
	if policy == CollisionOverwrite {
		ours = parseMap(record)
	}
	before := maps.Clone(ours)
	var errs []error
	for _, key := range sortedKeys(topology) {
		want := topology[key]
		have, exists := labels[key]
		switch {
		case exists && have == want:
			continue
		case exists && (ours[key] != have || policy != CollisionOverwrite):
			errs = append(errs, fmt.Errorf("%w: label %q is %q on the node, and %q for the driver", ErrCollision, key, have, want))
			continue
		}
		change.set[key], ours[key] = want, want
	}
	if policy == CollisionOverwrite && !maps.Equal(before, ours) {
		text := formatMap(ours)
		change.record = &text
	}
	return change, errors.Join(errs...)
}

// parseMap reads a JSON map of strings. What cannot be read is empty: the
// annotations of this package are repaired, not honoured.
func parseMap(text string) map[string]string {
	parsed := map[string]string{}
	if json.Unmarshal([]byte(text), &parsed) != nil || parsed == nil {
		return map[string]string{}
	}
	return parsed
}

// formatMap writes a JSON map with sorted keys.
func formatMap(m map[string]string) string {
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // a map of strings always has a JSON form
	}
	return string(text)
}

// restricted returns the topology keys that the API server lets no node set on
// itself (admission plugin NodeRestriction), to explain a refusal.
func restricted(topology map[string]string) []string {
	var keys []string
	for _, key := range sortedKeys(topology) {
		domain, _, ok := strings.Cut(key, "/")
		if !ok || allowedLabel(key, domain) {
			continue
		}
		if inDomain(domain, "kubernetes.io") || inDomain(domain, "k8s.io") {
			keys = append(keys, key)
		}
	}
	return keys
}

// allowedLabel reports whether NodeRestriction lets a node set key, although
// its domain is reserved.
func allowedLabel(key, domain string) bool {
	switch key {
	case "kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch",
		"beta.kubernetes.io/os", "beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type",
		"topology.kubernetes.io/zone", "topology.kubernetes.io/region",
		"failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region":
		return true
	}
	return inDomain(domain, "kubelet.kubernetes.io") || inDomain(domain, "node.kubernetes.io")
}

func inDomain(name, domain string) bool {
	return name == domain || strings.HasSuffix(name, "."+domain)
}
