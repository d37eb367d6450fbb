package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// syncLogInterval is how often the log says which cache has not been filled.
const syncLogInterval = 30 * time.Second

// Synced returns an error while the controller runs and waits for the first lists of its caches; nothing is attached or
// detached until then. A controller that does not run yet waits for nothing.
func (c *Controller) Synced() error {
	kinds := c.unsynced()
	if !c.started.Load() || len(kinds) == 0 {
		return nil
	}
	return fmt.Errorf("waiting for the first list of %s from the API server; does the role of csi-attacher allow list and watch?",
		strings.Join(kinds, ", "))
}

// unsynced returns the kinds whose first list has not been read.
func (c *Controller) unsynced() []string {
	var kinds []string
	for _, cache := range c.caches() {
		if !cache.HasSynced() {
			kinds = append(kinds, cache.kind)
		}
	}
	return kinds
}

// cache is filled by a first list.
type cache interface {
	HasSynced() bool
	WaitSynced(ctx context.Context) error
}

// kindCache is the cache of a kind of objects.
type kindCache struct {
	kind string
	cache
}

func (c *Controller) caches() []kindCache {
	return []kindCache{{"CSINode", c.csiNodes}, {"PersistentVolume", c.pvs}, {"VolumeAttachment", c.vas}}
}

// waitSynced waits for all caches, and logs which one is missing. Without the CSINodes, a restart would report a missing
// driver on nodes where it is registered.
func (c *Controller) waitSynced(ctx context.Context) error {
	ticker := time.NewTicker(syncLogInterval)
	defer ticker.Stop()
	synced := make(chan error, 1)
	go func() {
		var err error
		for _, cache := range c.caches() {
			err = errors.Join(err, cache.WaitSynced(ctx))
		}
		synced <- err
	}()
	for {
		select {
		case err := <-synced:
			return err
		case <-ticker.C:
			klog.FromContext(ctx).Info("Waiting for the first list from the API server", "kinds", c.unsynced())
		}
	}
}
