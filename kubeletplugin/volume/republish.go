package volume

import (
	"context"
	"fmt"
	"time"

	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// Refresh lets the next NodePublishVolume calls for a published volume follow its CSIDriver object as it is now. The volume is not
// published again for it. A volume that needs no attachment any more leaves volumesInUse, unless it is in volumesAttached: then it
// could be detached under its pods. A volume that is not wanted stays unwanted.
func (m *Manager) Refresh(p Publication) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.actors[p.Volume.Name]
	if a == nil || a.state.uses[p.Key()] == nil || a.state.uses[p.Key()].want == nil {
		return
	}
	u := a.state.uses[p.Key()]
	if p.Republish && !u.want.Republish {
		u.scheduleRepublish(m.cfg.Clock.Now(), m.backoff)
	}
	want := *u.want // which a step in progress may be reading
	want.PodInfo, want.Republish, want.ChangeGroup = p.PodInfo, p.Republish, p.ChangeGroup
	want.Tokens, want.TokensInSecrets = p.Tokens, p.TokensInSecrets
	if want.Volume.Attachable && !p.Volume.Attachable {
		want.Volume.Attachable, a.state.volume.Attachable, a.state.device.attached = false, false, nil
	}
	u.want = &want
	a.poke()
}

// scheduleRepublish sets the time of the next NodePublishVolume for a volume that is published.
func (u *use) scheduleRepublish(now time.Time, b backoff) {
	u.republish = retryState{retryAt: now.Add(b.untilLook())}
}

// republications lists the published volumes whose drivers want NodePublishVolume to be repeated. There is none while what is mounted
// belongs to a former attachment.
func republications(s *state) []candidate {
	if s.device.stale() {
		return nil
	}
	var all []candidate
	for _, k := range s.keys() {
		if u := s.uses[k]; u.want != nil && u.want.Republish && u.mount == present {
			all = append(all, candidate{opRepublish, k, &u.republish})
		}
	}
	return all
}

// republishVolume repeats NodePublishVolume for a published volume, with the secret and the tokens of this moment. Whatever comes of it, the
// volume stays published: the pod may be using the mount (kubernetes/kubernetes 121271).
func (m *Manager) republishVolume(ctx context.Context, j job) result {
	if j.volume.Attachable {
		a, err := m.cfg.Attachments.Attachment(ctx, layout.Attachment(j.volume.Handle, j.volume.Driver, m.cfg.Node))
		if err != nil {
			return transient(err)
		}
		if j.stagedFor != "" && a.UID != j.stagedFor {
			return result{attachment: a, err: fmt.Errorf("volume was detached and attached again (attachment UID %s, now %s)", j.stagedFor, a.UID)}
		}
		j.attachment = a
	}
	d, c, err := m.preparePublish(ctx, j)
	if err != nil {
		return result{err: err, attachment: j.attachment}
	}
	err = m.between(fault.BeforePublish, fault.AfterPublish, func() error {
		_, err := d.Node().NodePublishVolume(ctx, publishRequest(j.want, c, d.RequiresPublishPod()))
		return err
	})
	return result{err: err, attachment: j.attachment, groupDelegated: mountsWithGroup(c.caps)}
}

// settleRepublish records a repeated NodePublishVolume. The driver may have made new files, so they get the group of the pod again.
func settleRepublish(s *state, j job, r result, now time.Time, b backoff) {
	u := s.uses[j.key]
	if r.attachment != nil {
		s.device.attached = r.attachment
	}
	switch {
	case u.want == nil: // dropped meanwhile
	case r.err != nil:
		u.republish.fail(r.err, now, b)
	default:
		u.scheduleRepublish(now, b)
		u.groupPending = u.want.changesGroup() && !r.groupDelegated
		u.groupAwaited = u.groupAwaited && u.groupPending
	}
}
