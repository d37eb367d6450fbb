package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// attachmentsDir is the directory of the records of attachments below the root.
const attachmentsDir = ".csi-attachments"

// Attach has the controllers of drivers attach volumes to this node, and detach them. A volume is recorded below the root directory before it is attached, and until
// it is detached, so that none stays attached after a crash. Both functions are called for one volume at a time, with errors again, and must be idempotent, as the calls
// to drivers are. Once Unpublish was called it is repeated until it succeeds, also after a restart, before Publish is called for the volume again: what has been asked for
// may yet happen.
type Attach struct {
	// Publish attaches a volume, and returns the publish_context (CSI v1.13, "ControllerPublishVolume"). It is called again after a restart.
	Publish func(ctx context.Context, driver, handle string) (map[string]string, error)
	// Unpublish detaches a volume (CSI v1.13, "ControllerUnpublishVolume").
	Unpublish func(ctx context.Context, driver, handle string) error
}

// AttachmentRecord is the record of a VolumeAttachment, for an implementation of InUse and Attachments that makes these objects itself: Write puts it below a directory
// before the object is made, so that none is left behind by a process that is killed.
type AttachmentRecord struct {
	// SpecVolID is the name of the PersistentVolume; empty if it is not known.
	SpecVolID string
	// Handle is the volume_id.
	Handle string
	// Driver is the name of the CSI driver.
	Driver string
	// Name is the name of the VolumeAttachment, and of the directory of the record.
	Name string
	// UID is that of an attachment that is no object of an API server; empty for others.
	UID types.UID
	// Deleting is the UID of the VolumeAttachment of this name that is to be deleted; empty for none.
	Deleting types.UID
}

// Write puts the record into a directory of its own below dir, which is made.
func (r AttachmentRecord) Write(dir string) error { return records.Attachment(r).Write(dir) }

// ReadAttachmentRecords reads all records below a directory, which need not exist. Those that cannot be used are in the error.
func ReadAttachmentRecords(dir string) ([]AttachmentRecord, error) {
	found, err := records.ReadAttachments(dir)
	all := make([]AttachmentRecord, 0, len(found))
	for _, r := range found {
		all = append(all, AttachmentRecord(r))
	}
	return all, err
}

// RemoveAttachmentRecord removes the record of the VolumeAttachment of a name below a directory. One that is not there is no error.
func RemoveAttachmentRecord(dir, name string) error { return records.RemoveAttachment(dir, name) }

// attacher is both sides of the handshake with an attach/detach controller.
type attacher struct {
	calls   Attach
	node    string
	dir     string
	timeout time.Duration
	// changed tells that a volume was detached, or not.
	changed func()
	wake    chan struct{}

	mu sync.Mutex
	// volumes are those that are, or may be, attached, by their unique names.
	volumes map[string]*attached
}

// attached is a volume that is, or may be, attached.
type attached struct {
	volume, driver, handle string
	// name is that of the attachment, and of its record.
	name string

	// call is held while the driver's controller is called for the volume. It guards what follows.
	call       sync.Mutex
	uid        types.UID // empty if it is not recorded
	attachment *volume.Attachment
	detaching  bool // Unpublish was called, and has not succeeded

	// leaving and err are guarded by the attacher's lock: the volume is to be detached, and why it is not.
	leaving bool
	err     error
}

var (
	_ volume.InUse       = (*attacher)(nil)
	_ volume.Attachments = (*attacher)(nil)
)

func newAttacher(cfg *Config, changed func()) *attacher {
	return &attacher{
		calls: *cfg.Attach, node: cfg.Node, dir: filepath.Join(cfg.RootDir, attachmentsDir), timeout: cfg.Timeout,
		changed: changed, wake: make(chan struct{}, 1), volumes: map[string]*attached{},
	}
}

// open returns the volumes that an earlier process may have attached.
func (a *attacher) open() ([]volume.Recovered, error) {
	if a == nil {
		return nil, nil
	}
	found, err := records.ReadAttachments(a.dir)
	if err != nil {
		return nil, err
	}
	all := make([]volume.Recovered, 0, len(found))
	for _, r := range found {
		name := layout.Unique(r.Driver, r.Handle)
		a.volumes[name] = &attached{volume: name, driver: r.Driver, handle: r.Handle, name: layout.Attachment(r.Handle, r.Driver, a.node), uid: r.UID, detaching: r.Deleting != ""}
		all = append(all, volume.Recovered{Volume: volume.Volume{Name: name, Driver: r.Driver, Handle: r.Handle, Attachable: true}})
	}
	return all, nil
}

