package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/outcome"
	"github.com/longshore-csi/longshore/kubeletplugin/fault"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/expand"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// askTimeout is the deadline for reading a driver's capabilities.
const askTimeout = 10 * time.Second

// job is what a step needs to know, copied from the state so that it is done without the lock.
type job struct {
	step
	volume     Volume
	prior      presence
	want       *Publication // the use to publish; for opStage any use, for its group
	attachment *Attachment
	// stagedFor is the UID of the attachment for which the volume is staged; empty if that is not known.
	stagedFor types.UID
	// stagedAs is the form in which the volume is staged.
	stagedAs form
	// attachChanges is the count of the device when the step began.
	attachChanges int
	// explain asks opVerify for the reason why the volume is not attached.
	explain bool
	// refused is why the path of the step belongs to another volume; nil if it does not.
	refused error
	// known is what opExpand starts from, and awaited is true if pods wait for it.
	known   expand.Known
	awaited bool
	asked   *asked
}

// perform does one step. It changes the world but not the state.
func (m *Manager) perform(ctx context.Context, j job) result {
	if j.refused != nil {
		return result{err: j.refused}
	}
	if j.op == opChangeGroup { // which takes as long as the volume has files
		return m.changeGroup(ctx, j)
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timeout)
	defer cancel()
	switch j.op {
	case opRaise:
		return m.raise(ctx, j)
	case opVerify:
		return m.verify(ctx, j)
	case opStage:
		return m.stage(ctx, j)
	case opPublish:
		return m.publish(ctx, j)
	case opUnpublish:
		return m.unpublish(ctx, j)
	case opUnstage:
		return m.unstage(ctx, j)
	case opRelease:
		return m.release(j)
	case opExpand:
		return m.look(ctx, j)
	case opRepublish:
		return m.republishVolume(ctx, j)
	default:
		return result{err: fmt.Errorf("unknown step %q", j.op)}
	}
}

func (m *Manager) raise(ctx context.Context, j job) result {
	if err := m.cfg.Fault.At(fault.BeforeRaise); err != nil {
		return result{err: err}
	}
	if err := m.cfg.InUse.Raise(ctx, j.volume.Name); err != nil {
		return result{err: fmt.Errorf("report volume %q in use: %w", j.volume.Name, err)}
	}
	return result{err: m.cfg.Fault.At(fault.AfterRaise)}
}

func (m *Manager) verify(ctx context.Context, j job) result {
	name := layout.Attachment(j.volume.Handle, j.volume.Driver, m.cfg.Node)
	if !m.cfg.Attachments.Attached(j.volume.Name) {
		err := fmt.Errorf("%w: %q is not in volumesAttached of the Node", ErrNotAttached, j.volume.Name)
		if j.explain {
			err = fmt.Errorf("%w: %w", err, m.attachProblem(ctx, name))
		}
		return result{err: err}
	}
	a, err := m.cfg.Attachments.Attachment(ctx, name)
	if err != nil {
		return result{err: fmt.Errorf("%w: %w", ErrTransient, err)}
	}
	return result{attachment: a}
}

// attachProblem says what the VolumeAttachment shows about a volume that is not in volumesAttached.
func (m *Manager) attachProblem(ctx context.Context, name string) error {
	if _, err := m.cfg.Attachments.Attachment(ctx, name); err != nil {
		return err
	}
	return fmt.Errorf("volume attachment %q is attached, but kube-controller-manager has not reported it yet", name)
}

// release takes the volume out of volumesInUse, unless pods want it and it could then be detached under them.
func (m *Manager) release(j job) result {
	if j.want != nil && m.cfg.Attachments.Attached(j.volume.Name) {
		return result{attached: true}
	}
	if err := m.cfg.Fault.At(fault.BeforeInUseDrop); err != nil {
		return result{err: err}
	}
	m.cfg.InUse.Drop(j.volume.Name)
	return result{err: m.cfg.Fault.At(fault.AfterInUseDrop)}
}

// prepare does all of a call that has no effect: it finds the driver, reads its capabilities, and reads the secret if
// the call is made.
func (m *Manager) prepare(ctx context.Context, v *Volume, secret *corev1.SecretReference, made func(capabilities) bool) (Driver, call, error) {
	d, err := m.cfg.Drivers.Driver(v.Driver)
	if err != nil {
		return nil, call{}, err
	}
	c := call{staging: m.staging(v)}
	if c.caps, err = m.ask(ctx, d); err != nil {
		return nil, call{}, err
	}
	if !made(c.caps) {
		return d, c, nil
	}
	if c.secrets, err = m.cfg.Secrets.Secret(ctx, secret); err != nil {
		return nil, call{}, err
	}
	return d, c, nil
}

