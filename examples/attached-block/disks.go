package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/examples/attached-block/array"
)

// disks is the driver, in the controller and on nodes. It keeps no state: the array knows its volumes, and the kit what is staged.
type disks struct {
	// array is the client with the account for calls without secrets.
	array *array.Client
	// rescan has the kernel of this node read the size of a device again; see node.go.
	rescan func(ctx context.Context, device string) error
}

// driver is what the driver can do, and announces. A vendor whose array lacks something deletes it here, and its functions.
func (d *disks) driver() driverkit.Driver {
	return driverkit.Driver{
		Provisioner: d, Stager: d, Attacher: d, Snapshotter: d,
		List: d.List, ListSnapshots: d.ListSnapshots, Capacity: d.Capacity, Expand: d.Expand, ExpandOnNode: d.ExpandOnNode, Probe: d.Probe,
	}
}

// The sizes that the array can make, in bytes.
const (
	smallest = 4 << 20
	sizeStep = 1 << 20
	largest  = 1 << 40
)

// The keys of secrets, parameters and contexts are part of the driver's documentation: users write them into Secrets and StorageClasses.
const (
	userSecret     = "user"
	passwordSecret = "password"
	poolParameter  = "pool"
	lunKey         = "lun"
	poolKey        = "pool"
)

// as returns the client with the account of a request's secrets.
func (d *disks) as(secrets driverkit.Secrets) *array.Client {
	if len(secrets) == 0 {
		return d.array
	}
	return &array.Client{Address: d.array.Address, User: secrets[userSecret], Password: secrets[passwordSecret], HTTP: d.array.HTTP}
}

// Create implements driverkit.Provisioner. It looks for the name first: where a volume of that name exists, its pool may have become full.
func (d *disks) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	if err := checkParameters(req.Parameters); err != nil {
		return nil, err
	}
	client := d.as(req.Secrets)
	found, err := client.List(ctx, array.Volumes, req.Name)
	if err != nil {
		return nil, kitError(err)
	}
	if len(found) > 0 {
		return volumeOf(found[0]), nil
	}
	wanted, err := plan(ctx, client, req)
	if err != nil {
		return nil, err
	}
	made, err := client.Create(ctx, wanted)
	if err != nil {
		return nil, kitError(err)
	}
	return volumeOf(made), nil
}

// checkParameters refuses parameters that the driver does not know: a misspelt one must not be ignored.
func checkParameters(parameters map[string]string) error {
	for name := range parameters {
		if name != poolParameter {
			return fmt.Errorf("parameter %q: must be %q: %w", name, poolParameter, driverkit.ErrInvalid)
		}
	}
	return nil
}

// plan chooses the size and the pool of a new volume.
func plan(ctx context.Context, client *array.Client, req *driverkit.CreateRequest) (array.LUN, error) {
	wanted := array.LUN{Ref: volumeRef(""), Name: req.Name, Place: array.Place{Pool: req.Parameters[poolParameter]}}
	least := int64(smallest)
	if req.Source != nil {
		source, err := client.Get(ctx, refOf(req.Source))
		if err != nil {
			return wanted, kitError(err)
		}
		// The array copies within a pool only, and a copy is at least as large as its source.
		wanted.Source, wanted.Place, least = source.Ref, source.Place, source.Size
	}
	var err error
	if wanted.Size, err = req.Size.Choose(least, sizeStep, largest); err != nil {
		return wanted, err
	}
	pools, err := client.Pools(ctx)
	if err != nil {
		return wanted, kitError(err)
	}
	wanted.Place, err = choosePlace(pools, wanted, req.Topology)
	return wanted, err
}

func volumeRef(id string) array.Ref   { return array.Ref{Kind: array.Volumes, ID: id} }
func snapshotRef(id string) array.Ref { return array.Ref{Kind: array.Snapshots, ID: id} }

func refOf(s *driverkit.Source) array.Ref {
	if s.Snapshot != "" {
		return snapshotRef(s.Snapshot)
	}
	return volumeRef(s.Volume)
}

