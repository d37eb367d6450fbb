// Package events tells users what happened to an object, as core/v1 Events, which
// "kubectl describe" shows.
//
// Callers say things as often as they like; the Recorder writes only what is news: the same reason
// and message about the same object once within an hour. Writing happens in the background with a
// budget of its own (a token bucket) and a bounded queue, so events never delay the work they tell of,
// nor take requests away from it. When the queue is full the oldest event is dropped and counted; what was
// lost is news when it happens again.
//
//	recorder, err := events.NewRecorder(events.Config{Client: client, Component: "csi-attacher"})
//	go recorder.Run(ctx) // owned by an errgroup; ends after the controllers have
//	recorder.Warning(claim, "ProvisioningFailed", outcome.Message(err))
//
// Messages must be deterministic, without times or counters, or nothing is a repetition. For rates use metrics,
// for details logs; an event is for something that a user can act on.
package events
