package csitest

// Snapshot is a content source of volumes. AddSnapshot adds it: the driver does not implement CreateSnapshot.
type Snapshot struct {
	// ID is the handle.
	ID string
	// Size is the minimum size of a volume that is restored from it, in bytes.
	Size int64
}

// AddSnapshot adds a snapshot; an existing one with that ID is replaced.
func (d *Driver) AddSnapshot(s Snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	setDefault(&s.Size, DefaultVolumeSize)
	d.snapshots[s.ID] = s
}

// RemoveSnapshot removes a snapshot. Volumes that were restored from it remain.
func (d *Driver) RemoveSnapshot(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.snapshots, id)
}
