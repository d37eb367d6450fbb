package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/params"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// spec decides what the volume of a claim is asked for with.
func (c *Controller) spec(ctx context.Context, s claimState) (volume.Spec, error) {
	spec, err := c.classSpec(s)
	if err != nil {
		return volume.Spec{}, blockedError{fmt.Errorf("storage class %q: %w", s.class.Name, err)}
	}
	spec.Topology, err = c.requirement(s)
	if err != nil {
		return volume.Spec{}, err
	}
	spec.MutableParameters, err = c.mutableParameters(ctx, attributesClass(s.claim))
	if err != nil {
		return volume.Spec{}, err
	}
	return spec, nil
}

// classSpec is the part of the decision that depends on nothing but the claim, its class and the options.
func (c *Controller) classSpec(s claimState) (volume.Spec, error) {
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
		FSType:          class.FSType,
		Parameters:      class.Driver,
		Secrets:         secrets,
		SingleNodeModes: s.caps.singleNode,
	}
	if spec.FSType == "" {
		spec.FSType = settings.DefaultFSType
	}
	if settings.ExtraCreateMetadata {
		spec.Parameters = volume.WithMetadata(spec.Parameters, s.claim, name)
	}
	return spec, nil
}

// requirement asks where the volume must be accessible from; nil when the driver does not care.
func (c *Controller) requirement(s claimState) (*csi.TopologyRequirement, error) {
	if !s.caps.topology || c.caches.index == nil {
		return nil, nil
	}
	requirement, err := c.caches.index.Require(topology.Request{
		Policy:            c.policy(),
		AllowedTopologies: s.class.AllowedTopologies,
		SelectedNode:      selectedNode(s.claim),
		ClaimName:         s.claim.Name,
		ClaimUID:          s.claim.UID,
	})
	if err != nil {
		c.unplaced.put(s.claim.UID, time.Now())
		return nil, fmt.Errorf("decide about the topology: %w", err)
	}
	c.unplaced.drop(s.claim.UID)
	return requirement, nil
}

// policy says which topology is asked for. An instance for one node asks for no other place, where it could not
// delete the volume again.
func (c *Controller) policy() topology.Policy {
	policy := c.cfg.Settings.Topology
	policy.Strict = policy.Strict || c.node().alone()
	return policy
}

// mutableParameters reads a VolumeAttributesClass; no name, no parameters.
func (c *Controller) mutableParameters(ctx context.Context, name string) (map[string]string, error) {
	if name == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	class, err := c.cfg.Kube.VolumeAttributesClasses().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get VolumeAttributesClass %q: %w", name, err)
	}
	if class.DriverName != c.driver {
		return nil, fmt.Errorf("use VolumeAttributesClass %q: it is for driver %q, must be for %q", name, class.DriverName, c.driver)
	}
	return class.Parameters, nil
}

// fingerprint identifies all that a request is made of and that users can change. The rest after an
// infeasible request ends as soon as it changes.
func fingerprint(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	text, err := json.Marshal(struct {
		Spec        corev1.PersistentVolumeClaimSpec
		Annotations map[string]string
		Class       [2]string
	}{claim.Spec, claim.Annotations, [2]string{string(class.UID), class.ResourceVersion}})
	if err != nil {
		return claim.ResourceVersion + "/" + class.ResourceVersion
	}
	return string(text)
}
