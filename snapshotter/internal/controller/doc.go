// Package controller takes and deletes the snapshots of one CSI driver. Contents of snapshots and of group snapshots are each a loop of
// the same kind: a record says what a content asks for and what is known of its snapshot, plan decides what to do, and the loop does it.
package controller
