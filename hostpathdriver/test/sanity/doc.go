// Package sanity runs the CSI sanity suite against the driver, inside go test
// and without privileges. It is a module of its own, so that whoever copies
// the driver does not copy the suite's dependencies. Nothing imports it.
package sanity
