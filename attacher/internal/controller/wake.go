package controller

import (
	"context"
	"slices"
)

// DriverChanged retries all VolumeAttachments of the driver that wait. What fails again continues with its backoff. If the driver does not
// attach, the log says so.
func (c *Controller) DriverChanged(ctx context.Context) {
	c.logPublish(ctx)
	if c.started.Load() {
		c.vaQueue.WakeAll(c.unfinished)
	}
}

// unfinished returns the sorted names of the driver's VolumeAttachments that need anything.
func (c *Controller) unfinished() []string {
	var names []string
	for va := range c.vas.All() {
		if c.ours(va) && c.step(va) != stepNone {
			names = append(names, va.Name)
		}
	}
	slices.Sort(names)
	return names
}
