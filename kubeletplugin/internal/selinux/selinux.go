// Package selinux finds the label of the files that a container with given SELinux options may use, from the policy of the machine.
//
// A kubelet asks github.com/opencontainers/selinux for it. This package reads the same files; it relabels nothing, and knows no other rule of
// SELinux. Whether a volume is mounted with a label is decided by package resolve.
package selinux

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// Host returns the function that returns the label of files for the options of a container, empty if there is none, by the policy of this machine. It is
// nil if SELinux is not enabled, or its policy says nothing of containers.
func Host() func(*corev1.SELinuxOptions) string {
	if !enabled() {
		return nil
	}
	return read("/")
}

// enabled reports whether SELinux is enabled: its file system is mounted writable, and a policy is loaded.
func enabled() bool {
	var fs unix.Statfs_t
	if err := unix.Statfs("/sys/fs/selinux", &fs); err != nil || fs.Type != unix.SELINUX_MAGIC || fs.Flags&unix.ST_RDONLY != 0 {
		return false
	}
	current, err := os.ReadFile("/proc/self/attr/current")
	return err != nil || strings.TrimRight(string(current), "\x00\n") != "kernel"
}

// read returns the labels of the policy below a root directory; nil if it says nothing of containers.
func read(root string) func(*corev1.SELinuxOptions) string {
	contexts, err := os.ReadFile(filepath.Join(root, "usr/share/containers/selinux/contexts"))
	if err != nil {
		policy, _ := os.ReadFile(filepath.Join(root, "etc/selinux/config")) // without it there is no file to read next
		contexts, _ = os.ReadFile(filepath.Join(root, "etc/selinux", value(policy, "SELINUXTYPE"), "contexts/lxc_contexts"))
	}
	base := strings.SplitN(value(contexts, "file"), ":", 4)
	if len(base) < 3 {
		return nil
	}
	return func(o *corev1.SELinuxOptions) string { return label(base, o) }
}

// label replaces the user and the level in the label of files: the role and the type of a process are not those of its files. Without a level
// there is no label, because the container runtime then selects a level that nobody else knows.
func label(base []string, o *corev1.SELinuxOptions) string {
	if o == nil || o.Level == "" {
		return ""
	}
	user := base[0]
	if o.User != "" {
		user = o.User
	}
	return strings.Join([]string{user, base[1], base[2], o.Level}, ":")
}

// value returns the value of a key in lines of the form key = "value"; empty if there is none.
func value(lines []byte, key string) string {
	for line := range strings.Lines(string(lines)) {
		name, val, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && strings.TrimSpace(name) == key {
			return strings.Trim(strings.TrimSpace(val), `"`)
		}
	}
	return ""
}
