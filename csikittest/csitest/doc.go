// Package csitest is a CSI driver in memory: a real, small implementation of
// the Identity, Controller, GroupController and Node services that holds its callers to the
// life cycle of the specification, logs every call and injects faults.
// It serves over a unix socket, or in process without network and goroutines,
// so that it works inside a testing/synctest bubble.
//
// It is for tests of code that calls a driver. It stores no data and mounts
// nothing; tests that read or write volumes need a real driver.
package csitest
