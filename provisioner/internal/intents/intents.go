// Package intents remembers volumes from before the first CreateVolume until the outcome is known, so that no volume is
// forgotten while the driver may still be making it. An intent is opened before CreateVolume and closed when one of three
// things is certain: the PersistentVolume is saved, the volume is deleted, or the driver has no such volume.
//
// Memory keeps intents as long as the process lives. Journal keeps them in Leases besides, and Claims in annotations of their
// claims, so that the next process finishes or deletes the volumes of one that was killed.
//
// Do not use this package to cache anything: an intent is an obligation.
package intents

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// Stage says how far a volume has come.
type Stage int

// The stages, in the order in which they are gone through; Undoing may follow any of the others.
const (
	// Creating: CreateVolume was called or is about to be, its outcome is pending or unknown.
	Creating Stage = iota
	// Saving: the volume exists, its PersistentVolume is being written.
	Saving
	// Undoing: the volume exists and is unwanted, it is being deleted.
	Undoing
)

// String names the stage for logs and /debug/state.
func (s Stage) String() string {
	switch s {
	case Creating:
		return "creating"
	case Saving:
		return "saving"
	case Undoing:
		return "undoing"
	}
	return fmt.Sprintf("stage %d", int(s))
}

// Intent is the obligation to finish one volume. It is a value: a Store hands out copies, and what its
// pointers lead to is never changed.
type Intent struct {
	// Stage says what is to be done next.
	Stage Stage
	// Spec is what the request was made from. Its claim identifies the intent.
	Spec volume.Spec
	// Request is the exact request, without secrets, that every attempt repeats: a driver that sees other
	// arguments under the same name may answer AlreadyExists, or make a second volume.
	Request *csi.CreateVolumeRequest
	// VolumeID is the handle of the volume, empty while Creating.
	VolumeID string
	// PV is the object to be written, nil unless Saving.
	PV *corev1.PersistentVolume
	// Opened is the time of the first CreateVolume.
	Opened time.Time
	// Uncertain is the time since when a volume may exist that the driver has not confirmed; zero while every attempt is
	// known to have left none. Once it is set, only a successful CreateVolume settles it: an error reports how its
	// own attempt ended, and nothing about an earlier one, which may still be running (CSI v1.13, "Error Scheme").
	Uncertain time.Time
	// Renewable says that the volume is known by ALREADY_EXISTS alone: another process has made it with another request, and
	// no attempt with Request may still be running. The request may then be made again from what is known now.
	Renewable bool
	// Recovered says that the intent was read from a Journal after the process that had opened it: Spec has no class, its
	// claim has a name and a UID only, and Request asks for one segment of the topology at most, so that it serves to find a
	// volume and not to make one.
	Recovered bool
	// OtherTopology is the requirement of the other form of a recovered request, of which one has a segment and one has none.
	OtherTopology *csi.TopologyRequirement
	// Secrets are the values that CreateVolume was called with last. They are kept for the case that the secret is deleted
	// while the volume is not settled.
	Secrets Secrets
	// Reason says why the volume is unwanted, empty unless Undoing.
	Reason string
}

// Unknown reports whether the volume may exist without the driver having confirmed it.
func (i Intent) Unknown() bool {
	return i.Stage == Creating && !i.Uncertain.IsZero()
}

// Secrets are values that must not appear in a log, an event or a document.
type Secrets map[string]string

// String hides the values from fmt.
func (s Secrets) String() string {
	return fmt.Sprintf("%d secret values", len(s))
}

// MarshalText hides the values from encoding/json and from loggers.
func (s Secrets) MarshalText() ([]byte, error) {
	return []byte(s.String()), nil
}

// UID returns the UID of the claim, which identifies the intent.
func (i Intent) UID() types.UID {
	return i.Spec.Claim.UID
}

// ErrUnknown is returned when an intent that is to be updated was never opened.
var ErrUnknown = errors.New("no open intent")

// Store remembers open intents. All methods may be called concurrently.
type Store interface {
	// Open remembers a new intent. CreateVolume may be called only once Open has returned nil.
	Open(ctx context.Context, intent Intent) error
	// Update replaces an open intent, at a change of stage.
	Update(ctx context.Context, intent Intent) error
	// Close forgets the intent of a claim; an unknown one is no error.
	Close(ctx context.Context, claim types.UID) error
	// Get returns the open intent of a claim.
	Get(claim types.UID) (Intent, bool)
	// List returns all open intents, by volume name.
	List() []Intent
	// Recover opens the intent that a claim has a record of, by which another process has left it; ok is false without one.
	Recover(ctx context.Context, claim *corev1.PersistentVolumeClaim) (intent Intent, ok bool)
	// Durable reports whether the intents outlive the process.
	Durable() bool
}

// Memory is a Store that lives as long as the process. After a crash, the claims that still exist are
// provisioned again under the same volume names, which recovers their volumes; only volumes whose claims
// were deleted around the crash are left behind.
type Memory struct {
	mu   sync.RWMutex
	open map[types.UID]Intent
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{open: map[types.UID]Intent{}}
}

// Open implements Store.
func (m *Memory) Open(_ context.Context, intent Intent) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open[intent.UID()] = intent
	return nil
}

// Update implements Store.
func (m *Memory) Update(_ context.Context, intent Intent) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.open[intent.UID()]; !ok {
		return fmt.Errorf("update intent of claim %q to stage %q: %w", intent.UID(), intent.Stage, ErrUnknown)
	}
	m.open[intent.UID()] = intent
	return nil
}

// Close implements Store.
func (m *Memory) Close(_ context.Context, claim types.UID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, claim)
	return nil
}

// Recover implements Store: there are no records.
func (m *Memory) Recover(context.Context, *corev1.PersistentVolumeClaim) (Intent, bool) {
	return Intent{}, false
}

// Durable implements Store.
func (m *Memory) Durable() bool { return false }

// Get implements Store.
func (m *Memory) Get(claim types.UID) (Intent, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	intent, ok := m.open[claim]
	return intent, ok
}

// List implements Store.
func (m *Memory) List() []Intent {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.SortedFunc(maps.Values(m.open), func(a, b Intent) int {
		return strings.Compare(a.Spec.Name, b.Spec.Name)
	})
}
