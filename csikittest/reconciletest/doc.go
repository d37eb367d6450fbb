// Package reconciletest tests a component by transcripts: text files with commands and, after each command,
// the API writes, CSI calls and events of the component in answer to it. "go test -rewrite" rewrites them.
//
// A component's whole test is a few lines:
//
//	func TestTranscripts(t *testing.T) {
//		reconciletest.Run(t, "testdata/flows", func(ctx context.Context, env *reconciletest.Env) error {
//			return runWith(ctx, env.Kube, env.Conn)
//		})
//	}
//
// and a file in testdata reads like this (testdata/example.txt of this package is a longer one):
//
//	start
//	----
//	(nothing)
//
//	apply
//	apiVersion: storage.k8s.io/v1
//	kind: VolumeAttachment
//	...
//	----
//	api patch volumeattachments va-1
//	    + metadata.finalizers: ["external-attacher/test"]
//	csi ControllerPublishVolume -> OK
//	    node_id: node-1
//	    volume_id: vol-1
//	api patch volumeattachments/status va-1
//	    + status.attached: true
//
// # Commands
//
// The component and time:
//
//	start [key=value ...]    start the component; the pairs are Env.Args
//	stop                     end its context and wait for it
//	restart [key=value ...]  stop and start; without pairs those of the last start
//	crash                    cut all its connections, then end it, so that it cannot clean up
//	settle                   let half a second pass, for the component's own work
//	advance <duration>       let time pass (it is virtual, and costs nothing)
//	expect-none              settle, and fail if there is any output, also with -rewrite
//
// The Kubernetes API, as a user:
//
//	apply                    create or replace the objects of the YAML below, status included
//	patch <kind> <name>      merge the YAML below into an object
//	delete <kind> <name>     delete an object; finalizers are honoured
//	drop <kind> <name>       delete an object in spite of its finalizers, as if they were put on it at the same time
//	dump <kind> [<name>]     print objects as YAML
//	api-fault [verb=] [resource=] [namespace=] [name=] [error=] [message=] [delay=] [times=] [hang] [after] [crash]
//	serve <group> [off]      let the server have the kinds of an API group, or not: a CustomResourceDefinition is installed or removed
//	break-watches            end all watches; with "compact" they cannot resume either (410 Gone)
//
// Names are namespace/name or name. Errors of api-fault are conflict, not-found, already-exists, forbidden, denied (by an admission policy), invalid,
// stale (a JSON patch whose test fails), timeout, too-many-requests, internal, unavailable.
//
// The driver:
//
//	driver [name=] [node=] [nodes=(a,b)] [topology=(k=v,...)] [controller=(...)] [group=(...)] [node-caps=(...)] [offline]
//	       [ready-after=<answers>] [no-creation-time] [snapshot-topology]
//	                         replace the driver by a new one; before start
//	caps [controller=(...)] [group=(...)] [node=(...)]  change the capabilities that the driver announces
//	volume <id> [name=] [capacity=<bytes>] [node=] [topology=(k=v,...)]  add a volume without CreateVolume
//	health <id> [category=DEGRADED|status=<number>] [reason=] [message=] [abnormal=<message>]
//	                         let the driver report a problem of a volume, or with "abnormal" one as a VolumeCondition of CSI v1.12; without arguments: none
//	vanish <id>              remove a volume without DeleteVolume
//	volumes                  print the volumes of the driver
//	snapshot <id> [volume=] [size=<bytes>] [group=] [ready-after=] [topology=(k=v,...)]  add a snapshot without CreateSnapshot
//	groupsnapshot <id> snapshots=(a,b)  add a group of these
//	snapshots                print those that the driver has, without times
//	fault [method=] [code=] [message=] [delay=] [times=] [hang] [after] [crash]
//	heal                     remove all faults, of the driver and the API
//
// "after" lets the request take effect before it fails; "crash" crashes the component at that point
// instead of failing the request, to be followed by restart.
//
// # Output
//
// The output of a command has the API writes of the component, its CSI calls (except those for identity and
// capabilities), and its events, which come last. Lines are prefixed by the time since the command began if
// that is a second or more. Lines about related objects (a claim, its volume, its attachment) are in the order
// of time; lines about unrelated objects are sorted, so that the output is the same in every run with any
// number of workers. Timestamps are printed as <time>; UIDs and resourceVersions of objects, and Leases, are
// left out.
//
// At the end of each file the component is stopped, and calls that violated the CSI life cycle fail the test. So does a call that repeats a
// failed one, with the same request, before the pause of package reconcile is over, unless something changed in
// between: a command did more than let time pass, a write had a conflict, or ListVolumes was answered.
//
// Use it for flows with several steps or faults. Pure decisions are better tested by tables.
package reconciletest
