// Package testarray is a storage array in memory, for tests of the kit: its volumes are plain files, which filesystem.Fake takes for devices. It implements
// every part of a driver but those that ask for what a test has to say: Validate, StorageHealth, Probe, DescribeNode, Republish, Usage, OwnsMount and Blocks.
package testarray

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/longshore-csi/longshore/driverkit"
)

// TotalCapacity is the size of an Array in bytes, LargestVolume that of its largest volume.
const (
	TotalCapacity = 1 << 40
	LargestVolume = 1 << 38
)

// Array is the storage system. It outlives the driver. It is safe for concurrent use.
type Array struct {
	// Dir is an existing directory for the files of volumes.
	Dir string
	// Nodes are the ids of the nodes that the array knows.
	Nodes []string

	mu        sync.Mutex
	serial    int
	volumes   map[string]*volume
	snapshots map[string]*driverkit.Snapshot
	groups    map[string]*driverkit.GroupSnapshot
	names     map[string]string // of snapshots and groups, by id
	sick      map[string]driverkit.Condition
}

type volume struct {
	driverkit.Volume

	name       string
	parameters map[string]string
	// attached has for each node whether it is attached read-only.
	attached map[string]bool
	// staged are the nodes' uses, by path.
	staged map[string]bool
	// readOnly says that the node has a second device.
	readOnly bool
}

// Driver makes a driver of all that a value can do: of an Array, or of a type that embeds one and does something else in its place. Options.Support of an Array has Clones.
func Driver(of any) (d driverkit.Driver) {
	from, to := reflect.ValueOf(of), reflect.ValueOf(&d).Elem()
	for i := range to.NumField() {
		part := to.Field(i)
		if method := from.MethodByName(to.Type().Field(i).Name); part.Kind() == reflect.Func && method.IsValid() {
			part.Set(method)
		} else if part.Kind() == reflect.Interface && from.Type().Implements(part.Type()) {
			part.Set(from)
		}
	}
	return d
}

// New returns an empty array with these nodes.
func New(dir string, nodes ...string) *Array {
	return &Array{Dir: dir, Nodes: nodes, volumes: map[string]*volume{}, snapshots: map[string]*driverkit.Snapshot{}, names: map[string]string{},
		groups: map[string]*driverkit.GroupSnapshot{}, sick: map[string]driverkit.Condition{}}
}

// Create implements driverkit.Provisioner.
func (a *Array) Create(_ context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range a.volumes {
		if v.name == req.Name {
			return v.copy(), nil
		}
	}
	least, err := a.leastSize(req.Source)
	if err != nil {
		return nil, err
	}
	size, err := req.Size.Choose(least, 1<<20, LargestVolume)
	if err != nil {
		return nil, err
	}
	if err := checkParameters(req.MutableParameters); err != nil {
		return nil, err
	}
	a.serial++
	v := &volume{name: req.Name, parameters: maps.Clone(req.MutableParameters), attached: map[string]bool{}, staged: map[string]bool{}}
	v.ID, v.Size, v.Source = fmt.Sprintf("vol-%06d", a.serial), size, req.Source
	v.Context = map[string]string{"lun": strconv.Itoa(a.serial)}
	return v.copy(), a.add(v)
}

// add makes the file of a volume, with the contents of its source, and enters it.
func (a *Array) add(v *volume) error {
	source := ""
	if v.Source != nil {
		source = a.device(v.Source.Snapshot + v.Source.Volume)
	}
	a.volumes[v.ID] = v
	return errors.Join(copyFile(source, a.device(v.ID)), os.Truncate(a.device(v.ID), v.Size))
}

// copyFile copies a file; without a source the copy is empty.
func copyFile(source, target string) error {
	var contents []byte
	if source != "" {
		var err error
		if contents, err = os.ReadFile(source); err != nil {
			return err
		}
	}
	return os.WriteFile(target, contents, 0o600)
}

