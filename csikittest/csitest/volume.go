package csitest

import (
	"cmp"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Mount is a path on a node at which a volume is staged or published.
type Mount struct {
	// Node is the ID of the node.
	Node string
	// Path is the staging or target path.
	Path string
	// ReadOnly is set for volumes that are published so.
	ReadOnly bool
}

// Volume is the state of a volume.
type Volume struct {
	// ID is the handle, "vol-" and the name for volumes made by CreateVolume.
	ID string
	// Name is the name given to CreateVolume, empty for inline volumes.
	Name string
	// Capacity is the size in bytes.
	Capacity int64
	// Parameters and Context are those of CreateVolume.
	Parameters, Context map[string]string
	// Mutable are the parameters last set by CreateVolume or ControllerModifyVolume.
	Mutable map[string]string
	// Topology is the segment that the volume is accessible from; nil: from everywhere.
	Topology map[string]string
	// Source is the content that the volume was created with, or nil.
	Source *csi.VolumeContentSource
	// Ephemeral is set for inline volumes, which live as long as they are published.
	Ephemeral bool
	// Nodes are the IDs of the nodes that the controller has published the volume to.
	Nodes []string
	// Staged and Published are the paths on nodes, sorted by node and path.
	Staged, Published []Mount
}

// use is one publication or staging with the request that caused it, so that a
// repeated request can be distinguished from a conflicting one.
type use struct {
	capability *csi.VolumeCapability
	readOnly   bool
}

type volume struct {
	Volume
	nodes     map[string]use // by node ID
	staged    map[Mount]use  // by node and path
	published map[Mount]use  // by node and path
	problems  []*Problem
	condition condition
}

func newVolume(v Volume) *volume {
	return &volume{Volume: v, nodes: map[string]use{}, staged: map[Mount]use{}, published: map[Mount]use{}}
}

// snapshot returns a copy that shares nothing with the driver.
func (v *volume) snapshot() Volume {
	out := v.Volume
	out.Parameters = maps.Clone(v.Parameters)
	out.Context = maps.Clone(v.Context)
	out.Mutable = maps.Clone(v.Mutable)
	out.Topology = maps.Clone(v.Topology)
	out.Nodes = v.nodeIDs()
	out.Staged = mounts(v.staged, "")
	out.Published = mounts(v.published, "")
	return out
}

func (v *volume) nodeIDs() []string { return slices.Sorted(maps.Keys(v.nodes)) }

func (v *volume) inUse() bool { return len(v.nodes)+len(v.staged)+len(v.published) > 0 }

// mounts lists uses on one node, or on all nodes for an empty ID.
func mounts(uses map[Mount]use, node string) []Mount {
	var out []Mount
	for m, u := range uses {
		if node == "" || m.Node == node {
			m.ReadOnly = u.readOnly
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Mount) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Path, b.Path))
	})
	return out
}

// Volumes returns the volumes that exist now, sorted by ID.
func (d *Driver) Volumes() []Volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Volume, 0, len(d.volumes))
	for _, id := range d.sortedIDs() {
		out = append(out, d.volumes[id].snapshot())
	}
	return out
}

func (b *backend) sortedIDs() []string { return slices.Sorted(maps.Keys(b.volumes)) }

// AddVolume adds a volume that exists without CreateVolume, as static
// provisioning does. Its Nodes, Staged and Published are taken as given;
// an existing volume with that ID is replaced.
func (d *Driver) AddVolume(v Volume) {
	d.mu.Lock()
	defer d.mu.Unlock()
	setDefault(&v.Capacity, DefaultVolumeSize)
	added := newVolume(v)
	for _, node := range v.Nodes {
		added.nodes[node] = use{}
	}
	for _, m := range v.Staged {
		added.staged[Mount{Node: m.Node, Path: m.Path}] = use{}
	}
	for _, m := range v.Published {
		added.published[Mount{Node: m.Node, Path: m.Path}] = use{readOnly: m.ReadOnly}
	}
	d.volumes[v.ID] = added
}

// RemoveVolume removes a volume although it may be in use, as an administrator
// may do without the driver.
func (d *Driver) RemoveVolume(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.volumes, id)
}

// Violations returns the calls that violated the life cycle of the
// specification, in order. Each of them also returned an error.
func (d *Driver) Violations() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.violations)
}
