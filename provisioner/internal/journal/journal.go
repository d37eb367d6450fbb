// Package journal remembers volumes from before the first CreateVolume until the outcome is known, so that no volume is
// forgotten while the driver may still be making it. An intent is opened before CreateVolume and closed when one of three
// things is certain: the PersistentVolume is saved, the volume is deleted, or the driver has no such volume.
//
// The journal keeps intents in memory and, as long as the API server takes them, as records in Leases, where the next process finds those of one
// that was killed. A record is a question to the driver and never an order to delete: docs/adr/0007.
//
// Do not use this package to cache anything: an intent is an obligation.
package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/poll"
)

const (
	// lazyWrite is the longest time until the end of an intent is written.
	lazyWrite = 2 * time.Second
	// heartbeat is the longest time between two writes while there are records.
	heartbeat = time.Minute
	// lastWrite is how long the last write may take, at the end of the process.
	lastWrite = 2 * time.Second
	// retryPause is the pause before the takeover is tried again.
	retryPause = time.Second
	// maxRaces is how often a write is repeated that another writer was faster than.
	maxRaces = 3
)

// ErrSuperseded is returned when another process has taken over the Leases of an elected leader: that leads, and this one does not any more.
var ErrSuperseded = errors.New("the records of volumes in progress were taken over by another process")

// Config says where a Journal keeps its records.
type Config struct {
	// Leases has the Leases of one namespace, and Name is the name of the Lease.
	Leases kube.Leases
	Name   string
	// Identity identifies this process among all that ever had the journal.
	Identity string
	// Labels are put on the Lease, and Owner, unless it is nil, is made its owner.
	Labels map[string]string
	Owner  *metav1.OwnerReference
	// Term is the term of the elected leader, the zero value without an election.
	Term Term
	// Timeout is the deadline of one request to the API server.
	Timeout time.Duration
	// Settle is how long the driver may be working on a call of the process before.
	Settle time.Duration
	// Adopted is called with intents that were taken over late, because the API server had refused it before, or were awaited. nil: it is not.
	Adopted func([]Intent)
	// Report is called when the records can no longer be written, with why. nil: it is not.
	Report func(why error)
}

// Term is one leadership of an election.
type Term struct {
	// Lease is the UID of the election's Lease, and Transitions its spec.leaseTransitions.
	Lease       types.UID `json:"lease,omitempty"`
	Transitions int32     `json:"transitions,omitempty"`
}

// follows reports whether a term is the one directly after another. A container that is restarted in its pod is the same holder: then the transitions are the same.
func (t Term) follows(before Term) bool {
	if t.Lease == "" {
		return before.Lease == ""
	}
	return t.Lease == before.Lease && (t.Transitions == before.Transitions || t.Transitions == before.Transitions+1)
}

// Journal has the open intents of an instance. All methods may be called concurrently. The zero value is not usable.
type Journal struct {
	mu   sync.Mutex
	cfg  Config
	open map[types.UID]Intent
	// lease is the Lease as it was written last, nil while nothing is stored, and records are what it is to hold.
	lease   *coordinationv1.Lease
	records map[types.UID]record
	// changed says that the Lease is to be written.
	changed bool
	// superseded says that another instance has the Lease; refused is why the last write did not succeed, nil if it did.
	superseded bool
	refused    error
	// waitOver has a value when the process before is not working on intents any more that are Awaited.
	waitOver <-chan time.Time
	// until is when this process ends its work on records that it has handed over, zero if it has not, and closed has the claims of those that it has closed since.
	until  time.Time
	closed []string
	// waiting has the ends of the writes that Open waits for.
	waiting []chan<- error
	// wake has a value when waiting has, and dirty when there is a change that no Open waits for.
	wake, dirty chan struct{}
}

// New returns a journal that stores nothing yet.
func New() *Journal {
	return &Journal{open: map[types.UID]Intent{}, records: map[types.UID]record{}, wake: make(chan struct{}, 1), dirty: make(chan struct{}, 1)}
}

