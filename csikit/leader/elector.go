package leader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// errHeld says that somebody else has a Lease that is still valid.
var errHeld = errors.New("lease is held by another instance")

// record is the part of a Lease that changes when somebody uses it.
type record struct {
	holder      string
	duration    int32
	acquired    metav1.MicroTime
	renewed     metav1.MicroTime
	transitions int32
}

// elector holds what one instance knows. It is used by one goroutine at a time.
type elector struct {
	cfg Config

	lease    *coordinationv1.Lease // last seen
	seen     record
	observed time.Time // when seen changed, by our clock
	renewed  time.Time // when our last successful attempt began, by our clock
}

// attempt gets or renews the Lease. It returns nil when we have it, errHeld when another has it.
func (e *elector) attempt(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := time.Now()
	err := e.try(ctx, began)
	if err == nil {
		e.renewed = began
		e.cfg.Health.set(began.Add(e.cfg.LeaseDuration))
	}
	return err
}

// try renews from memory when we hold the Lease, which saves the read, else looks first.
func (e *elector) try(ctx context.Context, now time.Time) error {
	if e.lease != nil && e.seen.holder == e.cfg.Identity && !e.expired(now) {
		err := e.write(ctx, now)
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	lease, err := e.get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return e.create(ctx, now)
	case err != nil:
		return err
	}
	e.observe(ctx, lease)
	if e.seen.holder != "" && e.seen.holder != e.cfg.Identity && !e.expired(time.Now()) {
		return errHeld
	}
	return e.write(ctx, now)
}

// expired reports whether the holder has been silent for longer than it promised, as far as we have seen.
func (e *elector) expired(now time.Time) bool {
	return !now.Before(e.observed.Add(time.Duration(e.seen.duration) * time.Second))
}

// observe notes what the Lease says, and when it has changed.
func (e *elector) observe(ctx context.Context, lease *coordinationv1.Lease) {
	next := recordOf(lease)
	if e.lease == nil || next != e.seen {
		if next.holder != e.seen.holder && next.holder != e.cfg.Identity {
			klog.FromContext(ctx).Info("Leader seen", logging.KeyName, next.holder)
		}
		e.observed = time.Now()
	}
	e.lease, e.seen = lease, next
}

func (e *elector) create(ctx context.Context, now time.Time) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.cfg.Namespace, Name: e.cfg.Name}}
	lease.Labels = merged(nil, e.cfg.Labels)
	e.claim(lease, now)
	stored, err := e.cfg.Client.Leases(e.cfg.Namespace).Create(ctx, lease, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create Lease: %w", err)
	}
	e.won(ctx, stored)
	return nil
}

// write takes or renews the Lease that was seen; if it is another by now, the API refuses (conflict).
func (e *elector) write(ctx context.Context, now time.Time) error {
	lease := e.lease.DeepCopy()
	lease.Labels = merged(lease.Labels, e.cfg.Labels)
	e.claim(lease, now)
	stored, err := e.cfg.Client.Leases(e.cfg.Namespace).Update(ctx, lease, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update Lease: %w", err)
	}
	e.won(ctx, stored)
	return nil
}

// claim makes us the holder in lease.
func (e *elector) claim(lease *coordinationv1.Lease, now time.Time) {
	spec, at := &lease.Spec, metav1.NewMicroTime(now)
	if was := ptr.Deref(spec.HolderIdentity, ""); was != e.cfg.Identity {
		spec.AcquireTime = &at
		if spec.LeaseTransitions == nil {
			spec.LeaseTransitions = ptr.To[int32](-1)
		}
		spec.LeaseTransitions = ptr.To(*spec.LeaseTransitions + 1)
	}
	spec.HolderIdentity = &e.cfg.Identity
	spec.LeaseDurationSeconds = ptr.To(int32(math.Ceil(e.cfg.LeaseDuration.Seconds()))) // others count whole seconds
	spec.RenewTime = &at
}

// won notes our own write.
func (e *elector) won(ctx context.Context, lease *coordinationv1.Lease) {
	first := e.seen.holder != e.cfg.Identity
	e.observe(ctx, lease)
	if first && e.cfg.Recorder != nil {
		e.cfg.Recorder.Normal(lease, "LeaderElection", e.cfg.Identity+" became leader")
	}
}

// release gives the Lease back, so that nobody has to wait until it expires.
func (e *elector) release(ctx context.Context) {
	logger := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.RenewDeadline)
	defer cancel()
	err := e.vacate(ctx)
	if apierrors.IsConflict(err) { // a renewal whose answer was lost, or somebody's labels
		err = e.lookAndVacate(ctx)
	}
	if err != nil {
		logger.Error(err, "Lease was not released, the next leader waits until it expires")
		return
	}
	logger.Info("Lease released")
}

// lookAndVacate is vacate when the Lease is not as it was last seen.
func (e *elector) lookAndVacate(ctx context.Context) error {
	lease, err := e.get(ctx)
	if err != nil {
		return err
	}
	e.observe(ctx, lease)
	if e.seen.holder != e.cfg.Identity {
		return fmt.Errorf("release Lease, which %q holds now: %w", e.seen.holder, errHeld)
	}
	return e.vacate(ctx)
}

// vacate writes the Lease that was seen without a holder.
func (e *elector) vacate(ctx context.Context) error {
	lease := e.lease.DeepCopy()
	now := metav1.NewMicroTime(time.Now())
	lease.Spec.HolderIdentity = ptr.To("")
	lease.Spec.LeaseDurationSeconds = ptr.To[int32](1)
	lease.Spec.RenewTime, lease.Spec.AcquireTime = &now, &now
	if _, err := e.cfg.Client.Leases(e.cfg.Namespace).Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update Lease: %w", err)
	}
	return nil
}

func (e *elector) get(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := e.cfg.Client.Leases(e.cfg.Namespace).Get(ctx, e.cfg.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get Lease: %w", err)
	}
	return lease, nil
}

func recordOf(lease *coordinationv1.Lease) record {
	spec := lease.Spec
	return record{
		holder:      ptr.Deref(spec.HolderIdentity, ""),
		duration:    ptr.Deref(spec.LeaseDurationSeconds, 0),
		acquired:    ptr.Deref(spec.AcquireTime, metav1.MicroTime{}),
		renewed:     ptr.Deref(spec.RenewTime, metav1.MicroTime{}),
		transitions: ptr.Deref(spec.LeaseTransitions, 0),
	}
}

// merged returns labels with ours, which win.
func merged(labels, ours map[string]string) map[string]string {
	if len(ours) == 0 {
		return labels
	}
	all := make(map[string]string, len(labels)+len(ours))
	for key, value := range labels {
		all[key] = value
	}
	for key, value := range ours {
		all[key] = value
	}
	return all
}
