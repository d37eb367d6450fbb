package intents

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// Annotation has the records on the Leases of a Journal, and on claims.
const Annotation = volume.AnnInProgress

const (
	// pageSize is the limit of the records of one Lease in bytes. The API takes 256 KiB of annotations in all.
	pageSize = 240 << 10
	// callTimeout is the deadline of one request to the API server.
	callTimeout = 30 * time.Second
	// lazyWrite is the longest time until the end of an intent is written. Until then a successor looks at a volume that needs
	// nothing, which does no harm.
	lazyWrite = 2 * time.Second
	// lastWrite is how long the last write may take, at the end of the process.
	lastWrite = 2 * time.Second
	// retryPause is the pause before a request of Start or of a lazy write is repeated.
	retryPause = time.Second
)

// ErrSuperseded is returned when another process has taken over the records: it leads, and this one does not any more.
var ErrSuperseded = errors.New("the records of volumes in progress were taken over by another process")

// JournalConfig says where a Journal keeps its records.
type JournalConfig struct {
	// Leases has the Leases of one namespace.
	Leases kube.Leases
	// Name is the start of the names of the Leases, which end with "-journal-0", "-journal-1" and so on.
	Name string
	// Identity identifies this process among all that ever had the journal.
	Identity string
	// Labels are put on new Leases.
	Labels map[string]string
}

// Journal is a Store whose intents outlive the process as records in annotations of Leases. Open returns once the record is
// stored; one write stores the records of all that wait for it. The holder of the Leases is the process that has the journal:
// a former leader that still runs cannot write to it any more, and so cannot call CreateVolume.
//
// Until Start has succeeded, and where Leases may not be written, it is no more than Memory. Records on claims, left by an instance
// without an election or on a node, are finished as well.
type Journal struct {
	*Claims
	cfg JournalConfig

	mu sync.Mutex
	// pages are the Leases, nil while nothing is stored.
	pages []*page
	// finishing says that no new record is put on the pages.
	finishing bool
	// waiting are the records that Open waits for.
	waiting []*entry
	// wake has a value when waiting has.
	wake chan struct{}
	// dirty has a value when a page differs from its Lease and no Open waits for it.
	dirty chan struct{}
}

var _ Store = (*Journal)(nil)

// NewJournal returns a journal that stores nothing yet, and finishes what is recorded on claims.
func NewJournal(claims *Claims) *Journal {
	return &Journal{Claims: claims, wake: make(chan struct{}, 1), dirty: make(chan struct{}, 1)}
}

// Durable implements Store.
func (j *Journal) Durable() bool {
	j.mu.Lock()
	finishing, stored := j.finishing, j.pages != nil
	j.mu.Unlock()
	if finishing {
		return j.Claims.Durable()
	}
	return stored
}

// Start takes over the records of the processes before, opens their intents, and writes until stop is called, which writes
// what is left. It waits for an API that is away. Where the process may not write Leases it logs that, and nothing is stored.
// It may be called again after stop.
func (j *Journal) Start(ctx context.Context, cfg JournalConfig) (stop func(), err error) {
	j.cfg = cfg
	pages, err := j.insist(ctx, j.takeOver)
	switch {
	case apierrors.IsForbidden(err):
		refused(ctx, err)
		return func() {}, nil
	case err != nil:
		return nil, err
	}
	return j.begin(ctx, pages), nil
}

// Finish is Start for an instance without an election: it goes on with the records that instances with an election have left, and puts
// its own on claims. Without such records, and where it may not read or write them, it uses no Lease.
func (j *Journal) Finish(ctx context.Context, cfg JournalConfig) (stop func(), err error) {
	j.cfg = cfg
	j.mu.Lock()
	j.finishing = true
	j.mu.Unlock()
	pages, err := j.insist(ctx, j.takeOverLeft)
	switch {
	case apierrors.IsForbidden(err), err == nil && len(pages) == 0:
		return func() {}, nil
	case err != nil:
		return nil, err
	}
	return j.begin(ctx, pages), nil
}

// insist takes over the records in one way, and waits for an API that is away.
func (j *Journal) insist(ctx context.Context, takeOver func(context.Context) ([]*page, error)) ([]*page, error) {
	for said := ""; ; {
		pages, err := takeOver(ctx)
		if err == nil || apierrors.IsForbidden(err) || ctx.Err() != nil {
			return pages, err
		}
		if why := err.Error(); why != said {
			said = why
			klog.FromContext(ctx).Info("Waiting for the records of volumes in progress", logging.KeyReason, why)
		}
		pause(ctx, retryPause)
	}
}

