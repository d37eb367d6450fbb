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

// errHeld means that another instance holds the Lease, which is still valid.
var errHeld = errors.New("lease is held by another instance")

// record is the part of a Lease that changes when an instance acquires, renews or releases it.
type record struct {
	holder      string
	duration    int32
	acquired    metav1.MicroTime
	renewed     metav1.MicroTime
	transitions int32
}

// elector is the state of one instance. It is used by one goroutine at a time.
type elector struct {
	cfg Config

	lease    *coordinationv1.Lease // last seen
	seen     record
	observed time.Time // when seen changed, by our clock
	renewed  time.Time // when our last successful attempt began, by our clock
	before   *int32    // the transitions before this instance became the holder; nil: none were counted
	unused   bool      // this instance has done nothing: the release takes its transition back

	// unwatched says that the log has reported that the Lease may not be watched.
	unwatched bool
}

// attempt acquires or renews the Lease. It returns nil if this instance holds it, errHeld if another one does.
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

// try renews from memory when this instance holds the Lease, which saves the read; otherwise it reads the Lease first.
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
	switch {
	case e.seen.holder == e.cfg.Identity:
		e.countSlowpath()
	case e.seen.holder != "" && !e.expired(time.Now()):
		return errHeld
	}
	return e.write(ctx, now)
}

// countSlowpath counts a renewal that had to read the Lease first.
func (e *elector) countSlowpath() {
	if e.cfg.Metrics != nil {
		e.cfg.Metrics.SlowpathExercised(e.cfg.Name)
	}
}

// expired reports whether the holder has not renewed the Lease within its duration, as observed by this instance.
func (e *elector) expired(now time.Time) bool {
	return !now.Before(e.observed.Add(time.Duration(e.seen.duration) * time.Second))
}

// observe stores the Lease, and when it has changed.
func (e *elector) observe(ctx context.Context, lease *coordinationv1.Lease) {
	next := recordOf(lease)
	if e.lease == nil || next != e.seen {
		if next.holder != e.seen.holder && next.holder != e.cfg.Identity {
			klog.FromContext(ctx).Info("Leader seen", logging.KeyName, next.holder)
		}
		e.observed = time.Now()
	}
	if coordinated(lease) && (e.lease == nil || !coordinated(e.lease)) {
		klog.FromContext(ctx).Info("Lease has a strategy or a preferred holder. This component takes no part in coordinated leader election and removes them when it acquires the Lease",
			logging.KeyName, ptr.Deref(lease.Spec.PreferredHolder, ""))
	}
	e.lease, e.seen = lease, next
	e.cfg.Health.see(next)
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

// write acquires or renews the Lease that was read last; if it has changed since, the API server refuses (conflict).
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

// coordinated reports whether a Lease is under coordinated leader election, where the API server chooses the holder.
func coordinated(lease *coordinationv1.Lease) bool {
	return lease.Spec.Strategy != nil || lease.Spec.PreferredHolder != nil
}

// claim makes this instance the holder in lease. As client-go's elector without coordination does, it ends the coordination:
// an API server that went on choosing holders among candidates, of which this is none, would never choose this instance.
func (e *elector) claim(lease *coordinationv1.Lease, now time.Time) {
	spec, at := &lease.Spec, metav1.NewMicroTime(now)
	if was := ptr.Deref(spec.HolderIdentity, ""); was != e.cfg.Identity {
		spec.AcquireTime = &at
		if spec.LeaseTransitions == nil {
			spec.LeaseTransitions = ptr.To[int32](-1)
		} else {
			e.before = ptr.To(*spec.LeaseTransitions)
		}
		spec.LeaseTransitions = ptr.To(*spec.LeaseTransitions + 1)
	}
	spec.Strategy, spec.PreferredHolder = nil, nil
	spec.HolderIdentity = &e.cfg.Identity
	spec.LeaseDurationSeconds = ptr.To(int32(math.Ceil(e.cfg.LeaseDuration.Seconds()))) // others count whole seconds
	spec.RenewTime = &at
}

// won stores the result of an own write.
func (e *elector) won(ctx context.Context, lease *coordinationv1.Lease) {
	first := e.seen.holder != e.cfg.Identity
	e.observe(ctx, lease)
	if first && e.cfg.Recorder != nil {
		e.cfg.Recorder.Normal(lease, "LeaderElection", e.cfg.Identity+" became leader")
	}
}

// release removes the holder, so that the next leader need not wait until the Lease expires.
func (e *elector) release(ctx context.Context) {
	logger := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.RenewDeadline)
	defer cancel()
	err := e.vacate(ctx)
	if apierrors.IsConflict(err) { // a renewal whose answer was lost, or a change of labels
		err = e.readAndVacate(ctx)
	}
	if err != nil {
		logger.Error(err, "Lease was not released, the next leader waits until it expires")
		return
	}
	logger.Info("Lease released")
}

// readAndVacate is vacate when the Lease has changed since it was read.
func (e *elector) readAndVacate(ctx context.Context) error {
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

// vacate writes the Lease that was read last without a holder.
func (e *elector) vacate(ctx context.Context) error {
	lease := e.lease.DeepCopy()
	now := metav1.NewMicroTime(time.Now())
	lease.Spec.Strategy, lease.Spec.PreferredHolder = nil, nil
	lease.Spec.HolderIdentity = ptr.To("")
	lease.Spec.LeaseDurationSeconds = ptr.To[int32](1)
	lease.Spec.RenewTime, lease.Spec.AcquireTime = &now, &now
	if e.unused && e.before != nil {
		lease.Spec.LeaseTransitions = e.before
	}
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
