// Package copier copies files and directory trees so that a copy that was
// interrupted goes on where it was. Snapshots, clones and restores use it for
// disk images, which are sparse files, and for directories.
//
// Blocks are shared with the source where the file system can (FICLONE on xfs
// and btrfs); else only data is copied, so that a sparse file stays sparse.
//
// Only a shared file is a copy of one moment. Bytes that are copied are as old
// as the call that copied them: a caller that needs one moment keeps the
// source still until the last call is over; Result.Torn reports if it changed.
//
// A workload may change source and destination meanwhile: nothing follows a
// symbolic link or leaves the two directories. It needs /proc and Linux 5.8.
// It is not for two copies to one destination at a time.
package copier

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
)

// Options of a copy.
type Options struct {
	// Progress is a file that remembers how far a copy is, so that the same
	// call again goes on. It stays when the copy is complete, so that the call
	// once more does nothing: Forget it when the completion is recorded
	// elsewhere, or with the destination. Without it every call starts over.
	Progress string
	// NoReflink copies bytes where blocks could be shared.
	NoReflink bool
	// Report receives how many bytes of files, holes included, are copied by
	// this call and those before it.
	Report func(done int64)
	// Step is called before each change on disk with a name of the change.
	// Tests use it to crash at every step.
	Step func(name string)

	limits limits
}

// Result of a copy.
type Result struct {
	// Reflinked says that blocks are shared with the source.
	Reflinked bool
	// Written are the bytes of data that this call wrote. Holes and shared
	// blocks are none.
	Written int64
	// Torn says that a file was written to while its bytes were copied, or
	// between two calls that copied them: its copy is of no single moment.
	Torn bool
}

// limits are constants that tests make smaller.
type limits struct {
	interval int64 // cost between two checkpoints, in bytes written
	chunk    int64 // bytes between two looks at the context
	entry    int64 // cost of an entry of a tree, whatever is in it
	names    int   // names of one directory that are held in memory
	open     int   // levels of a tree that are open, of two descriptors each
}

func (l limits) orDefaults() limits {
	return limits{
		interval: cmp.Or(l.interval, 256<<20),
		chunk:    cmp.Or(l.chunk, 8<<20),
		entry:    cmp.Or(l.entry, 16<<10),
		names:    cmp.Or(l.names, 64<<10),
		open:     cmp.Or(l.open, 256),
	}
}

// job is what files and trees have in common: one call.
type job struct {
	Options

	to         string
	opened     os.FileInfo // what was at to when the call began
	checkpoint func() error
	result     Result
	spent      int64  // cost since the last checkpoint
	passed     int64  // for Report
	unshared   bool   // no block can be shared between the two file systems
	buffered   bool   // the kernel does not copy between the two
	buffer     []byte // for the copy that the kernel does not make
}

func (j *job) step(name string) {
	if j.Step != nil {
		j.Step(name)
	}
}

// proceed reports whether the copy is still wanted.
func (j *job) proceed(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return j.present()
}

// present fails when the destination is gone: the volume was deleted.
func (j *job) present() error {
	info, err := os.Lstat(j.to)
	if err == nil && !os.SameFile(info, j.opened) {
		err = fmt.Errorf("something else is there: %w", fs.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("look for the destination: %w", err)
	}
	return nil
}

// spend counts work since the last checkpoint, and makes the next one.
func (j *job) spend(cost int64) error {
	j.spent += cost
	if j.spent < j.limits.interval {
		return nil
	}
	return j.save()
}

func (j *job) save() error {
	j.spent = 0
	if j.Progress == "" {
		return nil
	}
	return j.checkpoint()
}

// stop keeps what is done when the caller does not want to wait any longer.
// Calls with a short deadline would else never get to the first checkpoint.
func (j *job) stop(ctx context.Context, err error) error {
	if err == nil || j.spent == 0 || ctx.Err() == nil || j.present() != nil {
		return err
	}
	if saveErr := j.save(); saveErr != nil {
		return fmt.Errorf("%w; remember how far it is: %w", err, saveErr)
	}
	return err
}

func (j *job) pass(bytes int64) {
	j.passed += bytes
	if j.Report != nil {
		j.Report(j.passed)
	}
}
