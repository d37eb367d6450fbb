package claim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/params"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// spec decides what the volume of a claim is asked for with.
func (c *Controller) spec(ctx context.Context, s claimState) (volume.Spec, error) {
	spec, err := c.classSpec(s)
	if err != nil {
		return volume.Spec{}, volume.BlockedError{Err: fmt.Errorf("storage class %q: %w", s.class.Name, err)}
	}
	spec.Topology, err = c.requirement(s)
	if err != nil {
		return volume.Spec{}, err
	}
	spec.MutableParameters, err = c.mutableParameters(ctx, spec.AttributesClass)
	if err != nil {
		return volume.Spec{}, err
	}
	return spec, nil
}

// classSpec is the part of the decision that depends on nothing but the claim, its class and the options.
func (c *Controller) classSpec(s claimState) (volume.Spec, error) {
	if s.classErr != nil {
		return volume.Spec{}, s.classErr
	}
	settings := c.cfg.Settings
	class, err := params.Parse(s.class.Parameters)
	if err != nil {
		return volume.Spec{}, err
	}
	name := settings.Naming.Name(s.claim.UID)
	secrets, err := class.Resolve(params.Values{
		PVName:           name,
		ClaimName:        s.claim.Name,
		ClaimNamespace:   s.claim.Namespace,
		ClaimAnnotations: s.claim.Annotations,
	})
	if err != nil {
		return volume.Spec{}, err
	}
	spec := volume.Spec{
		Name:            name,
		Claim:           s.claim,
		Class:           s.class,
		InTree:          s.inTree,
		FSType:          class.FSType,
		Parameters:      class.Driver,
		Secrets:         secrets,
		SingleNodeModes: s.caps.SingleNode,
	}
	if s.caps.Attributes {
		spec.AttributesClass = attributesClass(s.claim)
	}
	if spec.FSType == "" {
		spec.FSType = settings.DefaultFSType
	}
	if settings.ExtraCreateMetadata {
		spec.Parameters = volume.WithMetadata(spec.Parameters, s.claim, name)
	}
	return spec, nil
}

// requirement asks where the volume must be accessible from; nil when the driver does not care. If its source is accessible from some places only,
// the volume is to be there.
func (c *Controller) requirement(s claimState, accessible ...topology.Segment) (*csi.TopologyRequirement, error) {
	if !s.caps.Topology || c.view.Index == nil {
		return nil, nil
	}
	requirement, err := c.view.Index.Require(topology.Request{
		Policy:            c.policy(),
		AllowedTopologies: s.class.AllowedTopologies,
		SelectedNode:      view.SelectedNode(s.claim),
		ClaimName:         s.claim.Name,
		ClaimUID:          s.claim.UID,
		Accessible:        accessible,
	})
	if err != nil {
		c.noTopology(s)
		return nil, fmt.Errorf("decide about the topology: %w", err)
	}
	c.placed(s.claim.UID)
	c.warnOfNoNode(s)
	return requirement, nil
}

// warnOfNoNode reports a class with topologies that no node has: the driver is asked for a volume in one of them all the same, as a node may follow.
func (c *Controller) warnOfNoNode(s claimState) {
	if len(s.class.AllowedTopologies) == 0 || view.SelectedNode(s.claim) != "" || slices.ContainsFunc(c.view.Index.Segments(), func(of topology.Segment) bool {
		return topology.Permitted(s.class.AllowedTopologies, of)
	}) {
		return
	}
	c.cfg.Events.Warning(s.claim, reasonNoNode, fmt.Sprintf(
		"No node of the driver is in the allowedTopologies of StorageClass %q: no pod can use the volume until one is. Correct the class, or use one with volumeBindingMode WaitForFirstConsumer",
		s.class.Name))
}

// unplaced is a claim for which there is no topology. The zero value is a claim that does not wait for one.
type unplaced struct {
	key claimKey
	// node is the selected node, empty for immediate binding.
	node string
	// since is when there was no topology for that node first.
	since time.Time
}

// noTopology notes that there is no topology for a claim, which is looked at again when that may have changed.
func (c *Controller) noTopology(s claimState) {
	node := view.SelectedNode(s.claim)
	c.claimRecords.Change(s.claim.UID, func(r *claimRecord) {
		if r.unplaced.since.IsZero() || r.unplaced.node != node {
			r.unplaced = unplaced{key: keyOf(s.claim), node: node, since: time.Now()}
		}
	})
}

// placed records that a claim waits for no topology any more.
func (c *Controller) placed(claim types.UID) {
	c.claimRecords.Change(claim, func(r *claimRecord) { r.unplaced = unplaced{} })
}

// awaitRegistration waits for the driver to register on the selected node of a claim, which the watch of that node reports,
// and gives the claim back to the scheduler when the driver has had time enough.
func (c *Controller) awaitRegistration(ctx context.Context, claim *corev1.PersistentVolumeClaim, missing error) (reconcile.Result, error) {
	waiting := c.claimRecords.Get(claim.UID).unplaced
	if left := registerGrace - time.Since(waiting.since); left > 0 {
		c.refuse(claim, backend.Describe(missing))
		return reconcile.Result{After: left}, nil
	}
	c.refuse(claim, fmt.Sprintf("%s (for %v: the scheduler is asked for another node)", backend.Describe(missing), registerGrace))
	result, err := c.reschedule(ctx, claim)
	if err == nil {
		c.placed(claim.UID) // the scheduler may select the same node again
	}
	return result, err
}

// policy says which topology is asked for. An instance for one node asks for no other place, where it could not
// delete the volume again.
func (c *Controller) policy() topology.Policy {
	policy := c.cfg.Settings.Topology
	policy.Strict = policy.Strict || c.node().Alone()
	return policy
}

// mutableParameters reads a VolumeAttributesClass; no name, no parameters.
func (c *Controller) mutableParameters(ctx context.Context, name string) (map[string]string, error) {
	if name == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.KubeTimeout)
	defer cancel()
	class, err := c.cfg.Kube.VolumeAttributesClasses().Get(ctx, name, metav1.GetOptions{})
	switch {
	case snapshotapi.IsAbsent(err):
		return nil, fmt.Errorf("get VolumeAttributesClass %q: the API server does not serve storage.k8s.io/v1 VolumeAttributesClasses, use --feature-gates=VolumeAttributesClass=false to ignore those of claims: %w", name, err)
	case err != nil:
		return nil, fmt.Errorf("get VolumeAttributesClass %q: %w", name, err)
	}
	if class.DriverName != c.driver {
		return nil, fmt.Errorf("use VolumeAttributesClass %q: it is for driver %q, must be for %q", name, class.DriverName, c.driver)
	}
	return class.Parameters, nil
}
