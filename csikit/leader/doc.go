// Package leader elects one of several instances by a Lease (coordination.k8s.io/v1).
//
//	err := leader.Run(ctx, leader.Config{Client: client, Name: "external-attacher-leader-" + ...},
//		func(ctx context.Context) error { return controllers.Run(ctx) })
//
// It speaks the protocol of client-go's elector, so both may compete for one Lease, as during
// an upgrade. It differs in what happens at the end: Run returns an error instead of exiting the
// process, and the Lease is renewed until the leader's work has really ended, then released, so
// that the successor starts at once and never beside us.
//
// Serve is Run for components that take part in the next election after the Lease was lost, instead of ending.
//
// An instance that waits watches the Lease, where it may, and so begins as soon as that is released, or when it has expired. Where it may
// not, it reads the Lease every RetryPeriod.
//
// Clocks of machines are never compared: how long a Lease is still valid is measured from
// when this instance has seen it change. The protocol cannot stop work that is under way outside
// (a CSI call) when the API server is unreachable; writes to the API are safe by resourceVersions.
//
// Do not use it to share work among instances, or where a node name decides who works.
package leader
