package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// This file reads and writes the Lease of a Journal, whose holder has the journal: a leader that was replaced cannot write it any more, and so cannot
// call CreateVolume.

const (
	// Annotation of a Lease has the records.
	Annotation = "csi.longshore.dev/provisioner-journal"
	// AnnotationUnread has what another version of this program has left in Annotation, and this one cannot read.
	AnnotationUnread = Annotation + "-unread"
	// AnnotationAbandon has the UIDs of claims, separated by commas, whose records an administrator, or the process before, wants to be removed.
	AnnotationAbandon = "csi.longshore.dev/abandon"
)

// takeOver reads the Lease and the Leases of the former version, and becomes the holder.
func (j *Journal) takeOver(ctx context.Context) (records map[types.UID]record, err error) {
	lease, err := j.getLease(ctx, j.cfg.Name)
	switch {
	case apierrors.IsNotFound(err):
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: j.cfg.Name, Labels: maps.Clone(j.cfg.Labels)}}
		if j.cfg.Owner != nil {
			lease.OwnerReferences = []metav1.OwnerReference{*j.cfg.Owner}
		}
	case err != nil:
		return nil, err
	}
	records = j.read(ctx, lease)
	former, err := j.readFormer(ctx, records)
	if err != nil {
		return nil, err
	}
	if err := j.store(ctx, lease, records); err != nil {
		return nil, err
	}
	for _, name := range former {
		j.deleteLease(ctx, name)
	}
	return records, nil
}

// read returns the records of a Lease. Those that this process may not act on say why.
func (j *Journal) read(ctx context.Context, lease *coordinationv1.Lease) map[types.UID]record {
	records := map[types.UID]record{}
	d, err := decode(lease.Annotations[Annotation])
	if err != nil {
		klog.FromContext(ctx).Error(err, "Records of volumes in progress cannot be read: look for these volumes in the storage system, then remove the annotation from the Lease",
			logging.KeyLease, lease.Name, "annotation", AnnotationUnread)
		lease.Annotations[AnnotationUnread] = lease.Annotations[Annotation]
		return records
	}
	why := d.distrust(j.cfg.Term, time.Now())
	for _, r := range d.Records {
		if r.Reported == "" {
			r.Reported = why
		}
		r.busy = min(d.Busy, trustedAge)
		records[r.UID] = r
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, uid := range abandoned(lease) {
		delete(records, uid)
		delete(j.open, uid) // what this process remembers from before the takeover
		delete(j.records, uid)
	}
	return records
}

// abandoned removes the annotation of an administrator from a Lease, and returns what it names.
func abandoned(lease *coordinationv1.Lease) (claims []types.UID) {
	for name := range strings.SplitSeq(lease.Annotations[AnnotationAbandon], ",") {
		claims = append(claims, types.UID(strings.TrimSpace(name)))
	}
	delete(lease.Annotations, AnnotationAbandon)
	return claims
}

// getLease reads a Lease.
func (j *Journal) getLease(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Timeout)
	defer cancel()
	lease, err := j.cfg.Leases.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get Lease %q: %w", name, err)
	}
	return lease, nil
}

// deleteLease deletes a Lease whose records are in another one. One that stays does no harm.
func (j *Journal) deleteLease(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Timeout)
	defer cancel()
	if err := j.cfg.Leases.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		klog.FromContext(ctx).Info("Lease of a former version was not deleted", logging.KeyLease, name, logging.KeyReason, err.Error())
	}
}

// commit writes the records, if they have changed. A Lease that somebody else has written is written again, unless another process has the journal by now.
func (j *Journal) commit(ctx context.Context) error {
	j.mu.Lock()
	batch, lease, records := j.waiting, j.lease, maps.Clone(j.records)
	due := j.changed || len(batch) > 0
	j.waiting, j.changed = nil, false
	j.mu.Unlock()
	var err error
	if due && lease != nil {
		err = j.store(ctx, lease, records)
		for tries := 0; raced(err) && tries < maxRaces; tries++ {
			err = j.storeAgain(ctx, records)
		}
		j.ended(ctx, err)
	}
	for _, result := range batch {
		result <- err
	}
	return err
}

// raced reports whether somebody else has written the Lease at the same time.
func raced(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
}

// storeAgain stores the records in the Lease as it is now.
func (j *Journal) storeAgain(ctx context.Context, records map[types.UID]record) error {
	live, err := j.getLease(ctx, j.cfg.Name)
	if err != nil {
		return err
	}
	if holder := live.Spec.HolderIdentity; holder == nil || *holder != j.cfg.Identity {
		return j.tell(ctx, live)
	}
	var closed []Intent
	for _, claim := range abandoned(live) {
		if r, ok := records[claim]; ok {
			klog.FromContext(ctx).Info("Record of a volume in progress is removed, as an administrator or the process before asked for", logging.KeyVolumeName, r.Volume, logging.KeyClaim, r.Claim)
			delete(records, claim)
			closed = append(closed, r.intent())
			j.Close(claim)
		}
	}
	j.adopt(closed)
	return j.store(ctx, live, records)
}

// ended notes how a write has ended. An instance without an election that another one has replaced goes on without records: both may be at work.
func (j *Journal) ended(ctx context.Context, err error) {
	j.mu.Lock()
	j.changed = j.changed || err != nil
	if errors.Is(err, ErrSuperseded) && j.cfg.Term == (Term{}) {
		j.lease, j.superseded = nil, true
	}
	j.mu.Unlock()
	if err == nil || refuses(err) {
		j.setRefused(ctx, err)
	}
}

// store writes records into a Lease, which only the goroutine that writes has.
func (j *Journal) store(ctx context.Context, lease *coordinationv1.Lease, records map[types.UID]record) error {
	text, err := encode(document{Term: j.cfg.Term, Written: time.Now(), Busy: j.busy()}, records)
	if err != nil {
		return err
	}
	lease = lease.DeepCopy()
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Annotations[Annotation] = text
	lease.Spec.HolderIdentity = &j.cfg.Identity
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Timeout)
	defer cancel()
	var stored *coordinationv1.Lease
	if lease.ResourceVersion != "" {
		stored, err = j.cfg.Leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if lease.ResourceVersion == "" || apierrors.IsNotFound(err) { // it is new, or was deleted
		lease.ResourceVersion, lease.UID = "", ""
		stored, err = j.cfg.Leases.Create(ctx, lease, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write Lease %q: %w", lease.Name, err)
	}
	j.mu.Lock()
	j.lease = stored
	j.mu.Unlock()
	return nil
}