// Raise implements volume.InUse.
func (a *attacher) Raise(_ context.Context, name string) error {
	driver, handle, err := layout.SplitUnique(name)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.volumes[name] == nil {
		a.volumes[name] = &attached{volume: name, driver: driver, handle: handle, name: layout.Attachment(handle, driver, a.node)}
	}
	a.volumes[name].leaving = false
	return nil
}

// Drop implements volume.InUse.
func (a *attacher) Drop(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.volumes[name]; at != nil {
		at.leaving = true
		a.poke()
	}
}

func (a *attacher) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Attached implements volume.Attachments: there is no other side that would have to confirm it.
func (a *attacher) Attached(string) bool { return true }

// Attachment implements volume.Attachments. It attaches the volume.
func (a *attacher) Attachment(ctx context.Context, name string) (*volume.Attachment, error) {
	at := a.named(name)
	if at == nil {
		return nil, fmt.Errorf("%w: the volume is not in use", volume.ErrNotAttached)
	}
	at.call.Lock()
	defer at.call.Unlock()
	if at.attachment != nil {
		return at.attachment, nil
	}
	if at.detaching {
		if err := a.unpublish(ctx, at); err != nil {
			return nil, fmt.Errorf("detach volume %q, before it is attached again: %w", at.handle, err)
		}
	}
	if at.uid == "" {
		uid := uuid.NewUUID()
		if err := a.record(at, uid, ""); err != nil {
			return nil, err
		}
		at.uid = uid
	}
	published, err := a.calls.Publish(ctx, at.driver, at.handle)
	if err != nil {
		return nil, fmt.Errorf("attach volume %q: %w", at.handle, err)
	}
	at.attachment = &volume.Attachment{UID: at.uid, Metadata: published}
	return at.attachment, nil
}

// named returns the volume whose attachment has a name.
func (a *attacher) named(name string) *attached {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.volumes {
		if at.name == name {
			return at
		}
	}
	return nil
}

// run detaches volumes until ctx is done.
func (a *attacher) run(ctx context.Context) error {
	first := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 10, Cap: 10 * time.Second}
	again := first
	for {
		pause := time.Hour
		if a.detachAll(ctx) {
			pause = again.Step()
		} else {
			again = first
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-a.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// detachAll detaches all volumes that are to be, and reports whether some are still attached.
func (a *attacher) detachAll(ctx context.Context) (some bool) {
	a.mu.Lock()
	var leaving []*attached
	for _, at := range a.volumes {
		if at.leaving {
			leaving = append(leaving, at)
		}
	}
	a.mu.Unlock()
	var g errgroup.Group
	g.SetLimit(16)
	for _, at := range leaving {
		g.Go(func() error { a.detach(ctx, at); return nil })
	}
	_ = g.Wait() // no function returns an error
	return a.isLeaving(leaving...)
}

// detach detaches a volume, unless it is in use again.
func (a *attacher) detach(ctx context.Context, at *attached) {
	at.call.Lock()
	defer at.call.Unlock()
	if !a.isLeaving(at) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	err := a.unpublish(ctx, at)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The volume stays attached, trying again", logging.KeyVolumeID, at.handle)
	}
	a.mu.Lock()
	if at.err = err; err == nil && at.leaving {
		delete(a.volumes, at.volume)
	}
	a.mu.Unlock()
	a.changed()
}

// unpublish detaches a volume that is recorded, and removes the record; the caller holds the volume's lock.
func (a *attacher) unpublish(ctx context.Context, at *attached) error {
	if at.uid == "" {
		return nil
	}
	if !at.detaching {
		if err := a.record(at, at.uid, at.uid); err != nil {
			return err
		}
	}
	at.attachment, at.detaching = nil, true
	if err := a.calls.Unpublish(ctx, at.driver, at.handle); err != nil {
		return err
	}
	if err := records.RemoveAttachment(a.dir, at.name); err != nil {
		return err
	}
	at.uid, at.detaching = "", false
	return nil
}

// record writes the record of a volume.
func (a *attacher) record(at *attached, uid, deleting types.UID) error {
	r := records.Attachment{Driver: at.driver, Handle: at.handle, Name: at.name, UID: uid, Deleting: deleting}
	if err := r.Write(a.dir); err != nil {
		return fmt.Errorf("record the attachment of volume %q: %w", at.handle, err)
	}
	return nil
}

// isLeaving reports whether one of the volumes is to be detached.
func (a *attacher) isLeaving(volumes ...*attached) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range volumes {
		if at.leaving && a.volumes[at.volume] == at {
			return true
		}
	}
	return false
}

// leaves reports whether the volume of a name is to be detached, and why it is not.
func (a *attacher) leaves(name string) (bool, error) {
	if a == nil {
		return false, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.volumes[name]
	if at == nil || !at.leaving {
		return false, nil
	}
	return true, at.err
}

var errAttach = errors.New("Attach takes the place of InUse and Attachments, and needs both functions")
