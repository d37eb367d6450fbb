package nodeinfo

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/longshore-csi/longshore/csikit/drivername"
)

// maxNodeID is the limit of the CSI spec (v1.13, "NodeGetInfo") and of the API, in bytes.
const maxNodeID = 256

// Driver is what a driver says about this node.
type Driver struct {
	// Name of the driver.
	Name string
	// NodeID is the node as the driver knows it; never empty.
	NodeID string
	// Topology is the node's segment. Its keys become topologyKeys, its pairs
	// become labels of the Node.
	Topology map[string]string
	// MaxVolumes is how many volumes the node can publish; 0 and below: unknown.
	MaxVolumes int64
}

// FromNodeInfo puts a driver's NodeGetInfo reply into our terms and checks it
// by the rules of the API, all of them at once.
func FromNodeInfo(name string, reply *csi.NodeGetInfoResponse) (Driver, error) {
	d := Driver{
		Name:       name,
		NodeID:     reply.GetNodeId(),
		Topology:   reply.GetAccessibleTopology().GetSegments(),
		MaxVolumes: reply.GetMaxVolumesPerNode(),
	}
	return d, d.validate()
}

func (d Driver) validate() error {
	errs := []error{drivername.Validate(d.Name)}
	switch {
	case d.NodeID == "":
		errs = append(errs, fmt.Errorf("CSI driver %q: node ID must not be empty", d.Name))
	case len(d.NodeID) > maxNodeID:
		errs = append(errs, fmt.Errorf("CSI driver %q: node ID %q must not exceed %d bytes, this one has %d", d.Name, d.NodeID, maxNodeID, len(d.NodeID)))
	}
	for _, key := range sortedKeys(d.Topology) {
		if rules := validation.IsQualifiedName(key); len(rules) > 0 {
			errs = append(errs, fmt.Errorf("CSI driver %q: topology key %q cannot be a label: %s", d.Name, key, strings.Join(rules, "; ")))
		}
		if rules := validation.IsValidLabelValue(d.Topology[key]); len(rules) > 0 {
			errs = append(errs, fmt.Errorf("CSI driver %q: topology value %s=%q cannot be a label: %s", d.Name, key, d.Topology[key], strings.Join(rules, "; ")))
		}
	}
	return errors.Join(errs...)
}

// entry returns the driver's entry of CSINode.
func (d Driver) entry() storagev1.CSINodeDriver {
	e := storagev1.CSINodeDriver{Name: d.Name, NodeID: d.NodeID, TopologyKeys: sortedKeys(d.Topology)}
	if d.MaxVolumes > 0 {
		count := int32(min(d.MaxVolumes, math.MaxInt32))
		e.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
	}
	return e
}

// sortedKeys returns nil for an empty map, as the API does.
func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
