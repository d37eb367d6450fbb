// Package reconcile runs a function for every key that needs attention: the loop of a controller.
//
// A Controller takes keys from informers (Add), hands each to Reconcile, one
// worker at a time per key, and retries failures with exponential backoff. Keys are plain
// comparable values, such as cache.ObjectName or a struct, so nothing is parsed.
//
//	c, err := reconcile.New(reconcile.Config[cache.ObjectName]{Name: "claims", Reconcile: r.claim, Workers: 100})
//	claims.OnChange(func(_, claim *corev1.PersistentVolumeClaim) { c.Add(...) })
//	err = c.Run(ctx)
//
// A key that fails waits for its backoff, also when it is added meanwhile: a watch brings back what the work itself has written. It starts earlier
// when its Inputs change, or by Wake.
//
// When the context ends, no Reconcile starts, but a running one may finish, so that the outcome of a CSI call is recorded.
// Where that would be wrong, as the leader has lost its Lease, running calls are cancelled at once: the cause of the
// context's end then has a method Abort() bool that returns true. A Lease that is lost only after the end is reported by
// WithAbort.
//
// It is not meant for periodic jobs without keys, nor for work that may be lost: the queue is memory,
// a restart begins with the full list of the informer.
package reconcile