// begin opens the intents of pages, and writes until stop is called.
func (j *Journal) begin(ctx context.Context, pages []*page) (stop func()) {
	j.open(ctx, pages)
	writing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { j.write(writing) })
	return func() {
		cancel()
		running.Wait()
		j.end(context.WithoutCancel(ctx))
	}
}

// refused logs that the process may not store records.
func refused(ctx context.Context, err error) {
	klog.FromContext(ctx).Error(err, "Volumes in progress are not recorded: a volume whose claim is deleted while this process ends may be left behind. Allow get, create and update of leases")
}

// open makes the pages the own ones, and opens the intents of their records but for those that this process has itself.
func (j *Journal) open(ctx context.Context, pages []*page) {
	j.mu.Lock()
	j.pages = pages
	j.mu.Unlock()
	logger, recovered := klog.FromContext(ctx), 0
	for _, p := range pages {
		for _, r := range p.records {
			if _, ok := j.Get(r.UID); ok {
				continue
			}
			intent, err := r.intent(p.parts)
			if err != nil {
				logger.Error(err, "Record of a volume in progress cannot be read: look for the volume in the storage system", logging.KeyVolumeName, r.Volume)
				continue
			}
			_ = j.Memory.Open(ctx, intent) // never fails
			recovered++
		}
	}
	if recovered > 0 {
		logger.Info("Going on with volumes that another process had in progress", logging.KeyCount, recovered)
	}
}

// Open implements Store: it returns once the intent is stored.
func (j *Journal) Open(ctx context.Context, intent Intent) error {
	j.mu.Lock()
	finishing, durable := j.finishing, j.pages != nil
	j.mu.Unlock()
	switch {
	case finishing:
		return j.Claims.Open(ctx, intent)
	case !durable:
		return j.Memory.Open(ctx, intent)
	}
	stored, shared, err := recordOf(intent, "")
	if err != nil {
		return err
	}
	e := &entry{record: stored, parts: shared, result: make(chan error, 1)}
	j.mu.Lock()
	j.waiting = append(j.waiting, e)
	j.mu.Unlock()
	notify(j.wake)
	select {
	case err = <-e.result:
	case <-ctx.Done():
		// It may be stored all the same: then it ends as one that was never called for.
		_ = j.Close(ctx, intent.UID())
		err = context.Cause(ctx)
	}
	switch {
	case apierrors.IsForbidden(err):
		refused(ctx, err)
		j.mu.Lock()
		j.pages = nil
		j.mu.Unlock()
	case err != nil:
		return fmt.Errorf("store the record of volume %q: %w", intent.Spec.Name, err)
	}
	return j.Memory.Open(ctx, intent)
}

// Update implements Store. That the outcome of an attempt is unknown is written with the next records.
func (j *Journal) Update(ctx context.Context, intent Intent) error {
	if err := j.Memory.Update(ctx, intent); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, p := range j.pages {
		if r, ok := p.records[intent.UID()]; ok && !r.Uncertain && !intent.Uncertain.IsZero() {
			r.Uncertain = true
			p.records[r.UID], p.changed = r, true
			notify(j.dirty)
		}
	}
	return nil
}

// Close implements Store. The record goes with the next write, or, if it is on the claim, at once.
func (j *Journal) Close(ctx context.Context, claim types.UID) error {
	if err := j.Claims.Close(ctx, claim); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.waiting = slices.DeleteFunc(j.waiting, func(e *entry) bool { return e.record.UID == claim })
	for _, p := range j.pages {
		if _, ok := p.records[claim]; ok {
			delete(p.records, claim)
			p.changed = true
			notify(j.dirty)
		}
	}
	return nil
}

// notify sends a signal, unless one is pending already.
func notify(signal chan<- struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// write stores records until ctx ends.
func (j *Journal) write(ctx context.Context) {
	var lazy <-chan time.Time // nil while nothing is to be written
	for said := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-j.dirty:
			if lazy == nil {
				lazy = time.After(lazyWrite)
			}
			continue
		case <-j.wake:
		case <-lazy:
		}
		lazy = nil
		err := j.commit(ctx)
		if err == nil {
			said = ""
			continue
		}
		lazy = time.After(lazyWrite)
		if why := err.Error(); why != said {
			said = why
			klog.FromContext(ctx).Info("Records of volumes in progress cannot be written", logging.KeyReason, why)
		}
	}
}

// end writes what is left, and lets nothing be stored any more.
func (j *Journal) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastWrite)
	defer cancel()
	if err := j.commit(ctx); err != nil {
		klog.FromContext(ctx).Info("Records of volumes in progress could not be written at the end", logging.KeyReason, err.Error())
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.waiting {
		e.result <- errors.New("the process is ending")
	}
	j.waiting, j.pages = nil, nil
}

// pause waits, at most until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