// choosePlace returns the place of the pool that the topology prefers, of those that have the wanted name, if any, and enough space.
func choosePlace(pools []array.Pool, wanted array.LUN, topology driverkit.TopologyRequirement) (array.Place, error) {
	pools = slices.DeleteFunc(pools, func(p array.Pool) bool {
		return p.Free < wanted.Size || wanted.Pool != "" && p.Pool != wanted.Pool
	})
	if len(pools) == 0 {
		return array.Place{}, fmt.Errorf("no pool %q has %d bytes free: %w", wanted.Pool, wanted.Size, driverkit.ErrExhausted)
	}
	offers := make([]driverkit.Segments, 0, len(pools))
	for _, p := range pools {
		offers = append(offers, segmentsOf(p.Place))
	}
	chosen, err := topology.Choose(offers)
	if err != nil {
		return array.Place{}, err
	}
	i := slices.IndexFunc(offers, func(s driverkit.Segments) bool { return maps.Equal(s, chosen) })
	return pools[i].Place, nil
}

func segmentsOf(p array.Place) driverkit.Segments {
	return driverkit.Segments{zoneKey: p.Zone, rackKey: p.Rack}
}

// volumeOf converts a volume. Its context is what users see of it in their PersistentVolume.
func volumeOf(v array.LUN) *driverkit.Volume {
	converted := &driverkit.Volume{
		ID: v.ID, Size: v.Size, Topology: []driverkit.Segments{segmentsOf(v.Place)}, Context: map[string]string{lunKey: v.ID, poolKey: v.Pool},
		Nodes: slices.Sorted(maps.Keys(v.Hosts)),
	}
	switch v.Source.Kind {
	case array.Snapshots:
		converted.Source = &driverkit.Source{Snapshot: v.Source.ID}
	case array.Volumes:
		converted.Source = &driverkit.Source{Volume: v.Source.ID}
	}
	return converted
}

// Delete implements driverkit.Provisioner. The array refuses while a node has the volume, and knows no dependent snapshots: they are copies.
func (d *disks) Delete(ctx context.Context, req *driverkit.DeleteRequest) error {
	return kitError(d.as(req.Secrets).Delete(ctx, volumeRef(req.ID)))
}

// Get implements driverkit.Provisioner.
func (d *disks) Get(ctx context.Context, req *driverkit.GetRequest) (*driverkit.Volume, error) {
	v, err := d.as(req.Secrets).Get(ctx, volumeRef(req.ID))
	if err != nil {
		return nil, kitError(err)
	}
	return volumeOf(v), nil
}

// List returns a page of the volumes. An array whose API has pages of its own passes After and Limit on.
func (d *disks) List(ctx context.Context, req *driverkit.ListRequest) (*driverkit.Page[*driverkit.Volume], error) {
	all, err := d.array.List(ctx, array.Volumes, "")
	if err != nil {
		return nil, kitError(err)
	}
	converted := make([]*driverkit.Volume, 0, len(all))
	for _, v := range all {
		converted = append(converted, volumeOf(v))
	}
	return driverkit.PageOf(converted, func(v *driverkit.Volume) string { return v.ID }, req.After, req.Limit), nil
}

// Capacity returns, for each segment, what its pools have. A volume is in one pool, so that the largest one is smaller than
// the sum.
func (d *disks) Capacity(ctx context.Context, req *driverkit.CapacityRequest) (*driverkit.Capacity, error) {
	if err := checkParameters(req.Parameters); err != nil {
		return nil, err
	}
	pools, err := d.array.Pools(ctx)
	if err != nil {
		return nil, kitError(err)
	}
	sum := &driverkit.Capacity{SmallestVolume: smallest}
	for _, p := range pools {
		if name := req.Parameters[poolParameter]; name != "" && name != p.Pool || !segmentsOf(p.Place).Within(req.Topology) {
			continue
		}
		sum.Available += p.Free
		sum.LargestVolume = max(sum.LargestVolume, min(p.Free, largest))
	}
	return sum, nil
}

// Expand makes a volume larger. OnNode is true for raw block volumes, too: the node must read the size of the device again.
func (d *disks) Expand(ctx context.Context, req *driverkit.ExpandRequest) (*driverkit.Expanded, error) {
	client := d.as(req.Secrets)
	v, err := client.Get(ctx, volumeRef(req.ID))
	if err != nil {
		return nil, kitError(err)
	}
	size, err := req.Size.Choose(v.Size, sizeStep, largest)
	if err != nil {
		return nil, err
	}
	if err := client.Resize(ctx, v.Ref, size); err != nil {
		return nil, kitError(err)
	}
	return &driverkit.Expanded{Size: size, OnNode: true}, nil
}

// Probe succeeds when the array answers, and takes the account.
func (d *disks) Probe(ctx context.Context) error {
	_, err := d.array.Pools(ctx)
	return kitError(err)
}
