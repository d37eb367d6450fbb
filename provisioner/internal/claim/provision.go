package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
	"github.com/longshore-csi/longshore/provisioner/internal/backend"
	"github.com/longshore-csi/longshore/provisioner/internal/journal"
	"github.com/longshore-csi/longshore/provisioner/internal/source"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// Reasons of events, which users and tools filter by.
const (
	reasonProvisioning = "Provisioning"
	reasonSucceeded    = "ProvisioningSucceeded"
	reasonFailed       = "ProvisioningFailed"
	reasonNoNode       = "TopologyOfNoNode"
	reasonSettled      = "VolumeSettled"
	reasonLeft         = "VolumeLeft"
)

// reconcileClaim looks at one claim and does what is to be done.
func (c *Controller) reconcileClaim(ctx context.Context, key claimKey) (reconcile.Result, error) {
	logger := klog.FromContext(ctx).WithValues(logging.KeyClaim, klog.KRef(key.Namespace, key.Name))
	ctx = klog.NewContext(ctx, logger)
	defer c.tidyKey(key)
	state := c.claimState(ctx, key)
	c.dropSourceOf(ctx, state)
	plan := planClaim(state)
	logger.V(4).Info("Decided about claim", logging.KeyReason, plan.why)
	switch plan.verb {
	case claimRefuse:
		c.refuse(state.claim, plan.why)
	case claimPopulator:
		c.cfg.Events.Normal(state.claim, reasonProvisioning, plan.why)
	case claimCreate:
		return c.create(ctx, state)
	case claimResume:
		return c.resume(ctx, *state.intent)
	case claimStrip:
		return reconcile.Result{}, c.strip(ctx, state.claim)
	case claimCompete:
		return c.compete(ctx, state)
	case claimLeave:
	}
	return reconcile.Result{}, nil
}

// claimState collects what the decision about a claim depends on.
func (c *Controller) claimState(ctx context.Context, key claimKey) claimState {
	if intent, ok := c.cfg.Journal.Get(key.UID); ok {
		return claimState{intent: &intent}
	}
	claim, _ := c.claim(key)
	return c.stateOf(ctx, claim)
}

// stateOf is claimState for a claim without an intent; nil: it does not exist.
func (c *Controller) stateOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) claimState {
	s := claimState{driver: c.driver, caps: c.caps(), node: c.node(), competes: c.cfg.Competition != nil, claim: claim}
	if claim == nil {
		return s
	}
	if class, ok := c.view.Class(view.ClassName(claim)); ok {
		s.class, s.classErr = c.cfg.Plugin.Class(klog.FromContext(ctx), class)
		if s.class != class {
			s.inTree = class.Provisioner
		}
		s.excluded = c.excluded(s)
	}
	// A claim that is newer has the marks of a user, who could fill the journal with requests in doubt.
	s.former = isMarked(claim) && !c.claimRecords.Get(claim.UID).former && !claim.CreationTimestamp.After(c.began)
	if pv, ok := c.view.Volumes.Get("", c.cfg.Settings.Naming.Name(claim.UID)); ok {
		s.pv = pv
	}
	return s
}

// create asks for the volume of a claim for the first time.
func (c *Controller) create(ctx context.Context, s claimState) (reconcile.Result, error) {
	if current, err := c.verify(ctx, s.claim); err != nil || !current {
		return reconcile.Result{}, err
	}
	intent, err := c.prepare(ctx, s)
	if err != nil {
		return c.unprepared(ctx, s.claim, err)
	}
	if s.former {
		intent.Uncertain, intent.Settles = intent.Opened, intent.Opened.Add(c.settlePeriod())
	}
	if err := c.cfg.Journal.Open(ctx, intent); err != nil {
		return reconcile.Result{}, c.failed(s.claim, err)
	}
	if s.former { // the record is in the journal from now on
		if err := c.strip(ctx, s.claim); err != nil {
			return reconcile.Result{}, err
		}
	}
	c.cfg.Events.Normal(s.claim, reasonProvisioning, fmt.Sprintf("Asking CSI driver %q for a volume", c.driver))
	return c.attempt(ctx, intent)
}

// prepare makes the request for the volume of a claim, and reads the secrets that the call takes.
func (c *Controller) prepare(ctx context.Context, s claimState) (journal.Intent, error) {
	if err := c.sources.Allowed(ctx, s.claim); err != nil {
		return journal.Intent{}, err
	}
	spec, err := c.spec(ctx, s)
	if err != nil {
		return journal.Intent{}, err
	}
	secrets, err := c.secrets(ctx, spec.Secrets.Provision)
	if err != nil {
		return journal.Intent{}, err
	}
	// The source comes last, for it is protected from then on. It may restrict where the volume can be.
	spec.Source, err = c.sources.Keep(ctx, s.claim, c.hasSource(s.claim), func(ref volume.SourceRef, accessible []topology.Segment) (err error) {
		if len(accessible) > 0 {
			spec.Topology, err = c.requirement(s, accessible...)
		}
		if err == nil {
			c.claimRecords.Change(s.claim.UID, func(r *claimRecord) { r.source = ref })
		}
		return err
	})
	if err != nil {
		return journal.Intent{}, err
	}
	request, err := spec.Request()
	if err != nil {
		return journal.Intent{}, volume.BlockedError{Err: err}
	}
	return journal.Intent{Stage: journal.Creating, Spec: spec, Request: request, Opened: time.Now(), Secrets: secrets}, nil
}

