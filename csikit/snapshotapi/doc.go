// Package snapshotapi is the API of volume snapshots and of group snapshots (KEP-177, KEP-3476): the names that the components
// of snapshots agree on, and a client of its six kinds, of the shape that package kube gives all others.
//
// The kinds are custom resources, which a cluster may lack and get later: IsAbsent recognizes the error, and Client.Served finds
// the version of group snapshots. Of these there is one Go type here, that of v1, whatever version the server has.
//
// Only the types are upstream's: its clientset links all of client-go's, 17 MiB in place of 32 KiB. What talks to no snapshots
// does without this package.
package snapshotapi
