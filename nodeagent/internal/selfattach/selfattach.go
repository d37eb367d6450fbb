// Package selfattach attaches volumes where no attach/detach controller does (seeds 000 and 001, "Attach" and "Detach"): it creates the
// VolumeAttachment of a volume before the volume is staged, and deletes it after the volume was unstaged.
//
// An Attacher takes the place of both sides of the handshake with the controller. Each attachment is recorded on disk before it is created and until it
// is gone, so none is left behind by a process that dies. An attachment that exists is never modified, and one that was once to be deleted is not
// used again. When a volume is attached and detached is decided in package volume.
package selfattach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/kubeletplugin"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// Naming says how VolumeAttachments are named.
type Naming string

const (
	// CSI names them as the attach/detach controller does: layout.Attachment.
	CSI Naming = "csi"
	// PV names them as the seeds do: layout.SeedAttachment.
	PV Naming = "pv"
)

// Config says what an Attacher works with. All fields without a stated default are needed.
type Config struct {
	// Client creates, reads and deletes VolumeAttachments. Where it may list and watch them, too, changes are seen at once, and not at the next poll.
	Client kube.VolumeAttachments
	// Node is the name of the node.
	Node string
	// Dir is the directory of the records; it is made.
	Dir string
	// Naming is how new attachments are named. Those that are recorded keep their names.
	Naming Naming
	// InUse keeps volumesInUse: an attach/detach controller that is started detaches each volume that is not in it.
	InUse volume.InUse
	// Managed reports whether the Node says that the attach/detach controller attaches: then nothing is attached here.
	Managed func() bool
	// Changed wakes volumes that wait for their attachments.
	Changed func(volumes ...string)
	// Seen is called with each attachment that is read.
	Seen func(*storagev1.VolumeAttachment)
	// Poll is the first of the growing intervals at which attachments are read for which something waits; 500 ms if zero.
	Poll time.Duration
	// Timeout is the deadline of one deletion; 10 s if zero.
	Timeout time.Duration
}

// Attacher attaches and detaches the volumes of a node.
type Attacher struct {
	cfg  Config
	wake chan struct{}

	mu sync.Mutex
	// entries are by the name that the attach/detach controller would give to the attachment.
	entries map[string]*entry
	// claims are the PersistentVolumes that pods want, by the same names.
	claims map[string]claim
}

var (
	_ volume.InUse       = (*Attacher)(nil)
	_ volume.Attachments = (*Attacher)(nil)
)

// claim is a PersistentVolume and the pods that want it.
type claim struct {
	pv   string
	pods sets.Set[types.UID]
}

// entry is one volume that is, or may be, attached.
type entry struct {
	// volume is the unique volume name.
	volume string

	// calls is held by the one who calls the API server for this volume. It guards the record.
	calls    sync.Mutex
	record   kubeletplugin.AttachmentRecord
	recorded bool
	problem  string // of the detachment, as it was logged

	// leaving and waiting are guarded by Attacher.mu: the volume is to be detached, or waits for its attachment. So is the name of the attachment,
	// which is empty if it is not recorded.
	leaving, waiting bool
	name             string
}

