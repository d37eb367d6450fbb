package controller

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// firstKindsInterval is the first interval in which the kinds of snapshots are looked for. It doubles.
const firstKindsInterval = 100 * time.Millisecond

// ErrNoKinds is why nothing is done: the CustomResourceDefinitions of snapshots are not installed.
var ErrNoKinds = errors.New("the API server has no VolumeSnapshots, VolumeSnapshotContents or VolumeSnapshotClasses in " +
	snapshotapi.Group + "/v1: install their CustomResourceDefinitions; work begins when they are there")

// Kinds waits for the kinds of snapshots. The zero value knows nothing, and is ready.
type Kinds struct {
	missing atomic.Bool
}

// Check returns ErrNoKinds as long as Wait waits.
func (k *Kinds) Check() error {
	if k.missing.Load() {
		return ErrNoKinds
	}
	return nil
}

// Wait returns when the API server has the kinds of snapshots, or the error of ctx. It looks for them in an interval that grows up to longest.
// timeout is the deadline of
// each look. An answer that does not say that they are absent is left to the informers.
func (k *Kinds) Wait(ctx context.Context, client snapshotapi.Client, longest, timeout time.Duration) error {
	defer k.missing.Store(false)
	for interval := firstKindsInterval; ; interval = min(2*interval, longest) {
		absent := k.absent(ctx, client, timeout)
		if absent == nil {
			return ctx.Err()
		}
		if !k.missing.Swap(true) {
			klog.FromContext(ctx).Error(errors.Join(ErrNoKinds, absent), "Waiting for the kinds of snapshots")
		} else {
			klog.FromContext(ctx).V(2).Info("Still waiting for the kinds of snapshots", logging.KeyDelay, interval)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the kinds of snapshots: %w", context.Cause(ctx))
		case <-time.After(interval):
		}
	}
}

// absent returns the answer that says that a kind is absent, if there is any.
func (k *Kinds) absent(ctx context.Context, client snapshotapi.Client, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	one := metav1.ListOptions{Limit: 1}
	_, snapshots := client.VolumeSnapshots("").List(ctx, one)
	_, contents := client.VolumeSnapshotContents().List(ctx, one)
	_, classes := client.VolumeSnapshotClasses().List(ctx, one)
	for _, err := range []error{snapshots, contents, classes} {
		if snapshotapi.IsAbsent(err) {
			return err
		}
	}
	return nil
}
