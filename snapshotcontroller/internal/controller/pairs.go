package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// maxSteps bounds the writes for a key in a row, those for members apart. A snapshot needs at most five until it waits for csi-snapshotter.
const maxSteps = 12

// pairs brings snapshots, or group snapshots, and their contents together, and takes them apart.
type pairs struct {
	*Controller
	*kind
	objects

	queue    *reconcile.Controller[string] // of owners and the contents that refer to them; since open
	gone     sync.Map                      // names of contents whose deletion the watch has brought, while their owners exist
	created  sync.Map                      // UIDs of contents that this instance has created and that have no status yet, with the time
	vanished vanished
	// complete adds to a view what this kind alone has.
	complete func(v *view)
	// sourcesOf returns the claims that an owner asks for a snapshot of.
	sourcesOf func(o *owner) ([]source, error)
}

// reconcile makes the writes that an owner, and the contents that refer to its name, need.
func (p *pairs) reconcile(ctx context.Context, key string) (reconcile.Result, error) {
	namespace, name, _ := strings.Cut(key, "/")
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues(strings.ToLower(p.group+"snapshot"), key))
	pause, err := p.reconcileOwner(ctx, namespace, name)
	o := p.findOwner(namespace, name)
	contents := p.contentsOf(key)
	p.cfg.Report.note(p, key, o, contents)
	if err != nil {
		return reconcile.Result{}, kube.IgnoreGone(err)
	}
	for _, c := range contents {
		if o == nil || !refersTo(c.ref, o) {
			if err := p.reconcileOrphan(ctx, c, o != nil); err != nil {
				return reconcile.Result{}, kube.IgnoreGone(err)
			}
		}
	}
	return reconcile.Result{After: cmp.Or(pause, p.vanished.forget(p.kind, key, contents))}, nil
}

// reconcileOwner makes the writes that an owner needs, and returns when to look at it again.
func (p *pairs) reconcileOwner(ctx context.Context, namespace, name string) (time.Duration, error) {
	key, verified := namespace+"/"+name, false
	var refused refusedMembers
	for steps := 0; ; steps++ {
		o := p.findOwner(namespace, name)
		if o == nil {
			p.cfg.Operations.finish(p.group + key)
			return 0, nil
		}
		v := p.view(o)
		if steps > maxSteps+4*len(v.members)+len(v.snapshots) {
			return 0, fmt.Errorf("%s %s: %d writes in a row have not been enough", p.what, key, steps)
		}
		if v.content != nil {
			p.contentKnown(o.GetUID())
		}
		v.contentGone = v.contentGone || verified
		v.members, v.memberRefused = refused.others(v.members), refused.err != nil
		p.cfg.Operations.observe(p.kind, o, v.content)
		todo, err := p.decide(ctx, v)
		if err != nil {
			return 0, err
		}
		switch todo.verdict {
		case doNothing:
			p.record(o, todo.events)
			return todo.after, refused.err
		case doVerify:
			var there *content
			there, err = p.getContent(ctx, o.contentName())
			verified = err == nil && there == nil
		default:
			err = p.refused(ctx, o, todo.verdict, p.perform(ctx, v, todo))
		}
		if err != nil && !refused.note(todo, err) {
			return 0, err
		}
		p.record(o, todo.events)
		reconcile.Progress(ctx)
	}
}

// decide returns the next write for an owner. A default class is chosen for good, so that the API server is asked for the classes: the watch may be about to bring
// another one that is the default.
func (p *pairs) decide(ctx context.Context, v view) (todo plan, err error) {
	if todo = v.plan(); todo.class != "" {
		if v.classes, err = p.listClasses(ctx); err == nil {
			todo = v.plan()
		}
	}
	klog.FromContext(ctx).V(4).Info("Planned", logging.KeyState, todo.verdict)
	return todo, err
}