// unprepared handles a claim for which no request could be made; nothing was asked of the driver.
func (c *Controller) unprepared(ctx context.Context, claim *corev1.PersistentVolumeClaim, err error) (reconcile.Result, error) {
	var blocked volume.BlockedError
	var elsewhere source.ElsewhereError
	switch {
	case errors.As(err, &blocked):
		c.refuse(claim, backend.Describe(err))
		return reconcile.Result{}, nil
	case errors.As(err, &elsewhere) && c.mayGive(ctx, claim, elsewhere.Holder):
		c.refuse(claim, backend.Describe(err)+": the claim is given to that node")
		return c.give(ctx, claim, elsewhere.Holder)
	case errors.As(err, &elsewhere), errors.Is(err, topology.ErrNodeNotFound) && view.SelectedNode(claim) != "":
		c.refuse(claim, backend.Describe(err))
		return c.reschedule(ctx, claim)
	case errors.Is(err, topology.ErrNotRegistered) && view.SelectedNode(claim) != "":
		return c.awaitRegistration(ctx, claim, err)
	}
	return reconcile.Result{}, c.failed(claim, err)
}

// claimDeleted is the reason why most unwanted volumes are.
const claimDeleted = "claim was deleted"

// wanted reports whether the claim of an intent still wants the volume.
func (c *Controller) wanted(intent journal.Intent) bool {
	return c.whyUnwanted(intent) == ""
}

// whyUnwanted returns why the claim of an intent does not want the volume any more, empty when it does.
func (c *Controller) whyUnwanted(intent journal.Intent) string {
	claim, _ := c.claim(keyOf(intent.Spec.Claim))
	return c.whyUnwantedBy(claim, intent.Spec.Name)
}

// whyUnwantedBy returns why a claim does not want the volume of a name, empty when it does; nil: there is no claim.
func (c *Controller) whyUnwantedBy(claim *corev1.PersistentVolumeClaim, name string) string {
	if claim == nil || !wants(claim, name) {
		return claimDeleted
	}
	if node := c.node().AssignedElsewhere(claim); node != "" {
		return fmt.Sprintf("claim is for node %q now", node)
	}
	if pv, ok := c.view.Volumes.Get("", name); ok && isFor(pv, claim.UID) && madeElsewhere(pv, c.node()) {
		return "claim has a volume on another node"
	}
	return ""
}

// verify reads a claim from the server if the cache may be behind what was done for it: when it was
// there before this process began to work, or when a volume of its was deleted. All other claims cost no
// read. The result is false when the claim needs no volume.
func (c *Controller) verify(ctx context.Context, cached *corev1.PersistentVolumeClaim) (bool, error) {
	if !c.claimRecords.Get(cached.UID).unverified {
		return true, nil
	}
	live, err := c.liveClaim(ctx, cached)
	switch {
	case err != nil:
		return false, err
	case live == nil || leaving(live) && !isMarked(live) || live.Spec.VolumeName != "" || !c.node().Mine(live):
		return false, nil
	}
	c.claimRecords.Change(cached.UID, func(r *claimRecord) { r.unverified = false })
	return true, nil
}

// secrets reads the secret that ref names, if any.
func (c *Controller) secrets(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Settings.KubeTimeout)
	defer cancel()
	return c.cfg.Secrets.Data(ctx, ref)
}

// close ends an intent whose outcome is known.
func (c *Controller) close(intent journal.Intent) {
	c.cfg.Journal.Close(intent.UID())
	if source := intent.Spec.Source; source != nil {
		c.sources.Free(source.Ref)
	}
	if claim, ok := c.claim(keyOf(intent.Spec.Claim)); ok && isMarked(claim) {
		c.claimRecords.Change(claim.UID, func(r *claimRecord) { r.former = true })
		c.claims.Wake(keyOf(claim))
	}
}

// refuse reports by an event why a claim gets no volume as it stands.
func (c *Controller) refuse(claim *corev1.PersistentVolumeClaim, why string) {
	c.cfg.Metrics.provisionFailed(claim)
	c.cfg.Events.Warning(claim, reasonFailed, why)
}

// failed reports by an event an attempt that failed, and returns the error for the queue to retry.
func (c *Controller) failed(claim *corev1.PersistentVolumeClaim, err error) error {
	c.cfg.Metrics.provisionFailed(claim)
	c.cfg.Events.Warning(claim, reasonFailed, backend.Describe(err))
	return err
}
