package volume

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-csi/longshore/driverkit"
)

// Keys of StorageClass parameters and of inline volume attributes.
const (
	keyKind = "kind"
	keyPool = "pool"
	keySize = "size"
	keyMode = "mode"
	keyUID  = "uid"
	keyGID  = "gid"

	keyBackend = "backend"
)

// Values of the parameter "backend".
const (
	backendDirectory = "directory"
	backendImage     = "image"
)

// reservedPrefixes mark the keys that Kubernetes components add: metadata of
// the claim, information about the pod.
func reservedPrefixes() []string {
	return []string{"csi.storage.k8s.io/", "csi.kubernetes.io/", "storage.kubernetes.io/"}
}

// Parameters are the parameters of CreateVolume, or the attributes of an inline volume.
type Parameters struct {
	// Pool is the kind of storage; empty lets the driver choose.
	Pool string
	// Backend is what the volume is to be kept in: "directory", "image", or
	// empty when nothing was said.
	Backend string
	// Size in bytes, inline volumes only; zero means the default.
	Size int64
	// Mode, UID and GID are given to the new directory; -1 leaves the id of
	// the process.
	Mode fs.FileMode
	UID  int
	GID  int
	// Owned says that one of Mode, UID and GID was requested.
	Owned bool
}

// ParseParameters reads the parameters of CreateVolume: backend, kind (or
// pool), mode, uid and gid. Keys that Kubernetes adds are ignored, others are an
// ErrInvalid that names the key.
func ParseParameters(parameters map[string]string) (Parameters, error) {
	return parse(parameters, false)
}

// ParseInline reads the attributes of an inline volume: those of
// ParseParameters and size.
func ParseInline(attributes map[string]string) (Parameters, error) {
	return parse(attributes, true)
}

func reserved(key string) bool {
	return slices.ContainsFunc(reservedPrefixes(), func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

func parse(values map[string]string, inline bool) (Parameters, error) {
	parsed := Parameters{Mode: 0o777, UID: -1, GID: -1} // Everybody may write, as workloads of Kubernetes run under any user id.
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if reserved(key) {
			continue
		}
		if !slices.Contains(knownKeys(inline), key) {
			return Parameters{}, fmt.Errorf("parameter %q: unknown, must be one of [%s]: %w", key, strings.Join(knownKeys(inline), " "), driverkit.ErrInvalid)
		}
		if err := parsed.set(key, values[key]); err != nil {
			return Parameters{}, fmt.Errorf("parameter %q: %w", key, err)
		}
	}
	kind, pool := values[keyKind], values[keyPool]
	if kind != "" && pool != "" && kind != pool {
		return Parameters{}, fmt.Errorf("parameters %q and %q: name two different pools %q and %q: %w", keyKind, keyPool, kind, pool, driverkit.ErrInvalid)
	}
	return parsed, nil
}

func (p *Parameters) set(key, value string) (err error) {
	p.Owned = p.Owned || key == keyMode || key == keyUID || key == keyGID
	switch key {
	case keyKind, keyPool:
		p.Pool = cmp.Or(value, p.Pool)
	case keyBackend:
		p.Backend, err = parseBackend(value)
	case keySize:
		p.Size, err = parseSize(value)
	case keyMode:
		p.Mode, err = parseMode(value)
	case keyUID:
		p.UID, err = parseOwner(value)
	case keyGID:
		p.GID, err = parseOwner(value)
	}
	return err
}

// knownKeys are the keys that set knows; some mean nothing to a volume that
// outlives its pod.
func knownKeys(inline bool) []string {
	keys := []string{keyBackend, keyGID, keyKind, keyMode, keyPool, keyUID}
	if inline {
		keys = append(keys, keySize)
	}
	slices.Sort(keys)
	return keys
}

func parseBackend(value string) (string, error) {
	if value != "" && value != backendDirectory && value != backendImage {
		return "", fmt.Errorf("%q: must be %s or %s: %w", value, backendDirectory, backendImage, driverkit.ErrInvalid)
	}
	return value, nil
}

func parseSize(value string) (int64, error) {
	size, err := ParseQuantity(value)
	if err == nil && size == 0 {
		err = fmt.Errorf("must be greater than zero: %w", driverkit.ErrInvalid)
	}
	return size, err
}

func parseMode(value string) (fs.FileMode, error) {
	bits, err := strconv.ParseUint(value, 8, 32)
	if err != nil || bits > 0o7777 {
		return 0, fmt.Errorf("%q: must be an octal number up to 7777: %w", value, driverkit.ErrInvalid)
	}
	mode := fs.FileMode(bits & 0o777)
	for bit, flag := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			mode |= flag
		}
	}
	return mode, nil
}

func parseOwner(value string) (int, error) {
	id, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q: must be a number from 0 to 2147483647: %w", value, driverkit.ErrInvalid)
	}
	return int(id), nil
}