// CreateInline implements driverkit.Inliner. The only attribute is "size", in bytes.
func (a *Array) CreateInline(_ context.Context, req *driverkit.InlineRequest) (*driverkit.Inlined, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.volumes[req.ID] != nil {
		return &driverkit.Inlined{}, nil
	}
	size, err := strconv.ParseInt(req.Attributes["size"], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("volume attribute size=%q: must be a number of bytes: %w", req.Attributes["size"], driverkit.ErrInvalid)
	}
	v := &volume{name: "inline " + req.ID, attached: map[string]bool{}, staged: map[string]bool{}}
	v.ID, v.Size, v.Context = req.ID, size, map[string]string{}
	return &driverkit.Inlined{}, a.add(v)
}

// DeleteInline implements driverkit.Inliner.
func (a *Array) DeleteInline(ctx context.Context, req *driverkit.DeleteInlineRequest) error {
	return a.Delete(ctx, &driverkit.DeleteRequest{ID: req.ID})
}

// leastSize is the size of a source.
func (a *Array) leastSize(source *driverkit.Source) (int64, error) {
	switch {
	case source == nil:
		return 1 << 20, nil
	case source.Snapshot != "":
		if s := a.snapshots[source.Snapshot]; s != nil {
			return s.Size, nil
		}
	case a.volumes[source.Volume] != nil:
		return a.volumes[source.Volume].Size, nil
	}
	return 0, fmt.Errorf("%v: %w", source, driverkit.ErrNotFound)
}

func (a *Array) device(id string) string { return filepath.Join(a.Dir, filepath.Base(id)) }

func (a *Array) readOnlyDevice(id string) string { return a.device(id) + ".ro" }

func (v *volume) copy() *driverkit.Volume {
	c := v.Volume
	c.Nodes = slices.Sorted(maps.Keys(v.attached))
	return &c
}

// find returns a volume; the caller holds the mutex.
func (a *Array) find(id string) (*volume, error) {
	if v := a.volumes[id]; v != nil {
		return v, nil
	}
	return nil, driverkit.NotFound("volume", id)
}

// Delete implements driverkit.Provisioner. A volume that a node uses is ErrInUse: a CO that deletes it has forgotten to unstage it.
func (a *Array) Delete(_ context.Context, req *driverkit.DeleteRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, err := a.find(req.ID)
	switch {
	case err != nil:
		return err
	case len(v.staged) > 0 || len(v.attached) > 0 || v.readOnly:
		return fmt.Errorf("volume %q: is staged at %v, read-only device %t, attached to %v: %w",
			v.ID, slices.Sorted(maps.Keys(v.staged)), v.readOnly, slices.Sorted(maps.Keys(v.attached)), driverkit.ErrInUse)
	}
	delete(a.volumes, v.ID)
	return os.Remove(a.device(v.ID))
}

// Get implements driverkit.Provisioner.
func (a *Array) Get(_ context.Context, req *driverkit.GetRequest) (*driverkit.Volume, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, err := a.find(req.ID)
	if err != nil {
		return nil, err
	}
	return v.copy(), nil
}

// Stage implements driverkit.Stager.
func (a *Array) Stage(_ context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, err := a.find(req.ID)
	switch {
	case err != nil:
		return nil, err
	case req.PublishContext["lun"] != v.Context["lun"]:
		return nil, fmt.Errorf("publish_context: %v: has not the lun of volume %q, which is not attached here: %w", req.PublishContext, v.ID, driverkit.ErrPrecondition)
	}
	v.staged[req.Path] = true
	return &driverkit.Staged{Device: a.device(v.ID)}, nil
}

// Unstage implements driverkit.Stager.
func (a *Array) Unstage(_ context.Context, req *driverkit.UnstageRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.volumes[req.ID]
	if v == nil {
		return nil
	}
	delete(v.staged, req.Path)
	v.readOnly = false
	return os.RemoveAll(a.readOnlyDevice(v.ID))
}

// ReadOnlyDevice makes a second device of a volume.
func (a *Array) ReadOnlyDevice(_ context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, err := a.find(req.ID)
	if err == nil && !v.staged[req.Path] {
		err = fmt.Errorf("volume %q: is not staged at %q: %w", v.ID, req.Path, driverkit.ErrPrecondition)
	}
	if err != nil {
		return nil, err
	}
	second := &driverkit.Staged{Device: a.readOnlyDevice(v.ID)}
	if v.readOnly {
		return second, nil
	}
	v.readOnly = true
	return second, os.Link(a.device(v.ID), second.Device)
}