// perform makes the write of a plan.
func (p *pairs) perform(ctx context.Context, v view, todo plan) error {
	switch todo.verdict { //nolint:exhaustive // the others are no writes
	case doPatch:
		return p.sendOwner(ctx, v.owner, todo)
	case doStatus:
		patch, err := statusPatch(v.owner, p.fields(v.owner.status), p.fields(todo.status))
		if err != nil {
			return err
		}
		return p.patchOwner(ctx, v.owner, patch, "status")
	case doCreate:
		claims := make([]*corev1.PersistentVolumeClaim, 0, len(v.sources))
		for _, s := range v.sources {
			claims = append(claims, s.claim)
		}
		return p.protect(ctx, claims, v.owner.GetUID(), func(ctx context.Context) error { return p.makeContent(ctx, todo.content) })
	case doPatchContent:
		return p.changeContent(ctx, v.content, todo.contentPatch)
	case doMark:
		return p.mark(ctx, v.content)
	case doDelete:
		return p.delete(ctx, v.content)
	case doMember:
		return p.groups.Load().on.makeMember(ctx, v, *todo.member)
	case doDeleteMember:
		return p.groups.Load().on.deleteMember(ctx, todo.member.snapshot)
	}
	return fmt.Errorf("no write is known for %q", todo.verdict)
}

// refused says to users what they can do something about, and returns the error.
func (p *pairs) refused(ctx context.Context, o *owner, verdict verdict, err error) error {
	if !kube.IsRefused(err) {
		return err
	}
	reason := map[string]string{
		string(doPatch): ReasonFinalizerError, string(doStatus): ReasonStatusUpdateFailed, string(doCreate): ReasonCreateContentFailed,
		string(doPatchContent): ReasonBindFailed, string(doMember): ReasonCreateContentFailed,
	}[string(verdict)]
	problem := problemf(cmp.Or(reason, ReasonContentDeleteError), "Failed to %v", err)
	if errors.Is(err, errClaim) {
		problem.reason = ReasonClaimFinalizer
	}
	if current := p.findOwner(o.GetNamespace(), o.GetName()); current != nil && current.GetDeletionTimestamp() == nil && verdict != doStatus {
		if todo := report(current, problem); todo.verdict == doStatus {
			_ = p.perform(ctx, view{kind: p.kind, owner: current}, todo) // the error itself is retried
		}
	}
	p.record(o, []event{{true, problem.reason, kube.Cut(problem.message, maxMessage)}})
	return err
}

