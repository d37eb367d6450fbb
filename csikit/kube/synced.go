package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// syncLogEvery is the interval at which WaitAllSynced logs what it waits for.
const syncLogEvery = 30 * time.Second

// Syncer is an Informer of any kind.
type Syncer interface {
	// Name is the name of the kind, for logs and errors.
	Name() string
	// HasSynced reports whether the first list is complete.
	HasSynced() bool
	// WaitSynced returns when the first list is complete.
	WaitSynced(ctx context.Context) error
}

// CheckSynced returns an error that names the kinds whose first list is not complete, or nil. It is a check for
// /readyz: a component that lacks a permission would otherwise look ready and do nothing.
func CheckSynced(informers ...Syncer) error {
	if missing := unsynced(informers); len(missing) > 0 {
		return fmt.Errorf("waiting for the first list of %s", strings.Join(missing, ", "))
	}
	return nil
}

// WaitAllSynced returns when all first lists are complete, or with an error when ctx is done first. From
// time to time it logs the kinds that it waits for.
func WaitAllSynced(ctx context.Context, informers ...Syncer) error {
	logged, stop := context.WithCancel(ctx)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		logUnsynced(logged, informers)
	}()
	errs := make([]error, 0, len(informers))
	for _, informer := range informers {
		errs = append(errs, informer.WaitSynced(ctx))
	}
	stop()
	<-finished
	return errors.Join(errs...)
}

// logUnsynced logs the kinds that are not synced yet until ctx is done.
func logUnsynced(ctx context.Context, informers []Syncer) {
	tick := time.NewTicker(syncLogEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			klog.FromContext(ctx).Info("Waiting for the first list from the API server", "kinds", unsynced(informers))
		}
	}
}

func unsynced(informers []Syncer) (names []string) {
	for _, informer := range informers {
		if !informer.HasSynced() {
			names = append(names, informer.Name())
		}
	}
	return names
}
