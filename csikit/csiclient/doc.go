// Package csiclient connects a component to its CSI driver over a unix socket:
// it waits until the driver is ready, reads its name and capabilities, and
// reads them again whenever the driver comes back after a restart. It holds no
// global state and never ends the process; losing the connection is an event
// that the caller may treat as fatal.
//
// It is for callers of a driver. A driver itself uses package csiserver, and a
// test that needs a driver uses csikittest/csitest.
package csiclient
