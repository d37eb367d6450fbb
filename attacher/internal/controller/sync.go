package controller

import "github.com/longshore-csi/longshore/csikit/kube"

// caches returns all caches. Nothing is attached or detached before their first lists have been read: without the CSINodes, a restart
// would report a missing driver on nodes where it is registered.
func (c *Controller) caches() []kube.Syncer {
	return []kube.Syncer{c.csiNodes, c.pvs, c.vas}
}

// Synced returns an error while the controller runs and waits for the first lists of its caches. A controller that does not run yet
// waits for nothing.
func (c *Controller) Synced() error {
	if !c.started.Load() {
		return nil
	}
	return kube.CheckSynced(c.caches()...)
}
