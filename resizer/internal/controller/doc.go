// Package controller expands and modifies the volumes of one CSI driver as their claims ask for.
//
// Claims come through one queue, so that no two operations work on the same claim. For each operation, a pure function decides what
// is next from the claim, the volume and what is remembered of the last attempt (planExpand, planModify), and a thin layer
// carries it out (expand.go, modify.go): first the intent in the claim's status, then the call, then the outcome in the volume and
// the claim. Whatever ends the process in between is repeated: the calls are idempotent.
//
// It is internal to the resizer; embed that.
package controller
