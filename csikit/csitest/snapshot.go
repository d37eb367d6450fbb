package csitest

// Snapshot is a source of volumes. The driver has those that AddSnapshot has added: it takes none itself.
type Snapshot struct {
	// ID is the handle.
	ID string
	// Size is the least size of a volume that is made from it, in bytes.
	Size int64
}

// AddSnapshot adds a snapshot; an existing one with that ID is replaced.
func (d *Driver) AddSnapshot(s Snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	setDefault(&s.Size, DefaultVolumeSize)
	d.snapshots[s.ID] = s
}

// RemoveSnapshot makes a snapshot vanish. Volumes that were made from it stay.
func (d *Driver) RemoveSnapshot(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.snapshots, id)
}
