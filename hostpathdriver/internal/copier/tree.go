package copier

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// tree is the copy of a directory.
type tree struct {
	*job
	stack

	task      task
	links     links
	done      progress  // what earlier calls did
	current   *transfer // file that is being copied
	attribute []byte    // room for the largest extended attribute
}

// Tree copies what is in a directory, and the attributes of the directory
// itself, into another one that exists: contents with their holes, owner, mode,
// times, extended attributes with access control lists, symbolic and hard
// links, named pipes, sockets and device nodes. What is in the destination and
// not in the source is left alone. At return the copy is on disk.
//
// A mount point in the source is an error. What vanishes meanwhile is left out.
// A copy is resumed if the progress file is about the same two paths and
// directories (inode and time of birth). What lies before the last checkpoint
// is not looked at again, except for hard links.
//
// What File says of errors applies. A right that is missing for an attribute
// or a device node is one.
func Tree(ctx context.Context, from, to string, o Options) (Result, error) {
	result, err := copyTree(ctx, from, to, o)
	if err != nil {
		return result, fmt.Errorf("copy directory %s to %s: %w", from, to, err)
	}
	return result, nil
}

func copyTree(ctx context.Context, from, to string, o Options) (Result, error) {
	o.limits = o.limits.orDefaults()
	t := &tree{job: &job{Options: o, to: to}, links: links{}, attribute: make([]byte, 1<<16)}
	t.checkpoint = t.mark
	if err := t.open(from); err != nil {
		return Result{}, err
	}
	defer t.source.Close()
	defer t.target.Close()
	defer t.close()
	task, err := newTask("tree", from, to, t.source, t.target)
	if err != nil {
		return Result{}, err
	}
	t.task, t.done = task, load(o.Progress, task)
	t.result.Reflinked, t.result.Torn = t.done.Reflinked, t.done.Torn
	if t.done.Complete {
		return t.result, nil
	}
	err = t.begin()
	if err == nil {
		err = t.stop(ctx, t.walk(ctx))
	}
	if err == nil {
		err = t.finish()
	}
	return t.result, err
}

// open opens the two directories, which are no symbolic links either.
func (t *tree) open(from string) error {
	const flags = os.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
	source, err := os.OpenFile(from, flags, 0)
	if err != nil {
		return err
	}
	target, err := os.OpenFile(t.to, flags, 0)
	if err != nil {
		return errors.Join(err, source.Close())
	}
	t.source, t.target = source, target
	t.opened, err = target.Stat()
	if err != nil {
		return errors.Join(err, source.Close(), target.Close())
	}
	return nil
}

// begin puts the root on the stack.
func (t *tree) begin() error {
	root := &level{}
	if t.done.Path != nil {
		root.skip = strings.Split(string(t.done.Path), "/")
	}
	t.pass(t.done.Passed)
	t.push(root, t.limits.open)
	if err := t.reopen(t.limits.open); err != nil {
		return err
	}
	st, err := status(t.source)
	if err != nil {
		return err
	}
	root.stat = st
	return t.outside(&st)
}

// outside keeps the copy from going round in circles.
func (t *tree) outside(source *unix.Stat_t) error {
	target, err := status(t.target)
	if err == nil && inodeOf(source) == inodeOf(&target) {
		err = errors.New("the destination is inside of the source")
	}
	return err
}

// walk goes through the tree in lexical order, so that one path says how far it
// is. A directory gets its attributes when all in it is there.
func (t *tree) walk(ctx context.Context) error {
	for len(t.levels) > 0 {
		if err := t.proceed(ctx); err != nil {
			return err
		}
		if err := t.reopen(t.limits.open); err != nil {
			return fmt.Errorf("go back to %q: %w", t.path(""), err)
		}
		name, more, err := t.top().next(t.limits.names)
		if err == nil && more {
			err = t.entry(ctx, name)
		}
		if err != nil {
			return fmt.Errorf("at %q: %w", t.path(name), err)
		}
		if more {
			continue
		}
		if err := t.leave(); err != nil {
			return err
		}
	}
	return nil
}

// leave ends the topmost directory.
func (t *tree) leave() error {
	path := t.path("")
	l := t.pop()
	defer l.close()
	if l.passed {
		return nil
	}
	if err := t.attributes(l.source, l.target, &l.stat); err != nil {
		return fmt.Errorf("at %q: %w", path, err)
	}
	if len(t.levels) == 0 {
		return nil
	}
	return t.spend(t.limits.entry)
}

// mark makes a checkpoint: everything is copied up to the name that was taken
// last, or, if that is being copied, up to a part of it.
func (t *tree) mark() error {
	p := &progress{Task: t.task, Path: []byte(t.path(t.top().last)), Passed: t.passed}
	if t.current != nil {
		p.Partial, p.File = true, t.current.extent
		p.Passed -= t.current.At
	}
	if err := t.sync(); err != nil {
		return err
	}
	return t.remember(p)
}

// sync takes the whole file system: one call, however many files there are.
func (t *tree) sync() error {
	t.step("sync")
	if err := unix.Syncfs(int(t.target.Fd())); err != nil {
		return fmt.Errorf("sync file system: %w", err)
	}
	return nil
}

// finish writes down that all is copied.
func (t *tree) finish() error {
	if err := t.sync(); err != nil {
		return err
	}
	if err := t.present(); err != nil || t.Progress == "" {
		return err
	}
	return t.remember(&progress{Task: t.task, Complete: true, Passed: t.passed})
}

// vanished says that an entry of the source is no longer there.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist)
}
