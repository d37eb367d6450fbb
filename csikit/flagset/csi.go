package flagset

import (
	"errors"
	"flag"
	"strings"
	"time"
)

// DefaultCSIAddress is where a helper finds the socket of the driver next to it.
const DefaultCSIAddress = "/run/csi/socket"

// DefaultCSITimeout is the deadline of one CSI call if the component sets none.
const DefaultCSITimeout = 15 * time.Second

// CSI says how the driver is reached.
type CSI struct {
	// Address of the driver's socket: an absolute path, unix:///path, or
	// (for tests) tcp://host:port.
	Address string
	// Timeout is the deadline of a single CSI call.
	Timeout time.Duration
}

// NewCSI returns the defaults. A component overwrites Timeout where its own differs.
func NewCSI() CSI {
	return CSI{Address: DefaultCSIAddress, Timeout: DefaultCSITimeout}
}

// AddFlags registers --csi-address and --timeout.
func (c *CSI) AddFlags(fs *flag.FlagSet) {
	c.AddAddressFlag(fs)
	fs.DurationVar(&c.Timeout, "timeout", c.Timeout, "deadline of each call to the CSI driver")
}

// AddAddressFlag registers --csi-address only, for components whose deadline has a name of its own.
func (c *CSI) AddAddressFlag(fs *flag.FlagSet) {
	fs.StringVar(&c.Address, "csi-address", c.Address, "`address` of the CSI driver: path of its unix socket, with or without unix://")
}

// Validate reports an empty or relative address and a timeout that is not positive.
func (c *CSI) Validate() error {
	var errs []error
	if rule := addressRule(c.Address); rule != "" {
		errs = append(errs, invalid("csi-address", c.Address, rule))
	}
	if c.Timeout <= 0 {
		errs = append(errs, invalid("timeout", c.Timeout, "must be greater than 0"))
	}
	return errors.Join(errs...)
}

// addressRule returns the rule that address breaks, or nothing.
func addressRule(address string) string {
	path, isURL := strings.CutPrefix(address, "unix://")
	switch {
	case address == "":
		return "must not be empty"
	case !isURL && strings.Contains(address, "://"):
		if strings.HasPrefix(address, "tcp://") {
			return ""
		}
		return "must be a path, unix:///path or tcp://host:port"
	case !strings.HasPrefix(path, "/"):
		return "must be an absolute path"
	}
	return ""
}
