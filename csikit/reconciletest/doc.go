// Package reconciletest tests a component by transcripts: text files that tell a story, command by
// command, with everything the component did in answer to each. The files are reviewed as prose and
// rewritten by "go test -rewrite".
//
// A component's whole test is a few lines:
//
//	func TestTranscripts(t *testing.T) {
//		reconciletest.Run(t, "testdata", func(ctx context.Context, env *reconciletest.Env) error {
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
//	crash                    cut all its connections, then end it: nothing is tidied up
//	settle                   let half a second pass, for what goes by itself
//	advance <duration>       let time pass (it is virtual, and costs nothing)
//	expect-none              settle, and fail if anything happened, also with -rewrite
//
// The Kubernetes API, by the user's hand:
//
//	apply                    create or replace the objects of the YAML below, status included
//	patch <kind> <name>      merge the YAML below into an object
//	delete <kind> <name>     delete an object; finalizers are honoured
//	dump <kind> [<name>]     print objects as YAML
//	api-fault [verb=] [resource=] [namespace=] [name=] [error=] [message=] [delay=] [times=] [hang] [after] [crash]
//	break-watches            end all watches; "compact" as argument also makes resuming impossible
//
// Names are namespace/name or name. Errors of api-fault are conflict, not-found, already-exists, forbidden, invalid, timeout,
// too-many-requests, internal, unavailable.
//
// The driver:
//
//	driver [name=] [node=] [nodes=(a,b)] [topology=(k=v,...)] [controller=(...)] [node-caps=(...)]
//	                         replace the driver by a new one; before start
//	caps [controller=(...)] [node=(...)]  change what the driver announces
//	volume <id> [name=] [capacity=<bytes>] [node=]  make a volume that exists without CreateVolume
//	vanish <id>              remove a volume behind everybody's back
//	volumes                  print what the driver has
//	fault [method=] [code=] [message=] [delay=] [times=] [hang] [after] [crash]
//	heal                     remove all faults, of the driver and the API
//
// "after" lets the request take effect before it fails; "crash" crashes the component at that point
// instead of failing the request, to be followed by restart.
//
// # Output
//
// The output of a command is what the component wrote to the API, the CSI calls it made (but for those
// of Identity and capabilities), and its events, which come last. Lines are prefixed by the time since the
// command began if that is a second or more. What belongs together (a claim, its volume, its attachment)
// is in the order in which it happened; things that have nothing to do with each other are sorted, so that the output is
// the same in every run, whatever the number of workers. Timestamps are printed as <time>; UIDs and
// resourceVersions of objects, and Leases, are left out.
//
// At the end of each file the component is stopped, and calls that were against the CSI life cycle
// fail the test.
//
// Use it for flows with several steps or faults. Pure decisions are better tested by tables.
package reconciletest
