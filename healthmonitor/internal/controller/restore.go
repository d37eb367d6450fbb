package controller

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// eventPage is the number of events that are read at a time.
const eventPage = 500

// subject is what an event is about: the health of the volume of an object, or the node that uses it.
type subject struct {
	uid  types.UID
	node bool
}

// history has the newest event of each subject.
type history map[subject]*corev1.Event

// add notes an event unless a newer one of the subject is noted.
func (h history) add(event *corev1.Event) {
	s := subject{uid: event.InvolvedObject.UID, node: event.Reason == ReasonNodeFailed || event.Reason == ReasonNodeRecovered}
	if event.Reason == ReasonUnknown || h[s] != nil && timeOf(event).Before(timeOf(h[s])) {
		return
	}
	h[s] = &corev1.Event{
		InvolvedObject: event.InvolvedObject, Reason: event.Reason, Message: event.Message,
		LastTimestamp: event.LastTimestamp, EventTime: event.EventTime,
	}
}

// timeOf is when an event was seen last.
func timeOf(event *corev1.Event) time.Time {
	if event.LastTimestamp.IsZero() {
		return event.EventTime.Time
	}
	return event.LastTimestamp.Time
}

// restore reads once what was reported before the start, by this component under its name or by upstream's, so that it is not reported again, and recoveries are
// reported. Without the right to list events, that is all that is missing.
func (c *Controller) restore(ctx context.Context) {
	newest, err := c.readHistory(ctx)
	if err != nil {
		klog.FromContext(ctx).Info("Former events cannot be read: events about problems that last are written again", logging.KeyReason, err.Error())
	}
	c.records.mu.Lock()
	defer c.records.mu.Unlock()
	for s, event := range newest {
		object := event.InvolvedObject
		switch {
		case event.Reason == ReasonNodeFailed:
			if node, _, ok := strings.Cut(strings.TrimPrefix(event.Message, nodePrefix), " "); ok && c.nodes != nil {
				c.nodes.restore(node, s.uid, object.Namespace+"/"+object.Name)
			}
		case event.Reason != ReasonAbnormal:
		case object.Kind == "Pod":
			c.records.pods[s.uid] = event.Message
		default:
			if claim, ok := c.claims.Get(object.Namespace, object.Name); ok && claim.UID == s.uid {
				rec := c.records.of(claim)
				rec.since, rec.report.abnormal, rec.report.text, rec.report.at = timeOf(event), true, event.Message, timeOf(event)
			}
		}
	}
}

// readHistory reads the events of this component.
func (c *Controller) readHistory(ctx context.Context) (history, error) {
	newest, from := history{}, ""
	for {
		call, cancel := context.WithTimeout(ctx, c.cfg.KubeTimeout)
		list, err := c.cfg.Kube.Events("").List(call, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("source", Component(c.cfg.Driver)).String(), Limit: eventPage, Continue: from,
		})
		cancel()
		if err != nil {
			return newest, err
		}
		for i := range list.Items {
			newest.add(&list.Items[i])
		}
		if from = list.Continue; from == "" {
			return newest, nil
		}
	}
}
