package csiclient

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// process is what decides, besides a file, whether access to the file is granted.
type process struct {
	uid    int
	groups []int // the effective group first
}

func thisProcess() process {
	groups := []int{os.Getegid()}
	more, _ := os.Getgroups() // the effective group alone is better than no explanation
	for _, gid := range more {
		if !slices.Contains(groups, gid) {
			groups = append(groups, gid)
		}
	}
	return process{os.Geteuid(), groups}
}

// String returns the user and the groups, for messages.
func (p process) String() string {
	return fmt.Sprintf("uid %d, gid %d, groups %s", p.uid, p.groups[0], strings.Trim(fmt.Sprint(p.groups), "[]"))
}

// file is a socket, or a directory above it, with what guards it.
type file struct {
	path     string
	dir      bool
	perm     fs.FileMode
	uid, gid int
}

// explainDenied adds to a "permission denied" of connect(2) on a unix socket
// which file refuses which process, and what to set. Without it a driver whose
// socket belongs to another user looks like a driver that is absent.
func explainDenied(err error, socket string) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	guard, found := findGuard(socket)
	if !found {
		return fmt.Errorf("%w (this process has %s)", err, thisProcess())
	}
	return fmt.Errorf("%w: %s", err, guard.explain(thisProcess()))
}

// findGuard returns the socket, or the nearest directory above it that this
// process may look at: a directory without search permission hides what is in it.
func findGuard(path string) (file, bool) {
	for {
		info, err := os.Stat(path)
		if err == nil {
			owner, ok := info.Sys().(*syscall.Stat_t)
			if !ok {
				return file{}, false
			}
			return file{path: path, dir: info.IsDir(), perm: info.Mode().Perm(), uid: int(owner.Uid), gid: int(owner.Gid)}, true
		}
		parent := filepath.Dir(path)
		if parent == path {
			return file{}, false
		}
		path = parent
	}
}

// explain says why p may not use f and what to set. connect(2) needs write
// permission on the socket, and search permission on each directory above it.
func (f file) explain(p process) string {
	kind, needs, bit, wanted := "socket", "write", fs.FileMode(0o2), "0660"
	if f.dir {
		kind, needs, bit, wanted = "directory", "search", 0o1, "0750"
	}
	facts := fmt.Sprintf("%s %s has mode %#o, owner uid %d, gid %d; this process has %s and needs %s permission",
		kind, f.path, f.perm, f.uid, f.gid, p, needs)
	switch {
	case f.grants(p, bit):
		return facts + ", which the mode grants: look for a denial by SELinux or AppArmor"
	case p.uid == f.uid || slices.Contains(p.groups, f.gid):
		return fmt.Sprintf("%s: let the driver set the mode of the %s to %s", facts, kind, wanted)
	case f.perm&(bit<<3) != 0:
		return fmt.Sprintf("%s: set runAsGroup, supplementalGroups or fsGroup of the pod to %d, or runAsUser of this container to %d", facts, f.gid, f.uid)
	default:
		return fmt.Sprintf("%s: set runAsUser of this container to %d, or let the driver set the mode of the %s to %s and set runAsGroup or fsGroup to %d",
			facts, f.uid, kind, wanted, f.gid)
	}
}

// grants reports whether the permission bit is set for p's class of users.
func (f file) grants(p process, bit fs.FileMode) bool {
	switch {
	case p.uid == f.uid:
		bit <<= 6
	case slices.Contains(p.groups, f.gid):
		bit <<= 3
	}
	return f.perm&bit != 0
}
