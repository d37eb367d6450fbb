package journal

import (
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// Stage says how far a volume has come, for logs and /debug/state, too.
type Stage string

// The stages, in the order in which they are gone through; Undoing may follow any of the others.
const (
	// Awaited: the process before may still be working on it, and this one waits for the end of that.
	Awaited Stage = "awaited"
	// Creating: CreateVolume was called or is about to be, its outcome is pending or unknown.
	Creating Stage = "creating"
	// Saving: the volume exists, its PersistentVolume is being written.
	Saving Stage = "saving"
	// Undoing: the volume exists and is unwanted, it is being deleted.
	Undoing Stage = "undoing"
	// Reported: the volume may exist, and this process may neither ask for it nor delete it; an administrator has to.
	Reported Stage = "reported"
)

// Intent is the obligation to finish one volume. It is a value: a Journal hands out copies, and what its
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
	// known to have left none.
	Uncertain time.Time
	// Settles is when no attempt can be running any more that has ended without an answer: a final answer to the same request after that time says
	// that there is no volume. Zero as long as Uncertain is.
	Settles time.Time
	// Recovered says that the intent was read from a record of another process: Spec has no class, and its claim has a name and a UID only.
	Recovered bool
	// Secrets are the values that CreateVolume was called with last. They are kept for the case that the secret is deleted
	// while the volume is not settled.
	Secrets Secrets
	// Reason says why the volume is unwanted or reported, empty before.
	Reason string
}

// UID returns the UID of the claim, which identifies the intent.
func (i Intent) UID() types.UID {
	return i.Spec.Claim.UID
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
