package bench

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// snapshotTimes has the times at which snapshots were ready and gone, as a watcher sees them.
type snapshotTimes struct {
	mu      sync.Mutex
	at      map[string]map[types.UID]time.Time
	changed chan struct{}
}

// watchSnapshots watches the snapshots of a namespace until the end of the benchmark.
func watchSnapshots(b *testing.B, api snapshotapi.Client, namespace string) *snapshotTimes {
	b.Helper()
	w := &snapshotTimes{changed: make(chan struct{}, 1)}
	w.reset()
	informer := kube.NewInformer(api.VolumeSnapshots(namespace), kube.InformerOptions[*snapshotv1.VolumeSnapshot]{Name: "VolumeSnapshot"})
	informer.OnChange(func(before, after *snapshotv1.VolumeSnapshot) {
		switch {
		case after == nil && isAsked(before):
			w.see("gone", before.UID)
		case after != nil && isAsked(after) && after.Status != nil && after.Status.ReadyToUse != nil && *after.Status.ReadyToUse:
			w.see("ready", after.UID)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = informer.Run(ctx) })
	b.Cleanup(func() { cancel(); running.Wait() })
	if err := informer.WaitSynced(b.Context()); err != nil {
		b.Fatal(err)
	}
	return w
}

func (w *snapshotTimes) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = map[string]map[types.UID]time.Time{"ready": {}, "gone": {}}
}

func (w *snapshotTimes) see(what string, uid types.UID) {
	w.mu.Lock()
	first(w.at[what], uid, time.Now())
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// wait returns the times as soon as there are n. It gives up when nothing has changed for as long as a state is waited for.
func (w *snapshotTimes) wait(b *testing.B, what string, n int) []time.Time {
	b.Helper()
	deadline := time.NewTimer(testbed.Patience)
	defer deadline.Stop()
	for {
		w.mu.Lock()
		all := slices.Collect(maps.Values(w.at[what]))
		w.mu.Unlock()
		if len(all) >= n {
			return all
		}
		select {
		case <-w.changed:
			deadline.Reset(testbed.Patience)
		case <-deadline.C:
			b.Fatalf("%d of %d snapshots are %s", len(all), n, what)
		}
	}
}
