package copier

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// entry copies one name of the topmost directory, or puts it on the stack if it is a directory. The source stays open from its first use, so that all
// that is copied is of one file, even when another process replaces the name.
func (t *tree) entry(ctx context.Context, name string) error {
	l := t.stack.top()
	source, err := openAt(l.source, name, unix.O_PATH)
	if vanished(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer source.Close()
	st, err := status(source)
	if err != nil {
		return err
	}
	if kind(&st) == unix.S_IFDIR {
		return t.enter(name, source, &st)
	}
	if linked, err := t.link(l.target, name, &st); err != nil || linked {
		return err
	}
	if err := t.create(ctx, name, source, &st); err != nil {
		return err
	}
	t.links.note(&st, t.stack.path(name))
	return nil
}

// enter makes a directory and puts it on the stack. Only this process can enter the copy until it is complete.
func (t *tree) enter(name string, source *os.File, st *unix.Stat_t) error {
	if err := t.outside(st); err != nil {
		return err
	}
	parent, l := t.stack.top().target, &level{name: name, stat: *st}
	var err error
	if l.source, err = reopen(source, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return err
	}
	t.step("mkdir")
	if err = unix.Mkdirat(int(parent.Fd()), name, 0o700); err == nil {
		l.target, err = openAt(parent, name, unix.O_PATH|unix.O_DIRECTORY)
	}
	if err != nil {
		l.close()
		return fmt.Errorf("make directory: %w", err)
	}
	t.stack.push(l, t.limits.open)
	return nil
}

// create makes a name and gives it contents and attributes.
func (t *tree) create(ctx context.Context, name string, source *os.File, st *unix.Stat_t) error {
	dir := t.stack.top().target
	var err error
	switch kind(st) {
	case unix.S_IFREG:
		return t.regular(ctx, name, source, st)
	case unix.S_IFLNK:
		err = t.symlink(dir, name, source)
	default:
		t.step("mknod")
		err = retryEINTR(func() error { return unix.Mknodat(int(dir.Fd()), name, kind(st)|0o600, int(st.Rdev)) })
	}
	if err != nil {
		return fmt.Errorf("make entry: %w", err)
	}
	target, err := openAt(dir, name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer target.Close()
	return t.attributes(source, target, st)
}

func (t *tree) symlink(dir *os.File, name string, source *os.File) error {
	where := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(source.Fd()), "", where)
	if err != nil {
		return fmt.Errorf("read link: %w", err)
	}
	t.step("symlink")
	return retryEINTR(func() error { return unix.Symlinkat(string(where[:n]), int(dir.Fd()), name) })
}

func (t *tree) regular(ctx context.Context, name string, source *os.File, st *unix.Stat_t) error {
	data, err := reopen(source, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer data.Close()
	t.step("create")
	target, err := openAt(t.stack.top().target, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer target.Close()
	if err := t.contents(ctx, data, target); err != nil {
		return err
	}
	return t.attributes(source, target, st)
}
