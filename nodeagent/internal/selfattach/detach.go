package selfattach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/kubeletplugin"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

const (
	// maxDoublings is how often the interval of polls is doubled while nothing happens.
	maxDoublings = 4
	// maxDetaches is the maximum number of deletions at a time.
	maxDetaches = 16
)

// Run detaches volumes, and wakes those that wait for their attachments, until ctx is done.
func (a *Attacher) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if _, err := a.cfg.Client.List(ctx, metav1.ListOptions{Limit: 1}); err == nil {
		g.Go(func() error { return a.informer().Run(ctx) })
	} else if ctx.Err() == nil {
		klog.FromContext(ctx).Info("VolumeAttachments cannot be watched, reading them from time to time", logging.KeyReason, err.Error())
	}
	g.Go(func() error { return a.loop(ctx) })
	return g.Wait()
}

// informer watches the attachments of all nodes, which the API server cannot tell apart, and keeps nothing of them.
func (a *Attacher) informer() *kube.Informer[*storagev1.VolumeAttachment] {
	i := kube.NewInformer(a.cfg.Client, kube.InformerOptions[*storagev1.VolumeAttachment]{
		Name: "VolumeAttachment", Transform: func(va *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
			return &storagev1.VolumeAttachment{
				TypeMeta: va.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: va.Name, UID: va.UID, ResourceVersion: va.ResourceVersion},
				Spec: storagev1.VolumeAttachmentSpec{NodeName: va.Spec.NodeName},
			}
		},
	})
	i.OnChange(func(before, after *storagev1.VolumeAttachment) {
		if after == nil {
			after = before
		}
		if after.Spec.NodeName == a.cfg.Node {
			a.changed(after.Name)
		}
	})
	return i
}

// changed wakes whatever waits for an attachment.
func (a *Attacher) changed(name string) {
	a.mu.Lock()
	var waiting []string
	for _, e := range a.entries {
		switch {
		case e.name != name:
		case e.leaving:
			a.poke()
		case e.waiting:
			waiting = append(waiting, e.volume)
		}
	}
	a.mu.Unlock()
	a.cfg.Changed(waiting...)
}

// loop detaches volumes when something happens, and at growing intervals, at which it also wakes the volumes that wait for their attachments.
func (a *Attacher) loop(ctx context.Context) error {
	quiet := 0
	for ctx.Err() == nil {
		waiting, leaving := a.pending()
		if quiet > 0 {
			a.cfg.Changed(waiting...)
		}
		g := errgroup.Group{}
		g.SetLimit(maxDetaches)
		for _, e := range leaving {
			g.Go(func() error { return a.detach(ctx, e) })
		}
		if err := g.Wait(); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "A volume cannot be detached, retrying")
		}
		quiet = a.sleep(ctx, len(waiting)+len(leaving) > 0, quiet)
	}
	return nil
}

// sleep waits until something happens, or for a time that grows with the number of polls before if there is something to poll for. It returns the number
// of polls in a row.
func (a *Attacher) sleep(ctx context.Context, polls bool, quiet int) int {
	var poll <-chan time.Time
	if polls {
		timer := time.NewTimer(a.cfg.Poll << min(quiet, maxDoublings))
		defer timer.Stop()
		poll = timer.C
	}
	select {
	case <-ctx.Done():
	case <-a.wake:
		return 0
	case <-poll:
	}
	return quiet + 1
}

// pending returns the volumes that wait for their attachments, and those that are to be detached.
func (a *Attacher) pending() (waiting []string, leaving []*entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.entries {
		switch {
		case e.leaving:
			leaving = append(leaving, e)
		case e.waiting:
			waiting = append(waiting, e.volume)
		}
	}
	return waiting, leaving
}

// detach does one step towards the end of an attachment: it deletes it, or finds that it is gone.
func (a *Attacher) detach(ctx context.Context, e *entry) error {
	e.calls.Lock()
	defer e.calls.Unlock()
	if !a.isLeaving(e) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	name := a.Name(a.key(e))
	va, err := a.cfg.Client.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return a.forget(e, name)
	case err != nil:
		return fmt.Errorf("get volume attachment %q: %w", name, err)
	case va.DeletionTimestamp != nil:
		report(ctx, e, va)
		return nil
	}
	if err := a.save(e, name, ""); err != nil {
		return err
	}
	if e.record.Deleting != va.UID {
		e.record.Deleting = va.UID
		if err := e.record.Write(a.cfg.Dir); err != nil {
			return fmt.Errorf("record the end of volume attachment %q: %w", name, err)
		}
	}
	if err := a.remove(ctx, name, va); err != nil {
		return err
	}
	a.poke() // it may be gone at once
	return nil
}

// report logs why an attachment does not end, once.
func report(ctx context.Context, e *entry, va *storagev1.VolumeAttachment) {
	problem := ""
	if va.Status.DetachError != nil {
		problem = va.Status.DetachError.Message
	}
	if problem != "" && problem != e.problem {
		klog.FromContext(ctx).Error(errors.New(problem), "Volume is not detached", logging.KeyAttachment, va.Name)
	}
	e.problem = problem
}

// forget drops an attachment that is gone, and lets the volume leave volumesInUse, unless it is wanted again.
func (a *Attacher) forget(e *entry, name string) error {
	if e.recorded {
		if err := kubeletplugin.RemoveAttachmentRecord(a.cfg.Dir, name); err != nil {
			return err
		}
		e.record, e.recorded = kubeletplugin.AttachmentRecord{}, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	e.name = ""
	if !e.leaving {
		return nil
	}
	delete(a.entries, a.key(e))
	a.cfg.InUse.Drop(e.volume)
	return nil
}

// key is the name that the attach/detach controller would give to the attachment.
func (a *Attacher) key(e *entry) string {
	driver, handle, _ := layout.SplitUnique(e.volume) // it was split before
	return layout.Attachment(handle, driver, a.cfg.Node)
}

func (a *Attacher) isLeaving(e *entry) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return e.leaving
}

// State lists the attachments for a debug page, by their names: the volumes that are to be detached are leaving.
func (a *Attacher) State() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string]string{}
	for key, e := range a.entries {
		if e.name != "" {
			key = e.name
		}
		switch {
		case e.leaving:
			all[key] = "leaving"
		case e.waiting:
			all[key] = "waiting"
		default:
			all[key] = "kept"
		}
	}
	return all
}
