package volume

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-csi/longshore/driverkit"
)

// keyReadAhead is the mutable parameter that sets the read-ahead of the devices of
// a disk, in KiB.
const keyReadAhead = "readAheadKiB"

const (
	kib = 1 << 10
	// readAheadUnit is the page of most machines: the kernel counts in pages.
	readAheadUnit = 4 * kib
	maxReadAhead  = 64 << 20
)

// AnyName among Mutable.Names accepts every name.
const AnyName = "*"

// Mutable says which parameters of a volume may be changed later.
type Mutable struct {
	// Enabled serves mutable parameters at all.
	Enabled bool
	// Names are parameters that are kept and have no effect, beside that of the
	// driver.
	Names []string
}

// Check reports whether a volume of that form may have the parameters (CSI v1.13,
// "ControllerModifyVolume"). If not, the error is an ErrInvalid that names the
// first, and nothing is changed.
func (m Mutable) Check(parameters map[string]string, f Form) error {
	if !m.Enabled && len(parameters) > 0 {
		return fmt.Errorf("mutable parameters: MODIFY_VOLUME is not advertised: %w", driverkit.ErrInvalid)
	}
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		if name == keyReadAhead {
			if err := checkReadAhead(parameters[name], f); err != nil {
				return err
			}
			continue
		}
		if !slices.Contains(m.Names, name) && !slices.Contains(m.Names, AnyName) {
			known := strings.Join(append([]string{keyReadAhead}, m.Names...), " ")
			return fmt.Errorf("mutable parameter %q: unknown, must be one of [%s]: %w", name, known, driverkit.ErrInvalid)
		}
	}
	return nil
}

func checkReadAhead(value string, f Form) error {
	if !f.Disk {
		return fmt.Errorf("mutable parameter %q: the volume is %v, and only devices and images have a read-ahead: %w", keyReadAhead, f, driverkit.ErrInvalid)
	}
	if _, ok := parseReadAhead(value); !ok {
		return fmt.Errorf("mutable parameter %q: %q: must be a multiple of %d from 0 to %d: %w",
			keyReadAhead, value, readAheadUnit/kib, maxReadAhead/kib, driverkit.ErrInvalid)
	}
	return nil
}

func parseReadAhead(value string) (bytes int64, ok bool) {
	n, err := strconv.ParseUint(value, 10, 32)
	bytes = int64(n) * kib
	return bytes, err == nil && bytes <= maxReadAhead && bytes%readAheadUnit == 0
}

// ReadAhead returns the read-ahead in bytes that the devices of the volume must
// have; false where that is left to the kernel. A value that an earlier version of
// the driver kept unchecked has no effect.
func (v *Volume) ReadAhead() (bytes int64, ok bool) {
	return parseReadAhead(v.MutableParameters[keyReadAhead])
}

// Modified reports whether the volume has these values of mutable parameters.
func (v *Volume) Modified(parameters map[string]string) bool {
	for name, value := range parameters {
		if have, ok := v.MutableParameters[name]; !ok || have != value {
			return false
		}
	}
	return true
}
