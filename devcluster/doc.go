// Package devcluster runs a Kubernetes cluster for CSI drivers as plain processes on one machine: etcd and the real
// kube-apiserver, kube-controller-manager and kube-scheduler, built from pinned Go modules; the controllers that provision, attach,
// resize and snapshot volumes; and for each node an agent that mounts volumes for pods without a container runtime, a CSI driver and its
// registrar.
//
// It is the inner loop of driver development and the ground of the end-to-end tests: a cluster is up in seconds, every
// process can be killed, and every log, socket and volume is a path on the same disk. It is no place for workloads: pods
// get their volumes and a Running status, and no containers.
//
//	up := devcluster.Up(ctx, options, os.Stdout)      // starts a supervisor that outlives the caller
//	client := devcluster.Connect(options.Dir)         // talks to it
//	client.Signal(ctx, "csi-attacher", "KILL")        // it comes back
//	devcluster.Down(ctx, options.Dir, os.Stdout)      // leaves no process, mount, loop device or file
package devcluster
