package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/expand"
)

// expansion is what is known about the size of a published PersistentVolume. A node may not watch claims, so the claim is
// looked at after each NodePublishVolume, and then from time to time.
type expansion struct {
	retryState
	known expand.Known
	// refused is true once the driver does not expand the volume as it is mounted: it is not asked again until the volume
	// is published again.
	refused bool
	// asked is what Expand asks for, until it is done or has failed for good; answer is how it has ended.
	asked  *asked
	answer error
}

// asked is an expansion that the caller asks for, in place of a claim.
type asked struct {
	bytes  int64
	secret *corev1.SecretReference
}

// look is what a look at a claim has found and done.
type look struct {
	// claim is the capacity of the claim in bytes after the look; 0 if it is not known.
	claim int64
	// expanded is the size to which the volume was expanded; 0 if it was not.
	expanded int64
	// refused is true if the driver is not to be asked again.
	refused bool
	// readOnly is true if an expansion waits, but the volume is published read-only.
	readOnly bool
	// optional is true if the pods do not wait for an expansion that has failed: the claim is done.
	optional bool
}

// checkExpansion asks for a look at the claim of a volume that was just published.
func (s *state) checkExpansion(j job) {
	u := s.uses[j.key]
	if u.want == nil || u.want.Claim == (Claim{}) {
		return
	}
	e := s.expansions[j.key.SpecName]
	if e == nil {
		e = &expansion{known: expand.Known{Recovered: j.prior != absent}}
		if s.expansions == nil {
			s.expansions = map[string]*expansion{}
		}
		s.expansions[j.key.SpecName] = e
	}
	e.reset()
	u.unchecked, e.refused = true, false
}

// unchecked lists the pods that wait for a look at the claim of a PersistentVolume.
func (s *state) unchecked(specName string) []types.UID {
	var all []types.UID
	for _, k := range s.keys() {
		if u := s.uses[k]; k.SpecName == specName && u.unchecked && u.mount == present && u.want != nil {
			all = append(all, k.Pod)
		}
	}
	return all
}

// expansions lists the looks at claims.
func expansions(s *state) []candidate {
	var all []candidate
	for _, name := range sortedKeys(s.expansions) {
		e := s.expansions[name]
		if k, ok := s.expandable(name, e.refused); ok {
			all = append(all, candidate{opExpand, k, &e.retryState})
		}
	}
	return all
}

// expandable returns the use by whose path a volume is expanded: one that can be written to, preferably one that waits for
// it. Without such a use the claim is looked at once for each use.
func (s *state) expandable(specName string, refused bool) (best Key, ok bool) {
	worth := 0
	for _, k := range s.keys() {
		u := s.uses[k]
		if k.SpecName != specName || u.want == nil || u.want.Claim == (Claim{}) || u.mount != present {
			continue
		}
		rank := 0
		switch {
		case !u.want.ReadOnly && u.unchecked:
			rank = 3
		case !u.want.ReadOnly && !refused:
			rank = 2
		case u.unchecked:
			rank = 1
		default: // published read-only, and looked at
		}
		if rank > worth {
			best, worth = k, rank
		}
	}
	return best, worth > 0
}

// settleExpansion records a look at a claim.
func settleExpansion(s *state, j job, r result, now time.Time, b backoff) {
	e := s.expansions[j.key.SpecName]
	if j.asked != nil {
		if e.settleAsked(j, r.err, now, b); r.err == nil {
			e.known = expand.Known{Bytes: r.look.claim}
		}
		return
	}
	e.refused = e.refused || r.look.refused
	again := r.err != nil && !r.look.refused
	for k, u := range s.uses {
		if k.SpecName == j.key.SpecName {
			u.unchecked = u.unchecked && again && !r.look.optional
		}
	}
	if again {
		e.fail(r.err, now, b)
		return
	}
	e.reset()
	e.err, e.retryAt = r.err, now.Add(b.untilLook())
	if r.look.claim > 0 {
		e.known = expand.Known{Bytes: r.look.claim}
	}
}