// sendOwner writes finalizers, owners and class.
func (p *pairs) sendOwner(ctx context.Context, o *owner, todo plan) error {
	meta := asRead(o)
	meta["finalizers"] = todo.finalizers
	if len(todo.owners) != len(o.GetOwnerReferences()) {
		meta["ownerReferences"] = todo.owners
	}
	change := map[string]any{"metadata": meta}
	if todo.class != "" {
		change["spec"] = map[string]any{p.classField: todo.class}
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return p.patchOwner(ctx, o, patch)
}

// makeContent creates a content. Whom one of that name refers to, the next plan looks at.
func (p *pairs) makeContent(ctx context.Context, c *newContent) error {
	found, created, err := p.createContent(ctx, c)
	if created {
		p.created.Store(found.GetUID(), time.Now())
	}
	return err
}

// changeContent changes the content that was read.
func (p *pairs) changeContent(ctx context.Context, c *content, change map[string]any) error {
	meta := asRead(c)
	if changes, ok := change["metadata"].(map[string]any); ok {
		maps.Copy(meta, changes)
	}
	patch := map[string]any{"metadata": meta}
	if spec := change["spec"]; spec != nil {
		patch["spec"] = spec
	}
	_, err := p.sendContent(ctx, c, patch)
	return err
}

// mark sets the annotation beingDeleted, and no other one: csi-snapshotter writes others at the same time. What counts is the answer.
func (p *pairs) mark(ctx context.Context, c *content) error {
	patched, err := p.sendContent(ctx, c, map[string]any{"metadata": map[string]any{"uid": c.GetUID(), "annotations": map[string]any{p.beingDeleted: "yes"}}})
	if err == nil && !patched.has(p.beingDeleted) {
		err = fmt.Errorf("mark %s %q: the annotation %s is not there", p.contentKind, c.GetName(), p.beingDeleted)
	}
	return err
}

func (p *pairs) sendContent(ctx context.Context, c *content, change map[string]any) (*content, error) {
	patch, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return p.patchContent(ctx, c, patch)
}

// delete deletes a content; the finalizer keeps it until csi-snapshotter has deleted the snapshot.
func (p *pairs) delete(ctx context.Context, c *content) error {
	err := p.deleteContent(ctx, c)
	if err == nil {
		p.deleted.Store(c.GetUID(), nil)
	}
	return err
}

// reconcileOrphan makes the writes that a content needs whose owner is not there. named says that there is one of that name, with another UID.
// A content that is not being deleted stays, as it may be a copy of another cluster's: that its owner is not there says nothing. Only one whose owner
// this very process has seen vanish is deleted.
func (p *pairs) reconcileOrphan(ctx context.Context, c *content, named bool) error {
	switch {
	case named && c.ref.UID == "":
		return nil // the owner decides, if it is to be bound
	case (len(c.volumes) == 0) == !c.existing:
		p.cfg.Events.Warning(p.refTo(c, p.contentKind), p.group+ReasonContentValidation, "exactly one of "+p.contentSources+" must be set")
		return nil
	case c.GetDeletionTimestamp() == nil && c.ref.UID == "":
		return nil
	case c.GetDeletionTimestamp() == nil:
		return p.reconcileKept(ctx, c)
	case c.ref.UID == "" && c.existing, c.has(p.beingDeleted):
		return nil // csi-snapshotter deletes it
	}
	if exists, err := p.ownerExists(ctx, c.ref); err != nil || exists {
		return err
	}
	return p.mark(ctx, c)
}

// reconcileKept gives a content without an owner its finalizer and its node, and deletes it if its owner was seen to vanish.
func (p *pairs) reconcileKept(ctx context.Context, c *content) error {
	if meta := p.lacks(c, p.nodeOf(c)); len(meta) > 0 {
		return p.changeContent(ctx, c, map[string]any{"metadata": meta})
	}
	if _, deleted := p.deleted.Load(c.GetUID()); deleted || !p.isDependent(c) {
		return nil
	}
	if !p.vanished.has(c) {
		p.cfg.Events.Warning(p.refTo(c, p.contentKind), p.group+ReasonOrphan, fmt.Sprintf("%s %s does not exist, so that no deletion of one deletes this %s: "+
			"delete this %s if it is not needed", p.ownerKind, refText(c.ref), p.what, p.contentKind))
		return nil
	}
	if exists, err := p.ownerExists(ctx, c.ref); err != nil || exists {
		return err
	}
	klog.FromContext(ctx).Info("The owner was deleted before its finalizers were seen, the content is deleted", "content", c.GetName())
	if err := p.mark(ctx, c); err != nil {
		return err
	}
	return p.delete(ctx, cmp.Or(p.findContent(c.GetName()), c))
}

// ownerExists asks the API server for the owner that a content refers to.
func (p *pairs) ownerExists(ctx context.Context, ref corev1.ObjectReference) (bool, error) {
	o, err := p.getOwner(ctx, ref.Namespace, ref.Name)
	return o != nil && (ref.UID == "" || o.GetUID() == ref.UID), err
}

// record records the events of a plan.
func (p *pairs) record(o *owner, events []event) {
	for _, e := range events {
		if e.warning {
			p.cfg.Events.Warning(p.refTo(o, p.ownerKind), p.reason(e.reason), e.message)
		} else {
			p.cfg.Events.Normal(p.refTo(o, p.ownerKind), p.reason(e.reason), e.message)
		}
	}
}

// refTo names an object in an event.
func (k *kind) refTo(obj metav1.Object, kind string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: k.apiVersion, Kind: kind, Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID(), ResourceVersion: obj.GetResourceVersion(),
	}
}

// refusedMembers are the members of a group that the API server has refused in one reconciliation: the others are made all the same.
type refusedMembers struct {
	volumes map[string]bool
	err     error // the first one
}

// note remembers a member that was refused, and reports whether the error was about one.
func (r *refusedMembers) note(todo plan, err error) bool {
	if todo.verdict != doMember || !kube.IsRefused(err) {
		return false
	}
	if r.volumes == nil {
		r.volumes, r.err = map[string]bool{}, err
	}
	r.volumes[todo.member.info.VolumeHandle] = true
	return true
}

// others returns the members that were not refused.
func (r *refusedMembers) others(members []member) []member {
	if r.err == nil {
		return members
	}
	var others []member
	for _, m := range members {
		if !r.volumes[m.info.VolumeHandle] {
			others = append(others, m)
		}
	}
	return others
}