// Start takes over the records of the processes before, opens their intents, and writes until stop is called, which writes
// what is left. It waits for an API server that does not answer. One that refuses is asked again from time to time, and the journal has no
// records until then. If ctx ends before, nothing is taken over, and Durable is false. Start may be called again after stop; it forgets what it had if another leader may have gone on with that.
func (j *Journal) Start(ctx context.Context, cfg Config) (stop func()) {
	j.mu.Lock()
	before := j.cfg.Term
	if !cfg.Term.follows(before) { // each new holder of the Lease counts the transitions up: there was one in between
		clear(j.open)
		clear(j.records)
		j.waitOver = nil
	}
	if cfg.Term != before {
		j.refused = nil // each leader reports it
	}
	j.cfg, j.superseded, j.until, j.closed = cfg, false, time.Time{}, nil
	j.mu.Unlock()
	_ = poll.Until(ctx, retryPause, "Waiting for the records of volumes in progress", func(ctx context.Context) error {
		if _, err := j.begin(ctx); err != nil && (!refuses(err) || raced(err)) {
			return err
		}
		return nil
	}) // its error says no more than that ctx has ended
	j.mu.Lock()
	if ctx.Err() != nil && j.lease == nil { // the term passes without this process
		j.cfg.Term = before
	}
	j.mu.Unlock()
	writing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { j.write(writing) })
	return func() {
		cancel()
		running.Wait()
		j.end(context.WithoutCancel(ctx))
	}
}

// begin takes over the Lease once, and opens the intents of its records but for those that this process has itself. It returns these.
func (j *Journal) begin(ctx context.Context) (recovered []Intent, err error) {
	records, err := j.takeOver(ctx)
	if err == nil || refuses(err) {
		j.setRefused(ctx, err)
	}
	if err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	for uid, r := range records {
		if _, ok := j.open[uid]; ok {
			continue
		}
		intent := r.intent()
		if intent.Stage == Creating {
			intent.Uncertain, intent.Settles = now, now.Add(j.cfg.Settle)
			if r.busy > 0 {
				intent.Stage, j.waitOver = Awaited, time.After(r.busy)
			}
		}
		j.open[uid], j.records[uid] = intent, r
		recovered = append(recovered, intent)
	}
	if len(recovered) > 0 {
		klog.FromContext(ctx).Info("Going on with volumes that another process had in progress", logging.KeyCount, len(recovered))
	}
	return recovered, nil
}

// refuses reports whether an error is the answer of an API server, or of an admission webhook. Without an answer, no PersistentVolume could be saved either.
func refuses(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) || errors.Is(err, errFull) || errors.Is(err, ErrSuperseded)
}

// Durable reports whether new intents outlive the process.
func (j *Journal) Durable() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lease != nil && j.refused == nil
}

// Open remembers a new intent. CreateVolume may be called only once Open has returned nil: the record is stored, or the API server has refused to
// store it, which is reported, and tried again with each later write. It returns ErrSuperseded to a leader that was replaced.
func (j *Journal) Open(ctx context.Context, intent Intent) error {
	r, err := recordOf(intent)
	if err != nil {
		return err
	}
	j.mu.Lock()
	elected, handedOver := j.cfg.Term != (Term{}), !j.until.IsZero()
	if !handedOver {
		j.open[r.UID], j.records[r.UID] = intent, r
	}
	j.mu.Unlock()
	if handedOver {
		return fmt.Errorf("store the record of volume %q: %w", intent.Spec.Name, ErrSuperseded)
	}
	if err = j.written(ctx); err == nil || refuses(err) && (!elected || !errors.Is(err, ErrSuperseded)) {
		return nil
	}
	j.Close(r.UID) // no call was made
	return fmt.Errorf("store the record of volume %q: %w", intent.Spec.Name, err)
}

// written waits until the records are stored, and returns how that has ended; nothing is stored before the takeover, which is no error.
func (j *Journal) written(ctx context.Context) error {
	result := make(chan error, 1)
	j.mu.Lock()
	if j.lease == nil {
		result <- nil
	} else {
		j.waiting = append(j.waiting, result)
	}
	j.mu.Unlock()
	notify(j.wake)
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Update replaces an open intent. The record stays as it is, unless the intent is reported now: then no later process acts on it either.
func (j *Journal) Update(intent Intent) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.open[intent.UID()]; !ok {
		return fmt.Errorf("update intent of claim %q to stage %q: it is not open", intent.UID(), intent.Stage)
	}
	j.open[intent.UID()] = intent
	if r, ok := j.records[intent.UID()]; ok && intent.Stage == Reported && r.Reported == "" {
		r.Reported = intent.Reason
		j.change(r.UID, &r)
	}
	return nil
}

