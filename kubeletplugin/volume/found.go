package volume

import "k8s.io/apimachinery/pkg/types"

// MountPoint is where something is mounted.
type MountPoint struct {
	// Point is the path.
	Point string
	// Source is equal for two mounts of the same directory of the same file system.
	Source string
}

// MountTable lists the mount points below a directory.
type MountTable func(dir string) ([]MountPoint, error)

// Found is what an earlier process has left below a root directory.
type Found struct {
	// Volumes have at least one record, sorted by name.
	Volumes []Recovered
	// Pods have a directory or a raw block volume, sorted.
	Pods []types.UID
	// Lost are the targets without a usable record in which something is mounted or stored, sorted by path.
	Lost []Lost
	// Foreign are all other paths below the root that may belong to a volume but have no usable record, sorted by path.
	Foreign []Foreign
	// Unused are staging directories, and directories of raw block volumes, without a record, sorted: nothing was ever staged there.
	Unused []string
}

// Lost is a target whose record is missing or corrupt.
type Lost struct {
	// Key is the use, as the path names it.
	Key Key
	// Path is the target path.
	Path string
	// Err is what is wrong with the record.
	Err error
}

// Foreign is a path that may belong to a volume of which nothing is known.
type Foreign struct {
	// Path is the mount point or directory.
	Path string
	// Problem says what it is.
	Problem string
}
