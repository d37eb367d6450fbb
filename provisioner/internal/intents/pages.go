package intents

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// This file reads and writes the Leases of a Journal.

// page is one Lease.
type page struct {
	lease   *coordinationv1.Lease
	records map[types.UID]record
	parts   parts
	// size is that of the records and their parts, as an upper limit.
	size int
	// changed says that the Lease is to be written.
	changed bool
	// foreign says that this version cannot read what the Lease holds, which is left as it is.
	foreign bool
}

// entry is a record that is to be stored.
type entry struct {
	record record
	parts  parts
	// result receives the end of the write. It has room for it.
	result chan error
	page   *page
}

// takeOver reads the Leases and becomes their holder.
func (j *Journal) takeOver(ctx context.Context) (pages []*page, err error) {
	for {
		lease, err := j.getLease(ctx, j.pageName(len(pages)))
		switch {
		case apierrors.IsNotFound(err) && len(pages) > 0:
			return pages, nil
		case apierrors.IsNotFound(err):
			lease = j.newLease(0)
		case err != nil:
			return nil, fmt.Errorf("get Lease %q: %w", j.pageName(len(pages)), err)
		}
		p, err := readPage(lease)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Records of volumes in progress cannot be read: look for these volumes in the storage system, then delete the Lease", logging.KeyLease, lease.Name)
		}
		if err := j.writePage(ctx, p); err != nil {
			return nil, err
		}
		pages = append(pages, p)
	}
}

// takeOverLeft takes over the Leases if they have a record.
func (j *Journal) takeOverLeft(ctx context.Context) ([]*page, error) {
	for n := 0; ; n++ {
		lease, err := j.getLease(ctx, j.pageName(n))
		switch {
		case apierrors.IsNotFound(err):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("get Lease %q: %w", j.pageName(n), err)
		}
		if p, err := readPage(lease); err != nil || len(p.records) > 0 {
			return j.takeOver(ctx)
		}
	}
}

// readPage reads what a Lease holds. With an error the page is full, and keeps what it holds.
func readPage(lease *coordinationv1.Lease) (*page, error) {
	p := &page{lease: lease, records: map[types.UID]record{}, parts: parts{}, size: len(lease.Annotations[Annotation])}
	d, err := decode(lease.Annotations[Annotation])
	if err != nil {
		p.foreign, p.size = true, pageSize
		return p, err
	}
	maps.Copy(p.parts, d.Parts)
	for _, r := range d.Records {
		p.records[r.UID] = r
	}
	return p, nil
}

// pageName returns the name of a Lease.
func (j *Journal) pageName(n int) string {
	return fmt.Sprintf("%s-journal-%d", j.cfg.Name, n)
}

// newLease returns a Lease that does not exist yet.
func (j *Journal) newLease(n int) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: j.pageName(n), Labels: maps.Clone(j.cfg.Labels)}}
}

// getLease reads a Lease.
func (j *Journal) getLease(ctx context.Context, name string) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return j.cfg.Leases.Get(ctx, name, metav1.GetOptions{})
}

// commit writes all pages that have changed, with the records that wait. The first page is written last, and always when there
// is a new page: a process that takes over the journal becomes the holder of the first page first, so that a new page that it
// has not seen is of no use to the process before.
func (j *Journal) commit(ctx context.Context) error {
	batch, pages := j.takeWaiting()
	failed := map[*page]error{}
	var errs []error
	added := false
	for i, p := range slices.Backward(pages) {
		added = added || p.lease.ResourceVersion == ""
		if !j.hasChanged(p) && (i > 0 || !added) {
			continue
		}
		if err := j.writePage(ctx, p); err != nil {
			failed[p] = err
			errs = append(errs, err)
		}
	}
	err := errors.Join(errs...)
	for _, e := range batch {
		result := failed[e.page]
		if added && result == nil {
			result = err
		}
		if result != nil {
			j.forget(e.page, e.record.UID)
		}
		e.result <- result
	}
	return err
}

// takeWaiting puts the records that wait on pages, and returns them with all pages.
func (j *Journal) takeWaiting() (batch []*entry, pages []*page) {
	j.mu.Lock()
	defer j.mu.Unlock()
	batch, j.waiting = j.waiting, nil
	for _, e := range batch {
		e.page = j.pageFor(e)
	}
	return batch, slices.Clone(j.pages)
}

// hasChanged reports whether a page is to be written.
func (j *Journal) hasChanged(p *page) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return p.changed
}

// forget drops a record that could not be stored. It may be on the server all the same, and goes with the next write.
func (j *Journal) forget(p *page, claim types.UID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(p.records, claim)
	p.changed = true
}

// pageFor puts a record on the first page that has room for it. j.mu must be held.
func (j *Journal) pageFor(e *entry) *page {
	size := e.record.size()
	for digest, part := range e.parts {
		size += len(digest) + len(part) + len(`"":,`)
	}
	i := slices.IndexFunc(j.pages, func(p *page) bool { return p.size+size <= pageSize })
	if i < 0 {
		i = len(j.pages)
		j.pages = append(j.pages, &page{lease: j.newLease(i), records: map[types.UID]record{}, parts: parts{}})
	}
	p := j.pages[i]
	p.records[e.record.UID], p.changed = e.record, true
	maps.Copy(p.parts, e.parts)
	p.size += size
	return p
}

// writePage stores a page in its Lease. When that was changed by another writer than a new holder of the journal, it is
// written again.
func (j *Journal) writePage(ctx context.Context, p *page) error {
	err := j.store(ctx, p)
	if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		return err
	}
	live, getErr := j.getLease(ctx, p.lease.Name)
	if getErr != nil {
		return fmt.Errorf("get Lease %q: %w", p.lease.Name, getErr)
	}
	if holder := live.Spec.HolderIdentity; holder == nil || *holder != j.cfg.Identity {
		return fmt.Errorf("write Lease %q: %w", p.lease.Name, ErrSuperseded)
	}
	p.lease = live
	return j.store(ctx, p)
}

// store writes the Lease of a page, which only the goroutine that writes has.
func (j *Journal) store(ctx context.Context, p *page) error {
	lease := p.lease.DeepCopy()
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	if !p.foreign {
		text, err := j.text(p)
		if err != nil {
			return err
		}
		lease.Annotations[Annotation] = text
	}
	lease.Spec.HolderIdentity = &j.cfg.Identity
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	write := func() (*coordinationv1.Lease, error) { return j.cfg.Leases.Update(ctx, lease, metav1.UpdateOptions{}) }
	if lease.ResourceVersion == "" {
		write = func() (*coordinationv1.Lease, error) { return j.cfg.Leases.Create(ctx, lease, metav1.CreateOptions{}) }
	}
	stored, err := write()
	if apierrors.IsNotFound(err) { // it was deleted
		lease.ResourceVersion, lease.UID = "", ""
		stored, err = j.cfg.Leases.Create(ctx, lease, metav1.CreateOptions{})
	}
	if err != nil {
		j.mu.Lock()
		p.changed = true
		j.mu.Unlock()
		return fmt.Errorf("write Lease %q: %w", lease.Name, err)
	}
	p.lease = stored
	return nil
}

// text returns what the Lease of a page is to hold.
func (j *Journal) text(p *page) (string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p.parts.keep(p.records)
	text, err := encode(slices.Collect(maps.Values(p.records)), p.parts)
	p.changed, p.size = false, len(text)
	return text, err
}
