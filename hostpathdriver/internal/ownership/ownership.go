// Package ownership gives files to a group, as Kubernetes promises it for
// fsGroup: everything in a volume belongs to the group, which may read and write
// it, and what is made later does too.
//
// The files belong to workloads, which may change them meanwhile: nothing
// follows a symbolic link or leaves the file system and the mount that it began
// in. Do not use it for directories that other programs use, too.
package ownership

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	groupReads  = 0o060 // and writes
	groupEnters = 0o010 // or executes
	anyExecutes = 0o111
	permissions = 0o7777

	// batch is how many names are read at once, so that a directory may have any
	// number of them.
	batch = 1024
)

// Share gives a directory and all that is in it to a group. Directories get the
// setgid bit, which hands the group on to what is made in them; who may execute a
// file stays who may. What is right already is not touched, so that a repeated
// call after an error goes on where the first one ended. What is mounted inside
// is left alone.
func Share(ctx context.Context, dir string, gid int) error {
	root, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("give %s to group %d: %w", dir, gid, err)
	}
	s := sharing{root: root, gid: uint32(gid)} //nolint:gosec // ids of groups are checked where they come in
	if err := errors.Join(s.run(ctx), root.Close()); err != nil {
		return fmt.Errorf("give %s to group %d: %w", dir, gid, err)
	}
	return nil
}

type sharing struct {
	root *os.File
	gid  uint32
	// dirs are the directories that are still to be done, as paths below root:
	// no tree is too deep to be open at once.
	dirs []string
}

func (s *sharing) run(ctx context.Context) error {
	s.dirs = []string{"."}
	for len(s.dirs) > 0 {
		dir := s.dirs[len(s.dirs)-1]
		s.dirs = s.dirs[:len(s.dirs)-1]
		if err := s.directory(ctx, dir); err != nil && !vanished(err) {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return nil
}

// directory does one directory and the files in it, and notes the directories.
func (s *sharing) directory(ctx context.Context, name string) error {
	dir, err := s.open(s.root, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := s.change(dir); err != nil {
		return err
	}
	for {
		names, err := dir.Readdirnames(batch)
		for _, entry := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := s.entry(dir, name, entry); err != nil && !vanished(err) {
				return fmt.Errorf("%s: %w", entry, err)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// entry looks first, which is all there is to do in a volume that was shared
// before.
func (s *sharing) entry(dir *os.File, parent, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		s.dirs = append(s.dirs, path.Join(parent, name))
		return nil
	}
	if s.right(&st) {
		return nil
	}
	file, err := s.open(dir, name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer file.Close()
	return s.change(file)
}

// open opens what is below a directory, and neither a link nor what is mounted
// there.
func (s *sharing) open(dir *os.File, name string, flags int) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_NOFOLLOW | unix.O_CLOEXEC), //nolint:gosec // flags are no negative number
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) { // EAGAIN: something was renamed meanwhile
			return nil, err
		}
	}
}

// change works on what is open, whatever has its name by now.
func (s *sharing) change(file *os.File) error {
	var st unix.Stat_t
	fd := int(file.Fd())
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if s.right(&st) {
		return nil
	}
	if err := unix.Fchownat(fd, "", -1, int(s.gid), unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil // it has no mode
	}
	// After the change of group, which clears the setuid and setgid bits. No call
	// changes the mode of what is open with O_PATH but by this name.
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), wanted(st.Mode))
}

func (s *sharing) right(st *unix.Stat_t) bool {
	return st.Gid == s.gid && (st.Mode&unix.S_IFMT == unix.S_IFLNK || st.Mode&permissions == wanted(st.Mode))
}

// wanted are the permissions of what has a mode.
func wanted(mode uint32) uint32 {
	permitted := mode&permissions | groupReads
	switch {
	case mode&unix.S_IFMT == unix.S_IFDIR:
		return permitted | unix.S_ISGID | groupEnters
	case mode&anyExecutes != 0:
		return permitted | groupEnters
	}
	return permitted
}

// vanished reports whether a file was removed or replaced meanwhile, or
// another file system is mounted there.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV)
}