// Attach implements driverkit.Attacher.
func (a *Array) Attach(_ context.Context, req *driverkit.AttachRequest) (*driverkit.Attached, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, err := a.find(req.ID)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(a.Nodes, req.Node) {
		return nil, driverkit.NotFound("node", req.Node)
	}
	if readOnly, attached := v.attached[req.Node]; attached && readOnly != req.ReadOnly {
		return nil, fmt.Errorf("volume %q is attached to node %q, read-only %t: %w", v.ID, req.Node, readOnly, driverkit.ErrExists)
	}
	v.attached[req.Node] = req.ReadOnly
	return &driverkit.Attached{PublishContext: map[string]string{"lun": v.Context["lun"]}}, nil
}

// Detach implements driverkit.Attacher.
func (a *Array) Detach(_ context.Context, req *driverkit.DetachRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, err := a.find(req.ID)
	if err != nil {
		return err
	}
	maps.DeleteFunc(v.attached, func(node string, _ bool) bool { return req.Node == "" || node == req.Node })
	return nil
}

// List returns a page of the volumes.
func (a *Array) List(_ context.Context, req *driverkit.ListRequest) (*driverkit.Page[*driverkit.Volume], error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]*driverkit.Volume, 0, len(a.volumes))
	for _, v := range a.volumes {
		all = append(all, v.copy())
	}
	return driverkit.PageOf(all, func(v *driverkit.Volume) string { return v.ID }, req.After, req.Limit), nil
}

// Capacity returns what the volumes leave of TotalCapacity.
func (a *Array) Capacity(context.Context, *driverkit.CapacityRequest) (*driverkit.Capacity, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	free := int64(TotalCapacity)
	for _, v := range a.volumes {
		free -= v.Size
	}
	return &driverkit.Capacity{Available: free, LargestVolume: min(free, LargestVolume)}, nil
}

// Expand makes a volume larger.
func (a *Array) Expand(_ context.Context, req *driverkit.ExpandRequest) (*driverkit.Expanded, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, err := a.find(req.ID)
	if err != nil {
		return nil, err
	}
	size, err := req.Size.Choose(v.Size, 1<<20, LargestVolume)
	if err != nil {
		return nil, err
	}
	v.Size = size
	return &driverkit.Expanded{Size: size, OnNode: true}, nil
}

// ExpandOnNode makes the device as large as its volume.
func (a *Array) ExpandOnNode(_ context.Context, req *driverkit.NodeExpandRequest) (*driverkit.NodeExpanded, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, err := a.find(req.ID)
	if err != nil {
		return nil, err
	}
	return &driverkit.NodeExpanded{Size: v.Size}, os.Truncate(req.Staged.Device, v.Size)
}

// Modify sets the parameters of a volume. The only one is "iops".
func (a *Array) Modify(_ context.Context, req *driverkit.ModifyRequest) (*driverkit.Modified, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, err := a.find(req.ID)
	if err != nil {
		return nil, err
	}
	if err := checkParameters(req.Parameters); err != nil {
		return nil, err
	}
	v.parameters = maps.Clone(req.Parameters)
	return &driverkit.Modified{}, nil
}

func checkParameters(mutable map[string]string) error {
	for name, value := range mutable {
		if _, err := strconv.Atoi(value); name != "iops" || err != nil {
			return fmt.Errorf("mutable_parameters: %s=%q: must be iops=NUMBER: %w", name, value, driverkit.ErrInvalid)
		}
	}
	return nil
}

// CreateSnapshot implements driverkit.Snapshotter.
func (a *Array) CreateSnapshot(_ context.Context, req *driverkit.CreateSnapshotRequest) (*driverkit.Snapshot, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, name := range a.names {
		if name == req.Name && a.snapshots[id] != nil {
			return a.snapshots[id], nil
		}
	}
	v, err := a.find(req.Volume)
	if err != nil {
		return nil, err
	}
	a.serial++
	s := &driverkit.Snapshot{ID: fmt.Sprintf("snap-%06d", a.serial), Volume: v.ID, Size: v.Size, Created: time.Now(), Ready: true}
	a.snapshots[s.ID], a.names[s.ID] = s, req.Name
	return s, copyFile(a.device(v.ID), a.device(s.ID))
}

