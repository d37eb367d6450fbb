// Package sanity runs the CSI sanity suite against the driver, inside go test
// and without privileges. It is a module of its own, so that copies of
// the driver do not have the suite's dependencies. Nothing imports it.
//
// SANITY_PROGRAM=PATH runs one configuration against a hostpathplugin, as root.
package sanity