// New makes an Attacher that detaches nothing until Run.
func New(cfg Config) (*Attacher, error) {
	if cfg.Client == nil || cfg.Node == "" || cfg.Dir == "" || cfg.InUse == nil || cfg.Managed == nil || cfg.Changed == nil || cfg.Seen == nil {
		return nil, errors.New("configure self-attach: client, node, directory, volumesInUse, and three functions are needed")
	}
	if cfg.Naming != CSI && cfg.Naming != PV {
		return nil, fmt.Errorf("configure self-attach: naming %q: must be %s or %s", cfg.Naming, CSI, PV)
	}
	if cfg.Poll == 0 {
		cfg.Poll = 500 * time.Millisecond
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	return &Attacher{cfg: cfg, wake: make(chan struct{}, 1), entries: map[string]*entry{}, claims: map[string]claim{}}, nil
}

// Open reads the records of an earlier process, and returns the volumes that may be attached. It is called once, before all else.
func (a *Attacher) Open() ([]volume.Recovered, error) {
	found, err := kubeletplugin.ReadAttachmentRecords(a.cfg.Dir)
	all := make([]volume.Recovered, 0, len(found))
	for _, rec := range found {
		v := volume.Volume{Name: layout.Unique(rec.Driver, rec.Handle), Driver: rec.Driver, Handle: rec.Handle, Attachable: true}
		a.entries[layout.Attachment(rec.Handle, rec.Driver, a.cfg.Node)] = &entry{volume: v.Name, record: rec, recorded: true, name: rec.Name}
		all = append(all, volume.Recovered{Volume: v})
	}
	return all, err
}

// Expect passes the volumes that a pod is about to want, until Release: an attachment names the PersistentVolume.
func (a *Attacher) Expect(wanted []volume.Publication) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range wanted {
		v := &wanted[i].Volume
		if !v.Attachable {
			continue
		}
		key := layout.Attachment(v.Handle, v.Driver, a.cfg.Node)
		c := a.claims[key]
		if c.pods == nil {
			c.pods = sets.Set[types.UID]{}
		}
		c.pv = wanted[i].SpecName
		c.pods.Insert(wanted[i].Pod.UID)
		a.claims[key] = c
	}
}

// Release forgets a pod that has no volumes any more.
func (a *Attacher) Release(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, c := range a.claims {
		if c.pods.Delete(pod); c.pods.Len() == 0 {
			delete(a.claims, key)
		}
	}
}

// Name returns the name of the attachment of a volume, by that which the attach/detach controller would give to it.
func (a *Attacher) Name(controllers string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.entries[controllers]; e != nil && e.name != "" {
		return e.name
	}
	return a.newName(controllers)
}

// newName is the name of an attachment that is not recorded; the caller holds the lock.
func (a *Attacher) newName(controllers string) string {
	pv := a.claims[controllers].pv
	if a.cfg.Naming == PV && pv != "" {
		return layout.SeedAttachment(pv, a.cfg.Node)
	}
	return controllers
}

// Raise implements volume.InUse. A volume that is about to be detached is kept, if its attachment is still there.
func (a *Attacher) Raise(ctx context.Context, name string) error {
	a.mark(name, false)
	return a.cfg.InUse.Raise(ctx, name)
}

// Drop implements volume.InUse: the volume is detached, and then leaves volumesInUse.
func (a *Attacher) Drop(name string) {
	a.mark(name, true)
	a.poke()
}

