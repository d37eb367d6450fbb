// Package records reads and writes vol_data.json, the files in which a node remembers which volumes
// it may have staged and published.
//
// The keys are the kubelet's, so a kubelet and this agent can take over each other's directory. A
// record is replaced atomically and synced to disk: there is never half of one (kubelet issue
// 108217). Decisions about what a record means are in packages recovery and volume.
package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// ErrCorrupt marks a record that is there but cannot be used: empty, not JSON, without the handle
// or driver, or of another directory. A record that is not there gives fs.ErrNotExist.
var ErrCorrupt = errors.New("record is corrupt")

// Lifecycle modes as they are written in a target record.
const (
	Persistent = "Persistent"
	Ephemeral  = "Ephemeral"
)

// Staging is the record beside a staging path.
type Staging struct {
	// Handle is the volume_id.
	Handle string
	// Driver is the name of the CSI driver.
	Driver string
	// AttachmentUID is the UID of the VolumeAttachment for which the volume was staged; empty if it needs none, and in
	// the record of a kubelet, which does not write it and ignores it.
	AttachmentUID types.UID
	// SELinuxContext is the SELinux context with which the volume is mounted; empty if it is mounted without.
	SELinuxContext string
}

// Target is the record beside a target path.
type Target struct {
	// SpecVolID is the name of the PersistentVolume, or of the pod volume if it is inline.
	SpecVolID string
	// Handle is the volume_id.
	Handle string
	// Driver is the name of the CSI driver.
	Driver string
	// Node is the name of the node.
	Node string
	// Lifecycle is Persistent or Ephemeral.
	Lifecycle string
	// Attachment is the name of the VolumeAttachment, also for volumes that need none.
	Attachment string
	// SELinuxContext is as for Staging.
	SELinuxContext string
}

// Device is the record of a raw block volume. There is one for all pods that use it, and a link in the directory of each of them.
type Device struct {
	// SpecVolID is the name of the PersistentVolume.
	SpecVolID string
	// Handle is the volume_id.
	Handle string
	// Driver is the name of the CSI driver.
	Driver string
	// Node is the name of the node.
	Node string
	// Attachment is the name of the VolumeAttachment, also for volumes that need none.
	Attachment string
	// AttachmentUID is as for Staging.
	AttachmentUID types.UID
}

const (
	keySpecVolID  = "specVolID"
	keyHandle     = "volumeHandle"
	keyDriver     = "driverName"
	keyNode       = "nodeName"
	keyLifecycle  = "volumeLifecycleMode"
	keyAttachment = "attachmentID"

	keyAttachmentUID  = "attachmentUID"
	keySELinuxContext = "seLinuxMountContext"
)

// Write puts the record into a directory, which must exist.
func (s Staging) Write(dir string) error {
	rec := map[string]string{keyHandle: s.Handle, keyDriver: s.Driver}
	set(rec, keyAttachmentUID, string(s.AttachmentUID))
	set(rec, keySELinuxContext, s.SELinuxContext)
	return write(dir, rec)
}

// Write puts the record into a directory, which must exist.
func (t Target) Write(dir string) error {
	rec := map[string]string{
		keySpecVolID:  t.SpecVolID,
		keyHandle:     t.Handle,
		keyDriver:     t.Driver,
		keyNode:       t.Node,
		keyLifecycle:  t.Lifecycle,
		keyAttachment: t.Attachment,
	}
	set(rec, keySELinuxContext, t.SELinuxContext)
	return write(dir, rec)
}

// Write puts the record into a directory, which must exist.
func (d Device) Write(dir string) error {
	rec := map[string]string{
		keySpecVolID:  d.SpecVolID,
		keyHandle:     d.Handle,
		keyDriver:     d.Driver,
		keyNode:       d.Node,
		keyAttachment: d.Attachment,
	}
	set(rec, keyAttachmentUID, string(d.AttachmentUID))
	return write(dir, rec)
}

// set adds a value to a record, unless it is empty.
func set(rec map[string]string, key, value string) {
	if value != "" {
		rec[key] = value
	}
}

// ReadDevice reads the record of a raw block volume from the directory of the record, which is in that of the volume.
func ReadDevice(dir string) (Device, error) {
	m, err := read(dir)
	if err != nil {
		return Device{}, err
	}
	d := Device{
		SpecVolID:     m[keySpecVolID],
		Handle:        m[keyHandle],
		Driver:        m[keyDriver],
		Node:          m[keyNode],
		Attachment:    m[keyAttachment],
		AttachmentUID: types.UID(m[keyAttachmentUID]),
	}
	switch name := filepath.Base(filepath.Dir(dir)); d.SpecVolID {
	case name:
	case "":
		d.SpecVolID = name
	default: // its paths would be elsewhere
		return Device{}, fmt.Errorf("read volume record in %q: %w: it is of volume %q", dir, ErrCorrupt, d.SpecVolID)
	}
	return d, nil
}

// ReadStaging reads the record of a staging directory.
func ReadStaging(dir string) (Staging, error) {
	m, err := read(dir)
	if err != nil {
		return Staging{}, err
	}
	return Staging{
		Handle: m[keyHandle], Driver: m[keyDriver], AttachmentUID: types.UID(m[keyAttachmentUID]), SELinuxContext: m[keySELinuxContext],
	}, nil
}

// ReadTarget reads the record of a target directory. Records of old kubelets have no lifecycle
// mode; they are of persistent volumes.
func ReadTarget(dir string) (Target, error) {
	m, err := read(dir)
	if err != nil {
		return Target{}, err
	}
	t := Target{
		SpecVolID:  m[keySpecVolID],
		Handle:     m[keyHandle],
		Driver:     m[keyDriver],
		Node:       m[keyNode],
		Lifecycle:  m[keyLifecycle],
		Attachment: m[keyAttachment],

		SELinuxContext: m[keySELinuxContext],
	}
	if t.Lifecycle == "" {
		t.Lifecycle = Persistent
	}
	switch base := filepath.Base(dir); {
	case t.SpecVolID == "":
		t.SpecVolID = layout.Unescape(base)
	case layout.Escape(t.SpecVolID) != base: // its target path would be elsewhere
		return Target{}, fmt.Errorf("read volume record in %q: %w: it is of volume %q", dir, ErrCorrupt, t.SpecVolID)
	}
	return t, nil
}

// Remove deletes the record of a directory and what an interrupted Write left. A record that is
// not there is no error.
func Remove(dir string) error {
	for _, name := range []string{layout.RecordFile, tempFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove volume record: %w", err)
		}
	}
	return nil
}

func read(dir string) (map[string]string, error) {
	path := filepath.Join(dir, layout.RecordFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read volume record: %w", err)
	}
	var m map[string]string
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("read volume record %q: %w: %w", path, ErrCorrupt, err)
	}
	if m[keyHandle] == "" || m[keyDriver] == "" {
		return nil, fmt.Errorf("read volume record %q: %w: no %s or no %s", path, ErrCorrupt, keyHandle, keyDriver)
	}
	return m, nil
}
