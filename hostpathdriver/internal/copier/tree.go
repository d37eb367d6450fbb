package copier

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// tree is the copy of a directory.
type tree struct {
	*job

	stack     stack
	links     links
	attribute []byte // buffer for the largest extended attribute
}

func (j *job) tree(ctx context.Context, from string) (Result, error) {
	t := &tree{job: j, links: links{}, attribute: make([]byte, 1<<16)}
	if err := t.copyTree(ctx, from); err != nil {
		return j.result, fmt.Errorf("copy directory %s to %s: %w", from, j.to, err)
	}
	return j.result, nil
}

func (t *tree) copyTree(ctx context.Context, from string) error {
	if err := t.open(from); err != nil {
		return err
	}
	defer t.stack.source.Close()
	defer t.stack.target.Close()
	defer t.stack.close()
	if err := t.begin(); err != nil {
		return err
	}
	if err := t.walk(ctx); err != nil {
		return err
	}
	t.step("sync")
	// The whole file system: one call, however many files there are.
	if err := unix.Syncfs(int(t.stack.target.Fd())); err != nil {
		return fmt.Errorf("sync file system: %w", err)
	}
	return t.present()
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
	t.stack.source, t.stack.target = source, target
	t.destination, err = target.Stat()
	if err == nil {
		err = checkEmpty(target)
	}
	if err != nil {
		return errors.Join(err, source.Close(), target.Close())
	}
	return nil
}

func checkEmpty(dir *os.File) error {
	_, err := dir.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("the destination: %w", unix.ENOTEMPTY)
	}
	return err
}

// begin puts the root on the stack.
func (t *tree) begin() error {
	st, err := status(t.stack.source)
	if err != nil {
		return err
	}
	t.stack.push(&level{stat: st}, t.limits.open)
	if err := t.stack.reopen(t.limits.open); err != nil {
		return err
	}
	return t.outside(&st)
}

// outside refuses to copy a tree into itself, which would never end.
func (t *tree) outside(source *unix.Stat_t) error {
	target, err := status(t.stack.target)
	if err == nil && inodeOf(source) == inodeOf(&target) {
		err = errors.New("the destination is inside of the source")
	}
	return err
}

// walk copies the tree in lexical order. A directory gets its attributes when all its entries are copied.
func (t *tree) walk(ctx context.Context) error {
	for len(t.stack.levels) > 0 {
		if err := t.proceed(ctx); err != nil {
			return err
		}
		if err := t.stack.reopen(t.limits.open); err != nil {
			return fmt.Errorf("return to %q: %w", t.stack.path(""), err)
		}
		name, more, err := t.stack.top().next(t.limits.names)
		if err == nil && more {
			err = t.entry(ctx, name)
		}
		if err != nil {
			return fmt.Errorf("at %q: %w", t.stack.path(name), err)
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
	path := t.stack.path("")
	l := t.stack.pop()
	defer l.close()
	if err := t.attributes(l.source, l.target, &l.stat); err != nil {
		return fmt.Errorf("at %q: %w", path, err)
	}
	return nil
}

// vanished reports whether an entry of the source does not exist any more.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist)
}
