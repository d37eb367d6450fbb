// Package layout says where everything of a development cluster lies on disk.
//
// It makes no directory: that is done by the package that uses one. Package clean removes the tree.
package layout

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxSocketPath is what sockaddr_un.sun_path holds on Linux, without the final NUL.
const maxSocketPath = 107

// Dir is the root directory of one development cluster.
type Dir string

// Default is where a cluster lives unless the user says otherwise: $XDG_STATE_HOME/longshore/devcluster, or
// ~/.local/state/longshore/devcluster.
func Default() (Dir, error) {
	base := os.Getenv("XDG_STATE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("find the directory of the cluster: %w", err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	return Dir(filepath.Join(base, "longshore", "devcluster")), nil
}

// Cache is where the binaries of the control plane are kept between clusters.
func Cache() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w", err)
	}
	return filepath.Join(base, "longshore"), nil
}

// maxLinks is the number of links in a path that the kernel follows.
const maxLinks = 40

// Resolve returns the absolute path of dir without symbolic links, as the kernel lists mounts and backing files. The end of the path
// need not exist. A path that this user may not search stays as it is: the user can change nothing there, and what needs root says so.
func Resolve(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("make %q absolute: %w", dir, err)
	}
	path, err := resolve(abs, maxLinks)
	if errors.Is(err, os.ErrPermission) {
		return abs, nil
	}
	if err != nil {
		return "", fmt.Errorf("resolve the links of %q: %w", dir, err)
	}
	return path, nil
}

func resolve(path string, links int) (string, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, os.ErrNotExist) {
		return resolved, err
	}
	if links == 0 {
		return "", unix.ELOOP
	}
	parent, err := resolve(filepath.Dir(path), links)
	if err != nil {
		return "", err
	}
	path = filepath.Join(parent, filepath.Base(path))
	target, err := os.Readlink(path)
	switch {
	case err != nil:
		return path, nil //nolint:nilerr // the directory does not exist yet
	case !filepath.IsAbs(target):
		target = filepath.Join(parent, target)
	}
	return resolve(target, links-1)
}

func (d Dir) join(elem ...string) string {
	return filepath.Join(append([]string{string(d)}, elem...)...)
}

// Kubeconfig is the administrator's.
func (d Dir) Kubeconfig() string { return d.join("kubeconfig") }

// UserKubeconfig is the kubeconfig of a component.
func (d Dir) UserKubeconfig(user string) string { return d.join("users", user+".kubeconfig") }

// PKI holds certificates and keys.
func (d Dir) PKI() string { return d.join("pki") }

// Supervisor is the socket of the process that owns all others.
func (d Dir) Supervisor() string { return d.join("supervisor.sock") }

// Lock is held by the supervisor for as long as it lives.
func (d Dir) Lock() string { return d.join("lock") }

// Mark is a file that says that the directory is a cluster's and may be removed with everything in it.
func (d Dir) Mark() string { return d.join(".devcluster") }

// Logs holds one file for each process.
func (d Dir) Logs() string { return d.join("logs") }

// Log is the file of one process.
func (d Dir) Log(name string) string { return d.join("logs", name+".log") }

// Etcd is etcd's data directory.
func (d Dir) Etcd() string { return d.join("etcd") }

// Config holds the configuration files of the control plane.
func (d Dir) Config(name string) string { return d.join("config", name) }

// ControllerSocket is where the controller side of a driver listens. The first driver has no suffix.
func (d Dir) ControllerSocket(suffix string) string { return d.join("run", "csi"+suffix+".sock") }

// DriverState is the state directory of a driver, for all of its processes.
func (d Dir) DriverState(suffix string) string { return d.join("data" + suffix) }

// Node is the kubelet-like root directory of a node.
func (d Dir) Node(node string) string { return filepath.Join(d.Nodes(), node) }

// Nodes holds the directories of all nodes.
func (d Dir) Nodes() string { return d.join("nodes") }

// NodeSocket is where the driver listens for the agent of the node.
func (d Dir) NodeSocket(node, driver string) string {
	return filepath.Join(d.Node(node), "plugins", driver, "csi.sock")
}

// Registry is the directory that the agent of the node watches for registration sockets.
func (d Dir) Registry(node string) string { return filepath.Join(d.Node(node), "plugins_registry") }

// Check refuses a directory that cannot hold a cluster: a relative one, or one so long that a unix socket below it has a
// path that the kernel refuses.
func (d Dir) Check(driver string, nodes []string) error {
	var errs []error
	if !filepath.IsAbs(string(d)) {
		errs = append(errs, fmt.Errorf("directory %q: must be an absolute path", d))
	}
	if path := d.longest(driver, nodes); len(path) > maxSocketPath {
		errs = append(errs, fmt.Errorf("directory %q: socket path %q has %d bytes, the kernel takes at most %d; choose a shorter directory", d, path, len(path), maxSocketPath))
	}
	return errors.Join(errs...)
}

// longest is the longest path of a unix socket of the cluster.
func (d Dir) longest(driver string, nodes []string) string {
	longest := d.Supervisor()
	for _, node := range nodes {
		// The registrar binds to a hidden name of eight more characters first.
		for _, path := range []string{d.NodeSocket(node, driver), filepath.Join(d.Registry(node), driver+"-reg.sock") + ".tmp1234"} {
			if len(path) > len(longest) {
				longest = path
			}
		}
	}
	return longest
}