// Expand has a published PersistentVolume expanded on this node to a size in bytes, with a secret, nil for none, whatever its claim says: the caller has had the
// controller of the driver expand it. It is an error if no pod has the volume.
func (m *Manager) Expand(specName string, bytes int64, secret *corev1.SecretReference) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.actors {
		e := a.state.expansions[specName]
		if _, published := a.state.expandable(specName, false); e != nil && published {
			e.reset()
			e.asked, e.answer, e.refused = &asked{bytes, secret}, nil, false
			a.poke()
			return nil
		}
	}
	return fmt.Errorf("expand volume %q: no pod has it published for writing", specName)
}

// Expanded reports whether what was asked for by Expand has ended, with the error that it has ended with. Before that, the error is that of the last try.
func (m *Manager) Expanded(specName string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.actors {
		if e := a.state.expansions[specName]; e != nil {
			if e.asked != nil {
				return false, e.err
			}
			return true, e.answer
		}
	}
	return true, fmt.Errorf("expand volume %q: no pod has it published any more", specName)
}

// expandAsked expands a volume to what Expand has asked for.
func (m *Manager) expandAsked(ctx context.Context, j job) result {
	d, c, err := m.prepare(ctx, &j.volume, j.asked.secret, expands)
	if err != nil {
		return result{err: err}
	}
	if !expands(c.caps) {
		return result{err: status.Errorf(codes.Unimplemented, "CSI driver %q does not have the node capability EXPAND_VOLUME", j.volume.Driver)}
	}
	c.target = m.target(j.key)
	_, err = d.Node().NodeExpandVolume(ctx, expandRequest(&j.volume, j.asked.bytes, c))
	if err != nil {
		return result{err: fmt.Errorf("expand volume %q to %d bytes: %w", j.volume.Handle, j.asked.bytes, err)}
	}
	return result{look: look{claim: j.asked.bytes, expanded: j.asked.bytes}}
}

// settleAsked records the end of a try of what Expand has asked for.
func (e *expansion) settleAsked(j job, err error, now time.Time, b backoff) {
	switch {
	case e.asked != j.asked: // another size by now
		e.reset()
	case err != nil && (errors.Is(err, ErrTransient) || expand.Classify(err) == expand.Uncertain):
		e.fail(err, now, b)
	default:
		e.reset()
		e.asked, e.answer, e.retryAt = nil, err, now.Add(b.untilLook())
	}
}

// expansionReports lists the events that a look at a claim causes.
func (s *state) expansionReports(node string, j job, r result) []report {
	all := []report{}
	add := func(reason, message string) {
		all = append(all, report{pod: j.want.Pod, claim: j.want.Claim, reason: reason, message: message})
	}
	if r.look.expanded > 0 {
		size := resource.NewQuantity(r.look.expanded, resource.BinarySI)
		add(ReasonExpanded, fmt.Sprintf("%s succeeded for volume %q %s : expanded to %s", expansionName(j.key), j.key.SpecName, node, size))
	}
	if r.look.readOnly {
		add(ReasonExpandReadOnly, failed(expansionName(j.key), j.key, errors.New("the pod mounts it read-only")))
	}
	e := s.expansions[j.key.SpecName]
	if r.err != nil && (!errors.Is(r.err, ErrTransient) || e.failures >= quietFailures) {
		add(ReasonExpandFailed, failed(expansionName(j.key), j.key, r.err))
	}
	return all
}

// look reads the claim of a published volume and does the expansion that waits for this node.
func (m *Manager) look(ctx context.Context, j job) result {
	if j.asked != nil {
		return m.expandAsked(ctx, j)
	}
	ref := j.want.Claim
	claim, err := m.cfg.Claims.Claim(ctx, ref.Namespace, ref.Name, ref.UID, !j.awaited)
	if err != nil {
		if !j.awaited {
			klog.FromContext(ctx).V(4).Info("Looking at the claim later", logging.KeyReason, err.Error())
			return result{}
		}
		return transient(err)
	}
	if claim == nil {
		return result{}
	}
	done := result{look: look{claim: claim.Status.Capacity.Storage().Value()}}
	if !expand.Pending(claim, j.want.Capacity, j.known) {
		return done
	}
	pv, err := m.cfg.Claims.Volume(ctx, claim)
	if err != nil {
		return transient(err)
	}
	if pv == nil || pv.Name != j.key.SpecName || pv.Spec.CSI == nil {
		return done
	}
	p := expand.Decide(claim, pv, j.known)
	switch {
	case p.Mode == expand.None:
		return done
	case j.want.ReadOnly:
		done.look.readOnly = true
		return done
	default:
		r := m.expand(ctx, j, claim, pv, p)
		r.look.optional = p.Mode == expand.Elsewhere
		return r
	}
}

