package driverkit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/driverkit/state"
)

// journal is what the node remembers of its volumes, on disk before anything is mounted: whatever call a process dies in, the next one knows what may be
// mounted or attached.
type journal struct {
	records *state.Records[record]
	// boot identifies the present run of the machine: device names of earlier ones are outdated.
	boot string

	mu      sync.RWMutex
	volumes map[string]*record
}

// record is what the journal has of one volume.
type record struct {
	ID string `json:"id"`
	// Stage is nil for a volume that is not staged.
	Stage   *stage   `json:"stage,omitempty"`
	Targets []target `json:"targets,omitempty"`
}

// stage is one call of Stager.Stage.
type stage struct {
	Path       string     `json:"path"`
	Capability Capability `json:"capability"`
	ReadOnly   bool       `json:"readOnly,omitempty"`
	// VolumeContext and PublishContext are without what Kubernetes adds, which has tokens.
	VolumeContext  map[string]string `json:"volumeContext,omitempty"`
	PublishContext map[string]string `json:"publishContext,omitempty"`
	// Boot is that of the journal at the call.
	Boot string `json:"boot"`
	// Staged is the result; nil until the driver has returned.
	Staged *Staged `json:"staged,omitempty"`
	// Device identifies the device of the result.
	Device deviceID `json:"device,omitzero"`
}

// target is a path at which a volume is published.
type target struct {
	Path       string     `json:"path"`
	Staging    string     `json:"staging,omitempty"`
	ReadOnly   bool       `json:"readOnly,omitempty"`
	Capability Capability `json:"capability"`
	// Stage is that of the path itself, for an inline volume and Support.PublishOnly.
	Stage *stage `json:"stage,omitempty"`
	// Inline says that the volume is deleted when it is unpublished.
	Inline bool `json:"inline,omitempty"`
}

// RecordID implements state.Identified: ids may have any characters, file names not.
func (r record) RecordID() string {
	sum := sha256.Sum256([]byte(r.ID))
	return hex.EncodeToString(sum[:])
}

// openJournal reads the records below a directory. The caller holds the lock of the state directory.
func openJournal(ctx context.Context, dir string) (*journal, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the id of this boot: %w", err)
	}
	records, err := state.Open[record](filepath.Join(dir, "journal"), "NodeVolume")
	if err != nil {
		return nil, err
	}
	loaded, damaged, err := records.Load()
	if err != nil {
		return nil, err
	}
	for _, d := range damaged {
		klog.FromContext(ctx).Error(d.Err, "Moved an unreadable record aside: volumes of this node may stay mounted until they are unstaged", "path", d.Path)
	}
	j := &journal{records: records, boot: strings.TrimSpace(string(boot)), volumes: map[string]*record{}}
	for _, r := range loaded {
		j.volumes[r.ID] = &r
	}
	return j, nil
}

// get returns a copy of a record that the caller may change; an empty record for an unknown volume.
func (j *journal) get(id string) *record {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if known := j.volumes[id]; known != nil {
		return known.clone()
	}
	return &record{ID: id}
}

// save makes a record durable, or removes an empty one.
func (j *journal) save(r *record) error {
	r.hideFlags()
	empty := r.Stage == nil && len(r.Targets) == 0
	var err error
	if empty {
		err = j.records.Delete(r.RecordID())
	} else {
		err = j.records.Put(r.RecordID(), *r)
	}
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if empty {
		delete(j.volumes, r.ID)
	} else {
		j.volumes[r.ID] = r.clone()
	}
	return nil
}

// shrink is save for a record that has lost a target, which is not mounted any more. Such a target does no harm in the record on disk, so that a full disk, on which that cannot be
// replaced, is no error: it must not keep a pod from ending. The next save writes the rest.
func (j *journal) shrink(ctx context.Context, r *record) error {
	err := j.save(r)
	if !state.IsFull(err) {
		return err
	}
	klog.FromContext(ctx).Error(err, "A record still has a target that is not mounted any more", logging.KeyVolumeID, r.ID)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.volumes[r.ID] = r.clone()
	return nil
}

// all returns copies of all records, sorted by id.
func (j *journal) all() []*record {
	j.mu.RLock()
	defer j.mu.RUnlock()
	all := make([]*record, 0, len(j.volumes))
	for _, id := range slices.Sorted(maps.Keys(j.volumes)) {
		all = append(all, j.volumes[id].clone())
	}
	return all
}

// clone copies what callers change: the stages themselves are replaced, never changed in a saved record.
func (r *record) clone() *record {
	c := *r
	c.Stage = r.Stage.clone()
	c.Targets = slices.Clone(r.Targets)
	for i := range c.Targets {
		c.Targets[i].Stage = c.Targets[i].Stage.clone()
	}
	return &c
}

func (s *stage) clone() *stage {
	if s == nil {
		return nil
	}
	c := *s
	return &c
}

// hideFlags takes from a record what a journal must not have, see Capability.noted.
func (r *record) hideFlags() {
	r.Stage.hideFlags()
	for i := range r.Targets {
		t := &r.Targets[i]
		t.Capability = t.Capability.noted()
		t.Stage.hideFlags()
	}
}

func (s *stage) hideFlags() {
	if s != nil {
		s.Capability = s.Capability.noted()
	}
}

// at returns the target at a path, or nil.
func (r *record) at(path string) *target {
	for i := range r.Targets {
		if r.Targets[i].Path == path {
			return &r.Targets[i]
		}
	}
	return nil
}

// stageAt returns the stage that is visible at a staging or target path, or nil.
func (r *record) stageAt(path string) *stage {
	t := r.at(path)
	switch {
	case t != nil && t.Stage != nil:
		return t.Stage
	case t != nil || r.Stage != nil && r.Stage.Path == path:
		return r.Stage
	}
	return nil
}

// drop removes the target at a path.
func (r *record) drop(path string) {
	r.Targets = slices.DeleteFunc(r.Targets, func(t target) bool { return t.Path == path })
}
