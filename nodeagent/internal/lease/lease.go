// Package lease renews the Lease by which the node lifecycle controller knows that the agent lives.
//
// It is a heartbeat and not a lock: no other process writes the Lease, so there is no election. For
// that see csikit/leader.
package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
)

// Config says which Lease is renewed.
type Config struct {
	// Leases is the client for the namespace kube-node-lease.
	Leases kube.Leases
	// Node is the name of the node and of the Lease.
	Node string
	// NodeUID returns the UID of the Node, which owns the Lease; empty if it is not known.
	NodeUID func() types.UID
	// Duration is how long the node counts as alive after a renewal; 40 s if zero. The Lease is
	// renewed four times as often.
	Duration time.Duration
}

// Renewer renews one Lease.
type Renewer struct {
	cfg  Config
	last *coordinationv1.Lease
}

// New makes a Renewer.
func New(cfg Config) (*Renewer, error) {
	if cfg.Leases == nil || cfg.Node == "" || cfg.NodeUID == nil {
		return nil, errors.New("configure node lease: client, node name and node UID are needed")
	}
	if cfg.Duration == 0 {
		cfg.Duration = 40 * time.Second
	}
	if cfg.Duration < time.Second {
		return nil, fmt.Errorf("configure node lease: duration %v is below one second", cfg.Duration)
	}
	return &Renewer{cfg: cfg}, nil
}

// Run renews the Lease until ctx is done. Errors are logged and tried again. Renewals are spread a
// little, so that many agents do not write in step.
func (r *Renewer) Run(ctx context.Context) error {
	interval := r.cfg.Duration / 4
	for {
		pause := interval + time.Duration(rand.Float64()*0.04*float64(interval))
		if err := r.renew(ctx, interval); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Renewing the node lease, trying again", logging.KeyNode, r.cfg.Node)
			pause = interval / 10
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

func (r *Renewer) renew(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if r.last == nil {
		return r.create(ctx)
	}
	updated, err := r.cfg.Leases.Update(ctx, r.desired(r.last), metav1.UpdateOptions{})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		r.last = nil
		return r.create(ctx)
	}
	if err != nil {
		return fmt.Errorf("renew lease of node %q: %w", r.cfg.Node, err)
	}
	r.last = updated
	return nil
}

// create makes the Lease, or takes over the one that an earlier process has made.
func (r *Renewer) create(ctx context.Context) error {
	found, err := r.cfg.Leases.Get(ctx, r.cfg.Node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		fresh := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: r.cfg.Node, Namespace: corev1.NamespaceNodeLease}}
		found, err = r.cfg.Leases.Create(ctx, r.desired(fresh), metav1.CreateOptions{})
	case err == nil:
		found, err = r.cfg.Leases.Update(ctx, r.desired(found), metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("create lease of node %q: %w", r.cfg.Node, err)
	}
	r.last = found
	return nil
}

// desired is a renewed copy of a Lease.
func (r *Renewer) desired(l *coordinationv1.Lease) *coordinationv1.Lease {
	l = l.DeepCopy()
	now, seconds := metav1.NowMicro(), int32(r.cfg.Duration/time.Second)
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &r.cfg.Node, &seconds, &now
	if uid := r.cfg.NodeUID(); uid != "" {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: r.cfg.Node, UID: uid}}
	}
	return l
}
