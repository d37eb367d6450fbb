package volume

import (
	"fmt"
	"slices"
)

// Form is the form of a volume's contents: a directory, or a disk. A disk is a file that
// nodes attach as a block device; the workload uses the device itself, or a file system
// that the driver makes on it and mounts.
type Form struct {
	// Disk is false for a directory.
	Disk bool `json:"disk,omitempty"`
	// FSType is the type of the file system that the driver makes on a disk;
	// empty when the workload uses the device itself.
	FSType string `json:"fsType,omitempty"`
}

// String names the form for messages.
func (f Form) String() string {
	switch {
	case !f.Disk:
		return "a directory"
	case f.FSType == "":
		return "a device"
	}
	return "an image with " + f.FSType
}

// CheckSource reports whether contents of this form can be copied from a source: a
// disk from a disk, with the same file system if both have one. If not, the error
// is an ErrInvalid.
func (f Form) CheckSource(source Form) error {
	if f.Disk != source.Disk || (f.FSType != "" && source.FSType != "" && f.FSType != source.FSType) {
		return fmt.Errorf("volume content source: is %v, asked for is %v: %w", source, f, ErrInvalid)
	}
	return nil
}

// ChooseForm selects the form of a new volume: the one that the parameter "backend"
// and the file system type of the capabilities ask for, else that of the source,
// else a directory. Contradictions are an ErrInvalid.
func (s Support) ChooseForm(a Attributes, list []Capability, origin *Origin) (Form, error) {
	access, fsType, err := accessAndFSType(list)
	if err != nil {
		return Form{}, err
	}
	device := access == AccessBlock
	if a.Backend == backendDirectory && (device || fsType != "") {
		return Form{}, fmt.Errorf("parameter %q: %q has neither devices nor file systems of its own: %w", keyBackend, a.Backend, ErrInvalid)
	}
	form, err := Form{FSType: fsType, Disk: device || fsType != "" || a.Backend == backendImage}.inherit(origin, a.Backend == "")
	if err != nil {
		return Form{}, err
	}
	switch {
	case device:
		form.FSType = ""
	case form.Disk && form.FSType == "":
		if form.FSType = s.defaultFSType(origin); form.FSType == "" {
			return Form{}, fmt.Errorf("volume capabilities: this backend makes no file systems: %w", ErrInvalid)
		}
	}
	return form, s.checkFSType(form.FSType)
}

// accessAndFSType returns the access type and the file system type of capabilities.
func accessAndFSType(list []Capability) (access Access, fsType string, err error) {
	access = AccessMount
	for _, c := range list {
		access = c.Access
		if c.FSType == "" {
			continue
		}
		if fsType != "" && fsType != c.FSType {
			return "", "", fmt.Errorf("volume capabilities: file system types %q and %q: a volume has one: %w", fsType, c.FSType, ErrInvalid)
		}
		fsType = c.FSType
	}
	return access, fsType, nil
}

// inherit takes over the form of a source, if open says that the request leaves the
// form open, and checks the form against the source.
func (f Form) inherit(origin *Origin, open bool) (Form, error) {
	if origin == nil {
		return f, nil
	}
	if open && !f.Disk {
		f = origin.Form
	}
	return f, f.CheckSource(origin.Form)
}

// defaultFSType is the type of the source, else the first type of the backend.
func (s Support) defaultFSType(origin *Origin) string {
	switch {
	case origin != nil && origin.FSType != "":
		return origin.FSType
	case len(s.FSTypes) > 0:
		return s.FSTypes[0]
	}
	return ""
}

func (s Support) checkFSType(fsType string) error {
	if fsType != "" && !slices.Contains(s.FSTypes, fsType) {
		return fmt.Errorf("file system type %q: this backend makes %s: %w", fsType, orNone(s.FSTypes), ErrInvalid)
	}
	return nil
}

// Size selects the size in bytes of a new volume of that form.
func (s Support) Size(f Form, r Range, largest int64) (int64, error) {
	if !f.Disk {
		return r.Size(largest)
	}
	least := int64(0)
	if f.FSType != "" && s.LeastSize != nil {
		least = s.LeastSize(f.FSType)
	}
	return r.DiskSize(least, largest)
}
