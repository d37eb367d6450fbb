// Package events writes core/v1 Events about objects, which "kubectl describe" shows.
//
// Callers may record the same event as often as they like. The same reason and message about the same object is one Event object, whose count
// and time are written (by PATCH) at most once a minute, and at once when another message of that reason was written in between: the event that was
// seen last names the present cause. Of messages that always differ, because of the ID of a request for instance, an object has ten Event objects for each
// reason; the tenth has the newest message. One object causes 25 writes, and then one in five minutes. A component that may not patch events writes
// the same event as a new object once within 50 minutes, which is less than the API server keeps an event.
//
// A Recorder writes in the background with a budget of its own (a token bucket) and a bounded queue, so events never delay
// the work that they describe, nor take requests away from it. In a long queue Warnings are written before Normal
// events, and repetitions are only counted; when the queue is full, the oldest Normal event is dropped, or the oldest Warning if there is none.
// Dropped events are counted (csi_sidecar_events_dropped_total), and written when they are recorded again.
//
//	recorder, err := events.NewRecorder(events.Config{Client: client, Component: "csi-attacher"})
//	go recorder.Run(ctx) // owned by an errgroup; ends after the controllers have
//	recorder.Warning(claim, "ProvisioningFailed", outcome.Message(err))
//
// Messages should be deterministic, without times or counters, so that repetitions are known. For rates use metrics,
// for details logs; an event is for something that a user can act on.
package events
