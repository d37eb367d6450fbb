package volume

import "fmt"

// ExpandRequest asks for a larger volume.
type ExpandRequest struct {
	ID ID
	// Range is the size to reach.
	Range Range
	// Capability is how the volume is used; nil means that the CO does not
	// say.
	Capability *Capability
}

// CheckExpand decides on a larger size (CSI v1.13, "ControllerExpandVolume"):
// a volume that is large enough is already done, as volumes never shrink. It
// is an ErrInvalid for a contradictory range or another access type, and an
// ErrOutOfRange where the range has no size that is possible.
func (v *Volume) CheckExpand(req *ExpandRequest, largest int64) (size int64, verdict Verdict, err error) {
	if err := v.checkExpandable(req); err != nil {
		return 0, Refuse, err
	}
	switch {
	case req.Range.Required < 0 || req.Range.Limit < 0 || (req.Range.Limit > 0 && req.Range.Required > req.Range.Limit):
		_, err := req.Range.Size(largest)
		return 0, Refuse, err
	case req.Range.Limit > 0 && v.Capacity > req.Range.Limit:
		return 0, Refuse, fmt.Errorf("capacity range: limit_bytes %d is below the %d bytes that volume %q has, and volumes do not shrink: %w",
			req.Range.Limit, v.Capacity, v.ID, ErrOutOfRange)
	case v.Capacity >= req.Range.Required:
		return v.Capacity, AlreadyDone, nil
	}
	if v.Form().Disk {
		size, err = req.Range.DiskSize(0, largest)
	} else {
		size, err = req.Range.Size(largest)
	}
	if err != nil {
		return 0, Refuse, err
	}
	return size, Proceed, nil
}

// checkExpandable reports whether the volume is what the CO takes it for, and
// complete.
func (v *Volume) checkExpandable(req *ExpandRequest) error {
	if err := v.CheckFilled(); err != nil || req.Capability == nil {
		return err
	}
	return v.CheckAccess(*req.Capability)
}

// NodeExpandRequest asks a node to let its users see the size.
type NodeExpandRequest struct {
	ID ID
	// Path is where the volume is staged or published.
	Path string
	// Range is the size that must be seen; unset means that of the volume.
	Range Range
	// Capability is how the volume is used; nil means that the CO does not
	// say.
	Capability *Capability
}