// ask reads a driver's capabilities. Nothing is at stake in it, so a driver that is frozen is given
// up soon and asked again, rather than holding the actor for as long as a mount may take.
func (m *Manager) ask(ctx context.Context, d Driver) (capabilities, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return d.NodeCapabilities(ctx)
}

func (m *Manager) stage(ctx context.Context, j job) result {
	v := &j.volume
	d, c, err := m.prepare(ctx, v, v.StageSecret, func(caps capabilities) bool { return stages(v, caps) })
	if err != nil {
		return result{err: err}
	}
	c.attachment = j.attachment
	if err := m.prepareStaging(v, j.attachment); err != nil {
		return result{err: err, sent: true}
	}
	if !stages(v, c.caps) {
		return result{sent: true}
	}
	var group *int64
	if j.want != nil {
		group = j.want.FSGroup
	}
	err = m.between(fault.BeforeStage, fault.AfterStage, func() error {
		_, err := d.Node().NodeStageVolume(ctx, stageRequest(v, group, c))
		return err
	})
	if err == nil {
		return result{sent: true}
	}
	r := result{err: err, sent: true}
	if j.prior == absent && leavesNothing(err) {
		r.cleaned, r.err = cleaned(err, m.cleanStaging(v))
	}
	return r
}

// preparePublish does all of NodePublishVolume that has no effect.
func (m *Manager) preparePublish(ctx context.Context, j job) (Driver, call, error) {
	p := j.want
	d, c, err := m.prepare(ctx, &p.Volume, p.PublishSecret, func(capabilities) bool { return true })
	if err != nil {
		return nil, call{}, err
	}
	if c.tokens, err = m.cfg.Tokens.Encoded(ctx, p.Pod, p.Tokens); err != nil {
		return nil, call{}, err
	}
	c.attachment = j.attachment
	c.target = m.target(j.key)
	return d, c, nil
}

func (m *Manager) publish(ctx context.Context, j job) result {
	p := j.want
	d, c, err := m.preparePublish(ctx, j)
	if err != nil {
		return result{err: err}
	}
	if err := m.prepareTarget(p); err != nil {
		return result{err: err, sent: true}
	}
	err = m.between(fault.BeforePublish, fault.AfterPublish, func() error {
		_, err := d.Node().NodePublishVolume(ctx, publishRequest(p, c, d.RequiresPublishPod()))
		return err
	})
	r := result{err: err, sent: true, groupDelegated: mountsWithGroup(c.caps)}
	if err != nil && j.prior == absent && leavesNothing(err) {
		r.cleaned, r.err = cleaned(err, m.cleanTarget(j.key))
	}
	return r
}

func (m *Manager) unpublish(ctx context.Context, j job) result {
	d, err := m.cfg.Drivers.Last(j.volume.Driver)
	if err != nil {
		return result{err: err}
	}
	if err := m.releaseTarget(j.key); err != nil {
		return result{err: err, sent: true}
	}
	err = m.between(fault.BeforeUnpublish, fault.AfterUnpublish, func() error {
		_, err := d.Node().NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{
			VolumeId:   j.volume.Handle,
			TargetPath: m.target(j.key),
		})
		return err
	})
	// An inline volume is deleted by being unpublished, so the second of two calls may find
	// nothing; if the path is not mounted any more, that is what was wanted.
	isGone := j.volume.Ephemeral && outcome.Code(err) == codes.NotFound
	if err != nil && !isGone {
		return result{err: err, sent: true}
	}
	return result{err: m.cleanTarget(j.key), sent: true}
}

func (m *Manager) unstage(ctx context.Context, j job) result {
	v := &j.volume
	v.Device = j.stagedAs.device
	d, err := m.cfg.Drivers.Last(v.Driver)
	if err != nil {
		return result{err: err}
	}
	caps, err := m.ask(ctx, d)
	if err != nil {
		return result{err: err}
	}
	if stages(v, caps) {
		err = m.between(fault.BeforeUnstage, fault.AfterUnstage, func() error {
			_, err := d.Node().NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{
				VolumeId:          v.Handle,
				StagingTargetPath: m.staging(v),
			})
			return err
		})
		if err != nil {
			return result{err: err, sent: true}
		}
	}
	return result{err: m.cleanStaging(v), sent: true}
}

// between makes a call between two fault points. A stop after the call hides its result.
func (m *Manager) between(before, after fault.Point, call func() error) error {
	if err := m.cfg.Fault.At(before); err != nil {
		return err
	}
	err := call()
	if stop := m.cfg.Fault.At(after); stop != nil {
		return stop
	}
	return err
}

// cleaned joins the error of a call with that of cleaning up after it.
func cleaned(callErr, cleanErr error) (bool, error) {
	if cleanErr == nil {
		return true, callErr
	}
	return false, errors.Join(callErr, cleanErr)
}
