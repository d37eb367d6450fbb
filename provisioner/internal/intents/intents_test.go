package intents

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// newIntent returns an intent of a claim.
func newIntent(uid string, stage Stage) Intent {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: uid, UID: types.UID(uid)}}
	return Intent{Stage: stage, Spec: volume.Spec{Name: "pvc-" + uid, Claim: claim}}
}

// testStore holds any Store to the rules of the interface.
func testStore(t *testing.T, store Store) {
	t.Helper()
	ctx := t.Context()
	if err := store.Update(ctx, newIntent("a", Saving)); !errors.Is(err, ErrUnknown) {
		t.Errorf("update of an intent that was never opened: %v, want %v", err, ErrUnknown)
	}
	for _, uid := range []string{"b", "a"} {
		if err := store.Open(ctx, newIntent(uid, Creating)); err != nil {
			t.Fatal(err)
		}
	}
	update := newIntent("a", Saving)
	update.VolumeID = "vol"
	if err := store.Update(ctx, update); err != nil {
		t.Fatal(err)
	}
	if got, ok := store.Get("a"); !ok || got.Stage != Saving || got.VolumeID != "vol" {
		t.Errorf("intent %+v, %v, want the updated one", got, ok)
	}
	if list := store.List(); len(list) != 2 || list[0].UID() != "a" || list[1].UID() != "b" {
		t.Errorf("list %v, want a and b in this order", list)
	}
	for range 2 {
		if err := store.Close(ctx, "a"); err != nil {
			t.Errorf("close: %v, want none, also for one that is closed", err)
		}
	}
	if _, ok := store.Get("a"); ok {
		t.Error("a closed intent is still open")
	}
	if list := store.List(); len(list) != 1 {
		t.Errorf("list %v, want the one that is left", list)
	}
}

func TestMemory(t *testing.T) {
	testStore(t, NewMemory())
}

// TestCopies changes what a store has handed out, which must not reach the store.
func TestCopies(t *testing.T) {
	store := NewMemory()
	if err := store.Open(t.Context(), newIntent("a", Creating)); err != nil {
		t.Fatal(err)
	}
	got, _ := store.Get("a")
	got.Stage = Undoing
	store.List()[0].Stage = Undoing
	if again, _ := store.Get("a"); again.Stage != Creating {
		t.Errorf("stage %s, want %s", again.Stage, Creating)
	}
}

func TestConcurrentUse(t *testing.T) {
	store := NewMemory()
	var users sync.WaitGroup
	for i := range 20 {
		users.Go(func() {
			intent := newIntent(fmt.Sprint(i), Creating)
			err := errors.Join(store.Open(t.Context(), intent), store.Update(t.Context(), intent))
			store.List()
			if err = errors.Join(err, store.Close(t.Context(), intent.UID())); err != nil {
				t.Error(err)
			}
		})
	}
	users.Wait()
	if left := store.List(); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestStageNames(t *testing.T) {
	want := map[Stage]string{Creating: "creating", Saving: "saving", Undoing: "undoing", Stage(7): "stage 7"}
	for stage, name := range want {
		if got := stage.String(); got != name {
			t.Errorf("stage %d is called %q, want %q", int(stage), got, name)
		}
	}
}
