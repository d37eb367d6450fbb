package idempotent

import (
	"context"
	"errors"
	"testing"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

var errBroken = errors.New("the storage does not answer")

// brokenVolumes is a service that cannot even look.
type brokenVolumes struct{ volume.Services }

func (brokenVolumes) Find(context.Context, string) (*volume.Volume, error)   { return nil, errBroken }
func (brokenVolumes) Get(context.Context, volume.ID) (*volume.Volume, error) { return nil, errBroken }
func (brokenVolumes) Delete(context.Context, volume.ID) error                { return errBroken }

// brokenNode knows a volume, or does not answer.
type brokenNode struct {
	volume.NodeService

	known *volume.NodeVolume
}

func (b brokenNode) Lookup(context.Context, volume.ID) (*volume.NodeVolume, error) {
	if b.known == nil {
		return nil, errBroken
	}
	return b.known, nil
}

func (brokenNode) MountMatches(context.Context, *volume.NodeVolume, string) (bool, error) {
	return false, errBroken
}

// TestWhoCannotLookDoesNothing: an unanswered question is no answer. Every
// method that would change something ends with the error of the look-up; the
// broken services panic when one goes on.
func TestWhoCannotLookDoesNothing(t *testing.T) {
	ctx := t.Context()
	volumes := New(brokenVolumes{})
	deaf := NewNode(brokenNode{})
	stage := volume.Stage{Path: "/s", Capability: capability()}
	target := volume.Target{Path: "/t", Source: "/s", Capability: capability()}
	blind := NewNode(brokenNode{known: &volume.NodeVolume{ID: "v", Stage: &stage, Targets: []volume.Target{target}}})
	for name, call := range map[string]func() error{
		"Create": func() error { _, err := volumes.Create(ctx, createRequest("pvc")); return err },
		"Delete": func() error { return volumes.Delete(ctx, "v") },
		"Attach": func() error {
			_, err := volumes.Publish(ctx, &volume.PublishRequest{ID: "v", Node: "n1", Capability: capability()})
			return err
		},
		"Detach":         func() error { return volumes.Unpublish(ctx, "v", "n1") },
		"Stage":          func() error { return deaf.Stage(ctx, &volume.StageRequest{ID: "v", Stage: stage}) },
		"StageMounted":   func() error { return blind.Stage(ctx, &volume.StageRequest{ID: "v", Stage: stage}) },
		"Publish":        func() error { return deaf.Publish(ctx, &volume.TargetRequest{ID: "v", Target: target}) },
		"PublishMounted": func() error { return blind.Publish(ctx, &volume.TargetRequest{ID: "v", Target: target}) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := call(); !errors.Is(err, errBroken) {
				t.Errorf("error %v, want %v", err, errBroken)
			}
		})
	}
}

// TestLocksAreGivenBack calls again after each failure: a lock that stays
// would make the second call wait forever.
func TestLocksAreGivenBack(t *testing.T) {
	volumes, node := New(brokenVolumes{}), NewNode(brokenNode{})
	for range 3 {
		if err := volumes.Delete(t.Context(), "v"); !errors.Is(err, errBroken) {
			t.Errorf("delete: %v", err)
		}
		if _, err := volumes.Create(t.Context(), createRequest("pvc")); !errors.Is(err, errBroken) {
			t.Errorf("create: %v", err)
		}
		if err := node.Stage(t.Context(), &volume.StageRequest{ID: "v"}); !errors.Is(err, errBroken) {
			t.Errorf("stage: %v", err)
		}
	}
	if n := volumes.Volumes.ids.Len() + volumes.Volumes.names.Len() + node.ids.Len(); n != 0 {
		t.Errorf("%d locks are held when nothing runs", n)
	}
}

// TestCreateWaitsForDelete: the volume of that name is being deleted. The new
// call must neither return it nor fail, but make a new one.
func TestCreateWaitsForDelete(t *testing.T) {
	f := newFixture(t)
	v := f.create("pvc-1")
	unlock, err := lock(f.ctx, f.volumes.Volumes.ids, v.ID)
	f.must(err)
	created := make(chan *volume.Volume)
	go func() {
		again, err := f.volumes.Create(f.ctx, createRequest("pvc-1"))
		if err != nil {
			t.Error(err)
		}
		created <- again
	}()
	select {
	case again := <-created:
		t.Fatalf("create answered %v while the deletion was under way", again)
	default:
	}
	f.must(f.volumes.Service.Delete(f.ctx, v.ID))
	unlock()
	if again := <-created; again == nil || again.ID == v.ID {
		t.Errorf("create answered the deleted volume: %v", again)
	}
}