// DeleteSnapshot implements driverkit.Snapshotter.
func (a *Array) DeleteSnapshot(_ context.Context, req *driverkit.DeleteSnapshotRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.snapshots[req.ID] == nil {
		return driverkit.NotFound("snapshot", req.ID)
	}
	delete(a.snapshots, req.ID)
	delete(a.names, req.ID)
	return os.Remove(a.device(req.ID))
}

// CreateGroupSnapshot implements driverkit.GroupSnapshotter.
func (a *Array) CreateGroupSnapshot(_ context.Context, req *driverkit.CreateGroupSnapshotRequest) (*driverkit.GroupSnapshot, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, name := range a.names {
		if name == req.Name && a.groups[id] != nil {
			return a.groups[id], nil
		}
	}
	a.serial++
	g := &driverkit.GroupSnapshot{ID: fmt.Sprintf("group-%06d", a.serial), Created: time.Now(), Ready: true}
	for i, id := range req.Volumes {
		v, err := a.find(id)
		if err != nil {
			return nil, err
		}
		g.Snapshots = append(g.Snapshots, &driverkit.Snapshot{ID: fmt.Sprintf("%s-%d", g.ID, i), Volume: id, Group: g.ID, Size: v.Size, Created: g.Created, Ready: true})
	}
	for _, s := range g.Snapshots {
		a.snapshots[s.ID] = s
		if err := copyFile(a.device(s.Volume), a.device(s.ID)); err != nil {
			return nil, err
		}
	}
	a.groups[g.ID], a.names[g.ID] = g, req.Name
	return g, nil
}

// DeleteGroupSnapshot implements driverkit.GroupSnapshotter.
func (a *Array) DeleteGroupSnapshot(_ context.Context, req *driverkit.DeleteGroupSnapshotRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if g := a.groups[req.ID]; g != nil {
		for _, s := range g.Snapshots {
			delete(a.snapshots, s.ID)
			if err := os.Remove(a.device(s.ID)); err != nil {
				return err
			}
		}
	}
	delete(a.groups, req.ID)
	delete(a.names, req.ID)
	return nil
}

// GetGroupSnapshot implements driverkit.GroupSnapshotter.
func (a *Array) GetGroupSnapshot(_ context.Context, req *driverkit.GetGroupSnapshotRequest) (*driverkit.GroupSnapshot, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if g := a.groups[req.ID]; g != nil {
		return g, nil
	}
	return nil, driverkit.NotFound("group snapshot", req.ID)
}

// Break gives a volume a problem.
func (a *Array) Break(id string, c driverkit.Condition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sick[id] = c
}

// VolumeHealth reports what Break has given to a volume.
func (a *Array) VolumeHealth(_ context.Context, req *driverkit.HealthRequest) (*driverkit.Health, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.find(req.ID); err != nil {
		return nil, err
	}
	if c, sick := a.sick[req.ID]; sick && !req.OnNode {
		return &driverkit.Health{Conditions: []driverkit.Condition{c}}, nil
	}
	return &driverkit.Health{}, nil
}

// GetSnapshot implements driverkit.Snapshotter.
func (a *Array) GetSnapshot(_ context.Context, req *driverkit.GetSnapshotRequest) (*driverkit.Snapshot, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.snapshots[req.ID]; s != nil {
		return s, nil
	}
	return nil, driverkit.NotFound("snapshot", req.ID)
}

// ListSnapshots returns a page of the snapshots.
func (a *Array) ListSnapshots(_ context.Context, req *driverkit.ListSnapshotsRequest) (*driverkit.Page[*driverkit.Snapshot], error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []*driverkit.Snapshot
	for _, s := range a.snapshots {
		if req.Volume == "" || s.Volume == req.Volume {
			all = append(all, s)
		}
	}
	return driverkit.PageOf(all, func(s *driverkit.Snapshot) string { return s.ID }, req.After, req.Limit), nil
}
