package copier

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// entry copies one name of the topmost directory, or puts it on the stack if it
// is a directory. The source stays open from the first look at it, so that all
// that is copied is of one file, even when another process replaces the name.
func (t *tree) entry(ctx context.Context, name string) error {
	l := t.top()
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
	where := l.standing(name)
	if where == reached && !t.done.Partial {
		where = passed
	}
	if kind(&st) == unix.S_IFDIR {
		return t.enter(name, source, &st, where)
	}
	if where != passed {
		if linked, err := t.link(l.target, name, &st); err != nil || linked {
			return err
		}
		if err := t.fill(ctx, name, source, &st, where == reached); err != nil {
			return err
		}
	}
	t.links.note(&st, func() string { return t.path(name) })
	if where == passed {
		return nil
	}
	return t.spend(t.limits.entry)
}

// enter puts a directory on the stack. Only this process can enter it
// until it is complete.
func (t *tree) enter(name string, source *os.File, st *unix.Stat_t, where standing) error {
	if err := t.outside(st); err != nil {
		return err
	}
	above, l := t.top(), &level{name: name, stat: *st, passed: where == passed}
	defer func() {
		if t.top() != l {
			l.close()
		}
	}()
	if where == within {
		l.skip = above.skip[1:]
	}
	var err error
	if l.source, err = reopen(source, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		return err
	}
	if !l.passed {
		if err := t.mkdir(above.target, l); err != nil {
			return err
		}
	}
	t.push(l, t.limits.open)
	return nil
}

// mkdir makes a directory, or takes the one of an earlier call.
func (t *tree) mkdir(parent *os.File, l *level) (err error) {
	made := func() error { return unix.Mkdirat(int(parent.Fd()), l.name, 0o700) }
	t.step("mkdir")
	err = made()
	exists := errors.Is(err, unix.EEXIST)
	if err != nil && !exists {
		return fmt.Errorf("make directory: %w", err)
	}
	l.target, err = openAt(parent, l.name, unix.O_PATH|unix.O_DIRECTORY)
	switch {
	case err == nil && exists:
		t.step("chmod")
		return unix.Chmod(handle(l.target), 0o700)
	case exists && isAny(err, unix.ENOTDIR, unix.ELOOP):
		if err := t.place(parent, l.name, "mkdir", made); err != nil {
			return err
		}
		l.target, err = openAt(parent, l.name, unix.O_PATH|unix.O_DIRECTORY)
	}
	return err
}

// place makes a name in a directory of the destination. What an earlier call
// left there is removed: it may be of another file.
func (t *tree) place(dir *os.File, name, step string, made func() error) error {
	t.step(step)
	err := again(made)
	if errors.Is(err, unix.EEXIST) {
		t.step("remove")
		if err := remove(dir, name); err != nil {
			return err
		}
		t.step(step)
		err = again(made)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	return nil
}

// fill makes a name and gives it contents and attributes.
func (t *tree) fill(ctx context.Context, name string, source *os.File, st *unix.Stat_t, partial bool) error {
	dir := t.top().target
	if kind(st) == unix.S_IFREG {
		return t.regular(ctx, name, source, st, partial)
	}
	var err error
	if kind(st) == unix.S_IFLNK {
		err = t.symlink(dir, name, source)
	} else {
		err = t.place(dir, name, "mknod", func() error {
			return unix.Mknodat(int(dir.Fd()), name, kind(st)|0o600, int(st.Rdev))
		})
	}
	if err != nil {
		return err
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
	return t.place(dir, name, "symlink", func() error {
		return unix.Symlinkat(string(where[:n]), int(dir.Fd()), name)
	})
}

func (t *tree) regular(ctx context.Context, name string, source *os.File, st *unix.Stat_t, partial bool) error {
	data, err := reopen(source, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer data.Close()
	target, done, err := t.file(t.top().target, name, partial)
	if err != nil {
		return err
	}
	defer target.Close()
	if t.current, err = t.newTransfer(data, target, done); err != nil {
		return err
	}
	if err := t.current.run(ctx); err != nil {
		return err
	}
	t.current = nil
	return t.attributes(source, target, st)
}

// file makes a file, or opens the one of which the last checkpoint has a part.
func (t *tree) file(dir *os.File, name string, partial bool) (*os.File, extent, error) {
	if partial {
		if file, ok := reopenPart(dir, name); ok {
			return file, t.done.File, nil
		}
	}
	var file *os.File
	err := t.place(dir, name, "create", func() (err error) {
		file, err = openAt(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
		return err
	})
	return file, extent{}, err
}

// reopenPart opens a file to write more to it.
func reopenPart(dir *os.File, name string) (*os.File, bool) {
	found, err := openAt(dir, name, unix.O_PATH)
	if err != nil {
		return nil, false
	}
	defer found.Close()
	if st, err := status(found); err != nil || kind(&st) != unix.S_IFREG {
		return nil, false
	}
	file, err := reopen(found, unix.O_RDWR)
	return file, err == nil
}
