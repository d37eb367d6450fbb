package volume

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Mutable says which parameters of a volume may be changed later. They mean
// nothing to the driver but that it keeps them: it is for trying out
// VolumeAttributesClasses.
type Mutable struct {
	// Enabled serves mutable parameters at all.
	Enabled bool
	// Names are the parameters that exist; none means all.
	Names []string
}

// Check reports whether the parameters may be set. If not, the error is an
// ErrInvalid that names the first, and nothing is changed.
func (m Mutable) Check(parameters map[string]string) error {
	if !m.Enabled && len(parameters) > 0 {
		return fmt.Errorf("mutable parameters: MODIFY_VOLUME is not advertised: %w", ErrInvalid)
	}
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		if len(m.Names) > 0 && !slices.Contains(m.Names, name) {
			return fmt.Errorf("mutable parameter %q: unknown, must be one of [%s]: %w", name, strings.Join(m.Names, " "), ErrInvalid)
		}
	}
	return nil
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
