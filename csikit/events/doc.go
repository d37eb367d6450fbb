// Package events writes core/v1 Events about objects, which "kubectl describe" shows.
//
// Callers may record the same event as often as they like; the Recorder writes the same reason
// and message about the same object once within 50 minutes, which is less than the API server keeps an event. It
// writes in the background with a budget of its own (a token bucket) and a bounded queue, so events never delay
// the work that they describe, nor take requests away from it. In a long queue Warnings are written before Normal
// events; when the queue is full, the oldest Normal event is dropped, or the oldest Warning if there is none.
// Dropped events are counted (csi_sidecar_events_dropped_total), and written when they are recorded again.
//
//	recorder, err := events.NewRecorder(events.Config{Client: client, Component: "csi-attacher"})
//	go recorder.Run(ctx) // owned by an errgroup; ends after the controllers have
//	recorder.Warning(claim, "ProvisioningFailed", outcome.Message(err))
//
// Messages must be deterministic, without times or counters, or no event is a repetition. For rates use metrics,
// for details logs; an event is for something that a user can act on.
package events