// Close forgets the intent of a claim; an unknown one is no error. The record goes with the next write.
func (j *Journal) Close(claim types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.open, claim)
	if _, ok := j.records[claim]; ok {
		j.change(claim, nil)
	}
}

// change replaces a record, or removes it, with the next write. j.mu must be held.
func (j *Journal) change(claim types.UID, r *record) {
	if r == nil {
		delete(j.records, claim)
		if !j.until.IsZero() {
			j.closed = append(j.closed, string(claim))
		}
	} else {
		j.records[claim] = *r
	}
	j.changed = true
	notify(j.dirty)
}

// Get returns the open intent of a claim.
func (j *Journal) Get(claim types.UID) (Intent, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	intent, ok := j.open[claim]
	return intent, ok
}

// List returns all open intents, by volume name.
func (j *Journal) List() []Intent {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.SortedFunc(maps.Values(j.open), func(a, b Intent) int { return strings.Compare(a.Spec.Name, b.Spec.Name) })
}

// setRefused notes why the records could not be written, and reports a change of that.
func (j *Journal) setRefused(ctx context.Context, err error) {
	j.mu.Lock()
	before, report := j.refused, j.cfg.Report
	j.refused = err
	j.mu.Unlock()
	if (before == nil) == (err == nil) {
		return
	}
	if err == nil {
		klog.FromContext(ctx).Info("Volumes in progress are recorded again")
		return
	}
	klog.FromContext(ctx).Error(err, "Volumes in progress are not recorded: a volume whose claim is deleted while this process ends may be left behind. Allow get, create and update of leases")
	if report != nil {
		report(err)
	}
}

// write stores records until ctx ends. A write that failed is tried again with the next Open, and with the heartbeat.
func (j *Journal) write(ctx context.Context) {
	var lazy <-chan time.Time // nil while nothing is to be written
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-j.dirty:
			if lazy == nil {
				lazy = time.After(lazyWrite)
			}
			continue
		case <-beat.C:
			j.beat(ctx)
		case <-j.waitOver:
			j.endWait(ctx)
			continue
		case <-j.wake:
		case <-lazy:
		}
		lazy = nil
		_ = j.commit(ctx) // it has noted why
	}
}

// adopt has the owner of the journal go on with intents.
func (j *Journal) adopt(intents []Intent) {
	if len(intents) > 0 && j.cfg.Adopted != nil {
		j.cfg.Adopted(intents)
	}
}

// beat shows a successor that this process is at work, if it is at work on a volume; else it looks for the annotation of an administrator. If the API server had refused
// the takeover, it is asked again.
func (j *Journal) beat(ctx context.Context) {
	j.mu.Lock()
	for _, r := range j.records {
		j.changed = j.changed || r.Reported == ""
	}
	late, look := j.lease == nil && !j.superseded, !j.changed && len(j.records) > 0
	j.mu.Unlock()
	switch {
	case late:
		if recovered, err := j.begin(ctx); err == nil {
			j.adopt(recovered)
		}
	case look:
		lease, err := j.getLease(ctx, j.cfg.Name)
		j.mu.Lock()
		defer j.mu.Unlock()
		j.changed = j.changed || err == nil && lease.Annotations[AnnotationAbandon] != "" // the write finds it, too
	}
}

// end writes what is left, and lets nothing be stored any more.
func (j *Journal) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastWrite)
	defer cancel()
	err := j.commit(ctx)
	if j.busy() > 0 {
		j.setUntil(time.Now()) // if there is no successor yet
		err = errors.Join(err, j.commit(ctx))
	}
	if err != nil {
		klog.FromContext(ctx).Info("Records of volumes in progress could not be written at the end", logging.KeyReason, err.Error())
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, result := range j.waiting {
		result <- errors.New("the process is ending")
	}
	j.waiting, j.lease = nil, nil
}

// notify sends a signal, unless one is pending already.
func notify(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}
