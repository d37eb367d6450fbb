// Package intents remembers volumes between the moment before they are first asked for and the moment
// their fate is known, so that none is ever forgotten while the driver may still be making it. An intent
// is opened before CreateVolume and closed once its outcome is final: the PersistentVolume is saved, the
// volume is deleted again, or the driver said for certain that there is none.
//
// Memory, the implementation here, keeps intents as long as the process lives. The Store interface is cut
// so that a durable one can take its place: Open must have stored the intent when it returns, no secret
// is ever part of an intent, and the stages are all that a successor needs to finish or undo it.
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
	// Creating: CreateVolume was or is about to be called, its outcome is open.
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
	// Spec is what the volume was asked for with. Its claim identifies the intent.
	Spec volume.Spec
	// Request is the exact request, without secrets, that every attempt repeats: a driver that sees other
	// arguments under the same name may answer AlreadyExists, or make a second volume.
	Request *csi.CreateVolumeRequest
	// VolumeID is the handle of the volume, empty while Creating.
	VolumeID string
	// PV is the object to be written, nil unless Saving.
	PV *corev1.PersistentVolume
	// Opened is when the volume was first asked for.
	Opened time.Time
	// Reason says why the volume is unwanted, empty unless Undoing.
	Reason string
}

// UID returns the UID of the claim, by which intents are told apart.
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
}

// Memory is a Store that lives as long as the process. After a crash the claims that still exist are
// provisioned anew under the same volume names, which recovers their volumes; only volumes whose claims
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
