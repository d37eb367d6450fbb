// Package kubetest is a Kubernetes API in memory for tests: a Cluster stores
// objects with the semantics that controllers rely on, and hands out a kube.Client.
//
//	cluster := kubetest.New(node, claim)
//	err := controller.Run(ctx, cluster.Client())
//	cluster.Writes() // what the controller wrote, in order
//
// What it does as the real server does: resourceVersions grow with each write and stale
// ones conflict; writes that change nothing store nothing; names are generated; status is
// written by its subresource alone, where the kind has one; deletion honours
// finalizers, preconditions and the grace of pods that have a node, and an object that is being deleted takes
// no new finalizers; JSON, merge and strategic patches, where a failed JSON patch "test" is Invalid (422)
// without a cause, and another UID is Invalid because of metadata.uid; the rules for metadata;
// label and field selectors; lists, watches from a
// resourceVersion, streaming lists, watches that break or have expired. Package conformance has these
// facts as tests, which a real kube-apiserver passes as well.
//
// CSIDrivers have managedFields, server-side apply, defaults and immutable fields, too.
//
// Define adds kinds of custom resources, with their rules; package snapshotapitest does so for snapshots.
//
// What it leaves out: validation of specs and statuses, admission and defaulting, owner
// references (there is no garbage collector), server-side apply of other kinds, dry run, generations, and paging of lists.
//
// UIDs, generated names and resourceVersions are counted, hence the same in each run. Nothing
// uses a network, and goroutines end with their watch: it works inside a testing/synctest bubble.
//
// Use it for flows. For pure decisions no API is needed; whether the server accepts a
// spec, only a real server decides.
package kubetest
