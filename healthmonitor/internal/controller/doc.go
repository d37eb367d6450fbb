// Package controller reads the health of the volumes of one CSI driver, and reports it.
//
// One loop reads (sweep.go, list.go): all volumes one after the other, or pages of the driver's list, at most so many calls a second. Both generations of
// drivers answer with the same type (health.go). For each answer a pure function decides what is new since the last report (report.go), and a thin layer writes
// it: events on the claim and its pods, the status of the claim (status.go), and metrics. A call that fails changes no report.
//
// Beside it, the node watcher (nodes.go) reports nodes that are down to the claims that are in use there.
//
// It is internal to the health monitor; embed that.
package controller
