package controller

import (
	"context"
	"errors"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// errEndlessList is a list that leads back to a page that was read before.
var errEndlessList = errors.New("driver returned a page token for the second time")

// answer is what a list says of one volume.
type answer struct {
	handle string
	health health
	err    error // the list does not say how the volume is
}

// list reads the driver's list page by page and reports what it says, then asks for the volumes that it should have had: that a volume is absent is no evidence.
// A list that fails says nothing about the volumes of its further pages.
func (c *Controller) list(ctx context.Context, features Features) error {
	listed, tokens, token := map[string]bool{}, map[string]bool{}, ""
	for {
		if err := c.limiter.Wait(ctx); err != nil {
			return err
		}
		page, next, err := c.page(ctx, features, token)
		if err != nil {
			return err
		}
		for _, a := range page {
			for _, pv := range c.pvs.ByIndex(indexHandle, a.handle) {
				if a.err != nil {
					c.failed(ctx, pv, a.err)
				} else {
					c.answered(ctx, pv, a.health)
				}
				listed[pv.Name] = true
			}
		}
		if next == "" {
			break
		}
		if tokens[next] {
			return errEndlessList
		}
		tokens[next], token = true, next
	}
	if features.gets() {
		c.probeAll(ctx, features, c.unlisted(features, listed))
	}
	return nil
}

// unlisted returns the names of the volumes to ask for: those that a list of all volumes lacks, or of a list of problems, those that had some.
func (c *Controller) unlisted(features Features, listed map[string]bool) []string {
	var names []string
	for _, name := range c.bound() {
		if listed[name] {
			continue
		}
		if features.categories() {
			pv, _ := c.pvs.Get("", name)
			if claim, ok := c.claimOf(pv); !ok || !c.records.isAbnormal(claim) {
				continue
			}
		}
		names = append(names, name)
	}
	return names
}

// page reads one page of the driver's list.
func (c *Controller) page(ctx context.Context, features Features, token string) (answers []answer, next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	start := time.Now()
	if features.categories() {
		reply, err := c.cfg.CSI.ControllerListVolumeHealth(ctx, &csi.ControllerListVolumeHealthRequest{StartingToken: token})
		c.cfg.Metrics.called("ControllerListVolumeHealth", start, err)
		for _, entry := range reply.GetEntries() {
			answers = append(answers, answer{handle: entry.GetVolumeId(), health: healthOf(entry)})
		}
		return answers, reply.GetNextToken(), err
	}
	reply, err := c.cfg.CSI.ListVolumes(ctx, &csi.ListVolumesRequest{StartingToken: token})
	c.cfg.Metrics.called("ListVolumes", start, err)
	for _, entry := range reply.GetEntries() {
		h, err := conditionOf(entry.GetStatus())
		answers = append(answers, answer{handle: entry.GetVolume().GetVolumeId(), health: h, err: err})
	}
	return answers, reply.GetNextToken(), err
}
