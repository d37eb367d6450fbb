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
// finalizers, preconditions and the grace of pods that have a node; JSON, merge and strategic patches,
// where a failed JSON patch "test" is Invalid (422); label and field selectors; lists, watches from a
// resourceVersion, streaming lists, watches that break or have expired.
//
// What it leaves out: validation of the contents of objects, admission and defaulting, owner
// references (there is no garbage collector), server-side apply, dry run, generations, and paging of lists.
//
// UIDs, generated names and resourceVersions are counted, hence the same in each run. Nothing
// uses a network, and goroutines end with their watch: it works inside a testing/synctest bubble.
//
// Use it for flows. For pure decisions no API is needed; whether the server accepts an
// object only a real server tells.
package kubetest
