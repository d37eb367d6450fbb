package controller

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// maxPoll is the longest pause between two looks at the contents of members that are missing.
const maxPoll = time.Minute

// recordMembers writes the members of a group snapshot to its status, which needs them to be deleted: an object that was stored as v1beta1
// has them in a field that later versions do not have, or has lost them with the first write in a later version. The contents of the members
// still name the group then. While a member is missing, the group is looked at again from time to time, which costs no request.
func (l *loop) recordMembers(ctx context.Context, r record) error {
	infos := l.earlier(r)
	if len(infos) < len(r.volumes) {
		last := l.memory.of(r.name, r.uid).of(doMembers, r)
		last.due = time.Now().Add(reconcile.Pause(flagset.Retry{Start: l.cfg.Retry.Start, Max: maxPoll}, r.name, last.polls))
		last.polls++
		l.memory.put(r.name, last)
		return nil
	}
	klog.FromContext(ctx).Info("Recording the members of a group snapshot of an earlier version", "members", len(infos))
	return l.writeStatus(ctx, r, map[string]any{"volumeSnapshotInfoList": infos, "volumeSnapshotHandlePairList": nil})
}
