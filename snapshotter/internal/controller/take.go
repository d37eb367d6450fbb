package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
)

// yes is the value of annotations.
const yes = "yes"

// errUnprotected is a content that has lost its finalizer since it was read.
var errUnprotected = errors.New("its finalizer was removed")

// createRequest is what a snapshot is taken of, and how.
type createRequest struct {
	name       string
	volumes    []string
	parameters map[string]string
	secrets    map[string]string
	// place is from where the snapshot must be accessible, nil where the driver may choose.
	place *csi.TopologyRequirement
}

// keepMark restores the annotation of an attempt that may be in progress: a snapshot-controller of the external-snapshotter may have
// replaced all annotations by those that it knew.
func (l *loop) keepMark(ctx context.Context, r record, last attempt) error {
	if last.outcome != outcomeUncertain || last.step != doCreate || r.has(l.beingCreated) {
		return nil
	}
	_, err := l.mark(ctx, r)
	return kube.IgnoreGone(err)
}

// mark makes sure, at the API server, that the content exists, has its finalizer, and says that its snapshot is being taken.
func (l *loop) mark(ctx context.Context, r record) (record, error) {
	patch := creatingPatch(l.names, r, yes)
	if !r.protected(l.finalizer) {
		setFinalizers(patch, r, append(slices.Clone(r.finalizers), l.finalizer))
	}
	marked, err := l.send(ctx, r, patch)
	if err == nil && !marked.protected(l.finalizer) {
		err = apierrors.NewConflict(schema.GroupResource{Resource: l.kind}, r.name, errUnprotected)
	}
	return marked, err
}

// take takes the snapshot, or finds it, and records it.
func (l *loop) take(ctx context.Context, r record) error {
	request, err := l.createRequest(ctx, r)
	if err != nil {
		return err
	}
	last := l.memory.of(r.name, r.uid).of(doCreate, r)
	open := mayExist(l.names, r, last)
	if !open {
		last.outcome = outcomeSettled
		l.memory.put(r.name, last)
	}
	marked, err := l.mark(ctx, r)
	if err != nil {
		return err
	}
	if marked.deleting != r.deleting || marked.status.handle != "" {
		return nil // there is another decision to make
	}
	last = last.begin(open)
	l.memory.put(r.name, last)
	klog.FromContext(ctx).V(2).Info("Taking "+l.what, "name", request.name, "volumes", request.volumes)
	s, err := l.call(ctx, request)
	if err != nil {
		l.memory.put(r.name, last.end(open, err, time.Now(), l.cfg.Timeout))
		return err
	}
	klog.FromContext(ctx).V(2).Info("Took "+l.what, logging.KeySnapshotID, s.handle, logging.KeyReady, s.ready)
	incomplete := l.incomplete(r, s)
	if incomplete != nil { // the handle is recorded all the same, so that it can be deleted
		s = r.whole(s)
	}
	if err := l.record(ctx, marked, s); err != nil {
		if errors.Is(err, kube.ErrGone) {
			klog.FromContext(ctx).Error(err, "A "+l.what+" was taken, but its content was deleted by force meanwhile; delete it at the storage system", logging.KeySnapshotID, s.handle)
		}
		return err
	}
	last = attempt{uid: r.uid, outcome: outcomeSettled}
	l.polled(r, last, s)
	return incomplete
}

// createRequest returns what the driver needs to take the snapshot.
func (l *loop) createRequest(ctx context.Context, r record) (createRequest, error) {
	if err := l.check(); err != nil {
		return createRequest{}, err
	}
	name := l.naming.name(r.ref.UID)
	if r.ref.UID == "" {
		return createRequest{}, fmt.Errorf("%s %q refers to no UID, of which the name of the %s is made; delete it and create a new one", l.kind, r.name, l.what)
	}
	for _, other := range l.named(name) {
		if other.name != r.name && other.claims(l.names, r) {
			return createRequest{}, fmt.Errorf("the name %q is that of the %s of %s %q: two contents must not share a %s; delete one of the two, "+
				"or let names have more characters of the UID (see the flags of csi-snapshotter)", name, l.what, l.kind, other.name, l.what)
		}
	}
	c, found := l.class(r.class)
	switch {
	case r.class == "":
		return createRequest{}, fmt.Errorf("%s %q names no %s; delete it and create a new one", l.kind, r.name, l.classKind)
	case !found:
		return createRequest{}, fmt.Errorf("%s %q does not exist; create it, the %s is taken then", l.classKind, r.class, l.what)
	case c.driver != l.cfg.Driver:
		return createRequest{}, fmt.Errorf("%s %q is of driver %q, the content of driver %q", l.classKind, r.class, c.driver, l.cfg.Driver)
	}
	parameters, err := driverParameters(l.names, r, c, l.cfg.ExtraMetadata)
	if err != nil {
		return createRequest{}, err
	}
	place, err := requirement(c, l.cfg.Features(), l.cfg.Driver)
	if err != nil {
		return createRequest{}, fmt.Errorf("%s %q: %w", l.classKind, r.class, err)
	}
	ref, err := writeSecret(l.names, r)
	if err != nil {
		return createRequest{}, err
	}
	secrets, err := l.secret(ctx, ref)
	return createRequest{name: name, volumes: r.volumes, parameters: parameters, secrets: secrets, place: place}, err
}

// claims reports whether the content has a better right to the name of its snapshot than other.
func (r record) claims(n names, other record) bool {
	mine, others := r.status.handle != "" || r.has(n.beingCreated), other.status.handle != "" || other.has(n.beingCreated)
	if mine == others {
		return r.name < other.name
	}
	return mine
}

// call calls the driver to take the snapshot.
func (l *loop) call(ctx context.Context, request createRequest) (snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	s, err := l.create(ctx, request)
	if err == nil && s.handle == "" {
		err = fmt.Errorf("the driver has answered without the handle of the %s, which is a defect of the driver", l.what)
	}
	return s, err
}
