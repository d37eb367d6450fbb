// Package expand decides on the expansion of a volume on its node: whether NodeExpandVolume is called and for which size,
// what its answer means, and what the status of the claim says (KEP-284, and KEP-1790 "RecoverVolumeExpansionFailure").
//
// The status of the claim is the journal: a process that is killed between two steps finds there what is left to do. All
// decisions are pure functions of the claim, its PersistentVolume and what is known of this node; Client is the thin layer
// that reads and writes the API. Package volume makes the calls to the driver.
package expand
