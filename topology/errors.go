package topology

import "errors"

// The classes of errors of this package. Every returned error wraps exactly
// one of them, says what was looked for, and what to do about it; compare
// with errors.Is.
var (
	// ErrNodeNotFound says that the selected node is gone: its Node or its
	// CSINode object does not exist. Retrying for the same node is futile;
	// give the claim back to the scheduler so that it selects another one.
	ErrNodeNotFound = errors.New("node not found")

	// ErrNotRegistered says that the node exists, but the driver is not (or
	// not yet, or no longer) registered on it. Retry.
	ErrNotRegistered = errors.New("driver not registered on the node")

	// ErrMissingLabel says that a node lacks a label that the driver named
	// as a topology key. The kubelet writes both, not in one step. Retry.
	ErrMissingLabel = errors.New("topology label missing")

	// ErrNotAllowed says that allowedTopologies of the StorageClass exclude
	// the selected node, or everything that there is. Retrying helps only
	// after the class, the driver or the nodes have changed.
	ErrNotAllowed = errors.New("excluded by allowedTopologies")

	// ErrUnreachable says that the source of the volume can be reached from
	// nowhere that the driver, or allowedTopologies of the StorageClass, has.
	// Retrying helps only after one of these has changed.
	ErrUnreachable = errors.New("source cannot be reached")

	// ErrNoTopology says that there is no segment to choose from: the driver
	// is registered nowhere, or reports no topology keys. Retry.
	ErrNoTopology = errors.New("no available topology found")

	// ErrInvalid says that a key, a value or a term is malformed. Retrying
	// the same input is futile.
	ErrInvalid = errors.New("invalid topology")
)
