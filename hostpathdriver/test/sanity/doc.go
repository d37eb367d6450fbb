// Package sanity runs the CSI sanity suite against the driver, inside go test
// and without privileges. It is a module of its own, so that copies of
// the driver do not have the suite's dependencies. Nothing imports it.
package sanity
