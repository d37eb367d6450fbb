package controller

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/klog/v2"
)

// maxNamed is how many orphaned snapshots one line of the log names.
const maxNamed = 10

// orphans finds snapshots of the driver that no content names. They are reported, never deleted: they may be retained, or somebody else's.
type orphans struct {
	cfg   *Config
	known iter.Seq[record] // all contents

	mu       sync.Mutex
	suspects map[string]bool // of the last list
	found    []string        // sorted
	counted  bool
}

// count returns the number of orphaned snapshots. It is not known before the second list.
func (o *orphans) count() (n int, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.found), o.counted
}

// run lists the snapshots of the driver from time to time, until ctx ends.
func (o *orphans) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.cfg.OrphanInterval):
		}
		if !o.cfg.Features().List {
			continue
		}
		listed, err := o.list(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			klog.FromContext(ctx).Error(err, "Cannot look for snapshots without a content, trying again", "after", o.cfg.OrphanInterval)
		default:
			o.compare(ctx, listed)
		}
	}
}

// list returns the handles of all snapshots of the driver.
func (o *orphans) list(ctx context.Context) (handles []string, err error) {
	for token := ""; ; {
		calling, cancel := context.WithTimeout(ctx, o.cfg.Timeout)
		reply, err := o.cfg.CSI.ListSnapshots(calling, &csi.ListSnapshotsRequest{StartingToken: token})
		cancel()
		if err != nil {
			return nil, fmt.Errorf("list all snapshots: %w", err)
		}
		for _, entry := range reply.GetEntries() {
			handles = append(handles, entry.GetSnapshot().GetSnapshotId())
		}
		switch next := reply.GetNextToken(); next {
		case "":
			return handles, nil
		case token:
			return nil, fmt.Errorf("list all snapshots: the driver has answered with the token %q that it was asked with", token)
		}
		token = reply.GetNextToken()
	}
}

// compare notes the snapshots that no content names, neither now nor at the last list: one that was taken in between has a content that does not
// name it yet. The contents are read after the list, so that they name all that it has.
func (o *orphans) compare(ctx context.Context, listed []string) {
	named := map[string]bool{}
	for r := range o.known {
		named[r.handle()] = true
		for _, member := range r.members {
			named[member] = true
		}
	}
	suspects, found := map[string]bool{}, []string{}
	for _, handle := range listed {
		if named[handle] || suspects[handle] {
			continue
		}
		suspects[handle] = true
		if o.suspects[handle] {
			found = append(found, handle)
		}
	}
	slices.Sort(found)
	o.mu.Lock()
	changed := !slices.Equal(found, o.found)
	o.counted = o.counted || o.suspects != nil
	o.suspects, o.found = suspects, found
	o.mu.Unlock()
	if changed {
		klog.FromContext(ctx).Info("Snapshots of the driver that no content names", "number", len(found), "snapshots", found[:min(len(found), maxNamed)])
	}
}