func (a *Attacher) mark(name string, leaving bool) {
	driver, handle, err := layout.SplitUnique(name)
	if err != nil {
		return // an inline volume, which is never attached
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.get(layout.Attachment(handle, driver, a.cfg.Node), name)
	e.leaving, e.waiting = leaving, false
}

// get returns the entry of a volume, and makes it if there is none; the caller holds the lock.
func (a *Attacher) get(controllers, name string) *entry {
	if a.entries[controllers] == nil {
		a.entries[controllers] = &entry{volume: name}
	}
	return a.entries[controllers]
}

// Attached implements volume.Attachments: there is no other side of the handshake, so that Attachment may be asked.
func (a *Attacher) Attached(string) bool { return true }

// Attachment implements volume.Attachments. It creates the attachment if there is none; volume.ErrNotAttached means that it is not attached yet.
func (a *Attacher) Attachment(ctx context.Context, controllers string) (*volume.Attachment, error) {
	if a.cfg.Managed() {
		return nil, fmt.Errorf("volume attachment %q: the Node still says that the attach/detach controller attaches volumes", controllers)
	}
	a.mu.Lock()
	e, pv := a.entries[controllers], a.claims[controllers].pv
	a.mu.Unlock()
	if e == nil {
		return nil, fmt.Errorf("volume attachment %q: the volume is not in use", controllers)
	}
	e.calls.Lock()
	defer e.calls.Unlock()
	found, err := a.attach(ctx, e, a.Name(controllers), pv)
	a.wait(e, errors.Is(err, volume.ErrNotAttached))
	return found, err
}

// wait notes whether a volume waits for its attachment.
func (a *Attacher) wait(e *entry, waiting bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if waiting && !e.waiting {
		a.poke() // so that the loop polls
	}
	e.waiting = waiting
}

// attach reads the attachment, or creates it.
func (a *Attacher) attach(ctx context.Context, e *entry, name, pv string) (*volume.Attachment, error) {
	va, err := a.cfg.Client.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, a.create(ctx, e, name, pv)
	case err != nil:
		return nil, fmt.Errorf("get volume attachment %q: %w", name, err)
	case !a.isOf(va, e.volume):
		return nil, fmt.Errorf("volume attachment %q is for driver %q and node %q: another one has its name", name, va.Spec.Attacher, va.Spec.NodeName)
	case va.DeletionTimestamp != nil:
		return nil, fmt.Errorf("%w: volume attachment %q is being deleted, and is created again when it is gone", volume.ErrNotAttached, name)
	case e.record.Deleting != "" && va.UID == e.record.Deleting: // the request may still be under way
		return nil, errors.Join(fmt.Errorf("%w: volume attachment %q is deleted first", volume.ErrNotAttached, name), a.remove(ctx, name, va))
	}
	a.cfg.Seen(va)
	if err := a.save(e, name, pv); err != nil {
		return nil, err
	}
	switch {
	case va.Status.Attached:
		return &volume.Attachment{UID: va.UID, Metadata: va.Status.AttachmentMetadata}, nil
	case va.Status.AttachError != nil:
		return nil, fmt.Errorf("volume attachment %q is not attached: %s", name, va.Status.AttachError.Message)
	default:
		return nil, fmt.Errorf("%w: volume attachment %q is not attached", volume.ErrNotAttached, name)
	}
}

// isOf reports whether a VolumeAttachment is for the driver of a volume and this node: names of the form pv- have no driver in them.
func (a *Attacher) isOf(va *storagev1.VolumeAttachment, unique string) bool {
	driver, _, err := layout.SplitUnique(unique)
	return err == nil && va.Spec.Attacher == driver && va.Spec.NodeName == a.cfg.Node
}

// create records the attachment and creates it.
func (a *Attacher) create(ctx context.Context, e *entry, name, pv string) error {
	driver, _, err := layout.SplitUnique(e.volume)
	if err == nil && pv == "" {
		err = errors.New("the PersistentVolume is not known")
	}
	if err != nil {
		return fmt.Errorf("create volume attachment %q: %w", name, err)
	}
	if err := a.save(e, name, pv); err != nil {
		return err
	}
	_, err = a.cfg.Client.Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver, NodeName: a.cfg.Node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create volume attachment %q: %w", name, err)
	}
	return fmt.Errorf("%w: volume attachment %q is created", volume.ErrNotAttached, name)
}

// save records an attachment, unless it is recorded.
func (a *Attacher) save(e *entry, name, pv string) error {
	driver, handle, err := layout.SplitUnique(e.volume)
	if err != nil || e.recorded {
		return err
	}
	e.record = kubeletplugin.AttachmentRecord{SpecVolID: pv, Handle: handle, Driver: driver, Name: name}
	if err := e.record.Write(a.cfg.Dir); err != nil {
		return fmt.Errorf("record volume attachment %q: %w", name, err)
	}
	e.recorded = true
	a.mu.Lock()
	defer a.mu.Unlock()
	e.name = name
	return nil
}

// remove deletes an attachment, and no other one of its name.
func (a *Attacher) remove(ctx context.Context, name string, va *storagev1.VolumeAttachment) error {
	err := a.cfg.Client.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &va.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete volume attachment %q: %w", name, err)
	}
	return nil
}

func (a *Attacher) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}