// transient is the result of a request to the API server that has failed.
func transient(err error) result { return result{err: fmt.Errorf("%w: %w", ErrTransient, err)} }

// expand expands a volume. Nothing is written before the driver can be called.
func (m *Manager) expand(ctx context.Context, j job, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, p expand.Plan) result {
	d, c, err := m.prepare(ctx, &j.volume, pv.Spec.CSI.NodeExpandSecretRef, expands)
	if err != nil {
		return result{err: err}
	}
	if !expands(c.caps) {
		if p.Mode != expand.Recovery {
			return result{look: look{claim: claim.Status.Capacity.Storage().Value(), refused: true}}
		}
		return m.stopped(ctx, j, claim, p, status.Errorf(codes.Unimplemented, "CSI driver %q does not have the node capability EXPAND_VOLUME", j.volume.Driver))
	}
	if p.Mode == expand.Recovery {
		patch, err := expand.Started(claim)
		if claim, err = m.write(ctx, fault.BeforeExpandStart, fault.AfterExpandStart, claim, patch, err); err != nil {
			return transient(err)
		}
	}
	c.target = m.target(j.key)
	err = m.between(fault.BeforeExpand, fault.AfterExpand, func() error {
		_, err := d.Node().NodeExpandVolume(ctx, expandRequest(&j.volume, p.Size.Value(), c))
		return err
	})
	if err != nil {
		return m.stopped(ctx, j, claim, p, err)
	}
	r := result{look: look{claim: p.Size.Value(), expanded: p.Size.Value()}}
	if p.Mode != expand.Elsewhere {
		patch, err := expand.Finished(claim, p.Size)
		if _, err = m.write(ctx, fault.BeforeExpandFinish, fault.AfterExpandFinish, claim, patch, err); err != nil {
			r.err = transient(err).err
		}
	}
	return r
}

// stopped reports an expansion that has failed in the status of the claim, if that is how this claim is expanded. What cannot
// be written now is written when the expansion has failed again.
func (m *Manager) stopped(ctx context.Context, j job, claim *corev1.PersistentVolumeClaim, p expand.Plan, err error) result {
	answer := expand.Classify(err)
	r := result{err: fmt.Errorf("expand volume %q to %s: %w", j.volume.Handle, p.Size.String(), err)}
	r.look.refused = answer == expand.InUse || answer == expand.Infeasible && p.Mode == expand.Elsewhere
	if p.Mode != expand.Recovery || answer == expand.Uncertain {
		return r
	}
	infeasible := answer == expand.Infeasible || expand.GivenUp(claim, p.Size)
	message := fmt.Sprintf("failed to expand pvc with %s: %s", outcome.Code(err), outcome.Message(err))
	patch, patchErr := expand.Stopped(claim, infeasible, message, m.cfg.Clock.Now())
	if patchErr == nil {
		_, patchErr = m.cfg.Claims.Write(ctx, claim, patch)
	}
	if patchErr != nil {
		klog.FromContext(ctx).V(2).Info("Reporting a failed expansion later", logging.KeyReason, patchErr.Error())
	}
	return r
}

// write applies a patch, if there is one, between two fault points.
func (m *Manager) write(ctx context.Context, before, after fault.Point, claim *corev1.PersistentVolumeClaim, patch []byte, err error) (*corev1.PersistentVolumeClaim, error) {
	if err != nil {
		return nil, err
	}
	err = m.between(before, after, func() error {
		claim, err = m.cfg.Claims.Write(ctx, claim, patch)
		return err
	})
	return claim, err
}

// expands reports whether the driver expands volumes on nodes.
func expands(caps capabilities) bool { return caps[csi.NodeServiceCapability_RPC_EXPAND_VOLUME] }
