// Package reconcile runs a function for every key that needs attention: the loop of a controller.
//
// A Controller takes keys from informers (Add), hands each to Reconcile, one
// worker at a time per key, and repeats what failed with growing pauses. Keys are plain
// comparable values, such as cache.ObjectName or a struct, so nothing is parsed.
//
//	c, err := reconcile.New(reconcile.Config[cache.ObjectName]{Name: "claims", Reconcile: r.claim, Workers: 100})
//	claims.OnChange(func(_, claim *corev1.PersistentVolumeClaim) { c.Add(...) })
//	err = c.Run(ctx)
//
// At the end of the context no work is begun, but what runs may finish, so that the outcome
// of a CSI call is recorded. Where that would be wrong, as the lease of the leader is lost, running work is cancelled at
// once: the cause of the context's end then has a method Abort() bool that returns true. What becomes wrong only after
// the end is told by WithAbort.
//
// It is not meant for periodic jobs without keys, nor for work that may be lost: the queue is memory,
// a restart begins with the full list of the informer.
package reconcile
