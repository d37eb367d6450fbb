package copier

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// attributes sets owner, extended attributes, mode and times of the target. The order matters: a change of owner clears the setuid bit and capabilities,
// an access control list changes the mode, and a process that may not write to a file may not change its user attributes.
func (t *tree) attributes(source, target *os.File, want *unix.Stat_t) error {
	have, err := status(target)
	if err != nil {
		return err
	}
	path := handle(target)
	if have.Uid != want.Uid || have.Gid != want.Gid {
		t.step("chown")
		if err := unix.Chown(path, int(want.Uid), int(want.Gid)); err != nil {
			return fmt.Errorf("set owner uid %d and gid %d: %w", want.Uid, want.Gid, err)
		}
	}
	if source != nil { // else it vanished
		if err := t.extendedAttributes(handle(source), path); err != nil {
			return err
		}
	}
	if kind(want) != unix.S_IFLNK {
		t.step("chmod")
		if err := t.chmod(path, want.Mode&0o7777); err != nil {
			return fmt.Errorf("set mode %o: %w", want.Mode&0o7777, err)
		}
	}
	t.step("times")
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{want.Atim, want.Mtim}, 0); err != nil {
		return fmt.Errorf("set times: %w", err)
	}
	return nil
}

// errMode is the error for a bit that the kernel leaves out without an error of its own: chmod(2), setgid of a group that the process is no member of.
var errMode = errors.New("the kernel left bits out: the process needs the capability CAP_FSETID")

// chmod sets a mode, and looks whether it is set.
func (*tree) chmod(path string, mode uint32) error {
	if err := unix.Chmod(path, mode); err != nil {
		return err
	}
	var have unix.Stat_t
	if err := unix.Stat(path, &have); err != nil {
		return err
	}
	if have.Mode&0o7777 != mode {
		return fmt.Errorf("it is %o: %w", have.Mode&0o7777, errMode)
	}
	return nil
}

// extendedAttributes makes those of the target equal, access control lists among them. Attributes that the target inherited are removed.
func (t *tree) extendedAttributes(source, target string) error {
	want, err := t.attributeNames(source)
	if err != nil {
		return err
	}
	have, err := t.attributeNames(target)
	if err != nil {
		return err
	}
	for _, name := range have {
		if slices.Contains(want, name) {
			continue
		}
		t.step("remove attribute")
		if err := unix.Removexattr(target, name); err != nil && !errors.Is(err, unix.ENODATA) {
			return fmt.Errorf("remove extended attribute %s: %w", name, err)
		}
	}
	for _, name := range want {
		if err := t.extendedAttribute(source, target, name); err != nil {
			return fmt.Errorf("copy extended attribute %s: %w", name, err)
		}
	}
	return nil
}

func (t *tree) extendedAttribute(source, target, name string) error {
	n, err := unix.Getxattr(source, name, t.attribute)
	if errors.Is(err, unix.ENODATA) {
		return nil // it vanished meanwhile
	}
	if err != nil {
		return err
	}
	t.step("set attribute")
	return unix.Setxattr(target, name, t.attribute[:n], 0)
}

// attributeNames omits the label of SELinux, which its policy sets, and the kubelet for volumes.
func (t *tree) attributeNames(path string) ([]string, error) {
	n, err := unix.Listxattr(path, t.attribute)
	if errors.Is(err, unix.EOPNOTSUPP) || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list extended attributes: %w", err)
	}
	names := strings.Split(strings.TrimSuffix(string(t.attribute[:n]), "\x00"), "\x00")
	return slices.DeleteFunc(names, func(name string) bool { return name == "security.selinux" }), nil
}
