package intents

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

const (
	// editAttempts is how often a claim is read and written again when other writers are faster.
	editAttempts = 5
)

var (
	// errGone is returned when a claim that is to be written does not exist any more.
	errGone = errors.New("the claim does not exist any more")
	// errLeaving is returned when a claim that is being deleted is to have a record.
	errLeaving = errors.New("the claim is being deleted, and gets no volume any more: nothing would say what to do with the volume once the claim is gone")
)

// Claims is a Store whose intents outlive the process as annotations of their claims. A finalizer keeps each claim until the
// outcome of its volume is known, so that the record cannot vanish while the driver may be making the volume. It is for
// instances without an election, and for those that provision for one node, which have no Leases.
//
// Where claims may not be updated, it is no more than Memory.
type Claims struct {
	*Memory
	api func(namespace string) kube.PersistentVolumeClaims
	// node is the node of the instance, empty for the whole cluster.
	node string

	mu sync.Mutex
	// written is called with each claim that was written.
	written func(*corev1.PersistentVolumeClaim)
	// recorded has the claims with a record that is this instance's to finish, each with the node in it; refused says that they may
	// not be written.
	recorded map[types.UID]string
	refused  bool
}

var _ Store = (*Claims)(nil)

// NewClaims returns a store that writes claims by a client of each namespace, for the instance of a node or, without one, for that of
// the whole cluster.
func NewClaims(api func(namespace string) kube.PersistentVolumeClaims, node string) *Claims {
	return &Claims{Memory: NewMemory(), api: api, node: node, written: func(*corev1.PersistentVolumeClaim) {}, recorded: map[types.UID]string{}}
}

// Follow has a function called with each claim as it was written, until another is set: a cache must not show a record that
// is gone.
func (s *Claims) Follow(written func(*corev1.PersistentVolumeClaim)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = written
}

// Durable implements Store.
func (s *Claims) Durable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.refused
}

// Open implements Store: it returns once the claim has the record. A claim that is being deleted can have no new finalizer, and may
// vanish at any moment, also if it seems that a pod uses it: a controller manager that is late takes its finalizer off minutes later.
func (s *Claims) Open(ctx context.Context, intent Intent) error {
	r, shared, err := recordOf(intent, s.node)
	if err != nil {
		return err
	}
	err = s.edit(ctx, intent.Spec.Claim, func(claim *corev1.PersistentVolumeClaim) error { return addRecord(claim, r, shared) })
	switch {
	case apierrors.IsForbidden(err):
		s.refuse(ctx, err)
	case err != nil:
		return fmt.Errorf("store the record of volume %q: %w", intent.Spec.Name, err)
	default:
		s.note(intent.UID(), s.node)
	}
	return s.Memory.Open(ctx, intent)
}

// refuse notes that claims may not be written, and logs it once.
func (s *Claims) refuse(ctx context.Context, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.refused {
		klog.FromContext(ctx).Error(err, "Volumes in progress are not recorded: a volume whose claim is deleted while this process ends may be left behind. Allow update of persistentvolumeclaims")
	}
	s.refused = true
}

// note notes that a claim has a record of a node.
func (s *Claims) note(claim types.UID, node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recorded[claim], s.refused = node, false
}

// noted returns the node of the record that a claim has; ok is false without one.
func (s *Claims) noted(claim types.UID) (node string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	node, ok = s.recorded[claim]
	return node, ok
}

// Close implements Store: it lets the claim go. With an error the intent is still open.
func (s *Claims) Close(ctx context.Context, claim types.UID) error {
	intent, open := s.Get(claim)
	node, recorded := s.noted(claim)
	if !open || !recorded {
		return s.Memory.Close(ctx, claim)
	}
	err := s.edit(ctx, intent.Spec.Claim, func(claim *corev1.PersistentVolumeClaim) error { return DropRecord(claim, node) })
	if err != nil && !errors.Is(err, errGone) {
		return fmt.Errorf("take the record of volume %q off claim %s: %w", intent.Spec.Name, klog.KObj(intent.Spec.Claim), err)
	}
	s.mu.Lock()
	delete(s.recorded, claim)
	s.mu.Unlock()
	return s.Memory.Close(ctx, claim)
}

// Recover implements Store. An instance for the whole cluster goes on with the records of any node.
func (s *Claims) Recover(ctx context.Context, claim *corev1.PersistentVolumeClaim) (Intent, bool) {
	if !Recorded(claim) {
		return Intent{}, false
	}
	owner, err := ownerFor(claim, s.node)
	var intent Intent
	if err == nil {
		intent, err = intentOf(claim, owner)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Record of a volume in progress cannot be read: look for the volume in the storage system, then take the finalizer "+volume.FinalizerInProgress+" off the claim",
			logging.KeyClaim, klog.KObj(claim))
		return Intent{}, false
	}
	s.note(claim.UID, owner)
	_ = s.Memory.Open(ctx, intent) // never fails
	return intent, true
}

// edit changes a claim as the server has it, and writes it as a whole: the permissions that provisioners have always had allow
// updates of claims, and no patches.
func (s *Claims) edit(ctx context.Context, claim *corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolumeClaim) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client := s.api(claim.Namespace)
	for range editAttempts {
		live, getErr := client.Get(ctx, claim.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(getErr) || getErr == nil && live.UID != claim.UID:
			return errGone
		case getErr != nil:
			return fmt.Errorf("get claim %s: %w", klog.KObj(claim), getErr)
		}
		if err := change(live); err != nil {
			return err
		}
		updated, updateErr := client.Update(ctx, live, metav1.UpdateOptions{})
		if updateErr == nil {
			s.mu.Lock()
			written := s.written
			s.mu.Unlock()
			written(updated)
			return nil
		}
		if err = fmt.Errorf("update claim %s: %w", klog.KObj(claim), updateErr); !apierrors.IsConflict(updateErr) {
			return err
		}
	}
	return err
}
