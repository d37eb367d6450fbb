package journal

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// stages returns the stage of each open intent.
func stages(j *Journal) map[types.UID]Stage {
	all := map[types.UID]Stage{}
	for _, intent := range j.List() {
		all[intent.UID()] = intent.Stage
	}
	return all
}

// TestHandOver has a successor begin while three calls of the process before are running: it makes other volumes at once, and goes on with the three when the time of
// that process is over, but for the one whose record that process has closed.
func TestHandOver(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		b.elected = true
		before, stop := b.start()
		b.open(before, "u1", "u2", "u3")
		if err := before.HandOver(quiet(t), 20*time.Second); err != nil {
			t.Fatal(err)
		}
		if err := before.Open(quiet(t), newIntent("u4")); !errors.Is(err, ErrSuperseded) {
			t.Errorf("the process before opened another intent after the hand-over: %v", err)
		}
		next, _ := b.start()
		time.Sleep(5 * time.Second)
		before.Close("u1")
		b.open(next, "u5")
		time.Sleep(5 * time.Second)
		stop()
		for uid, stage := range stages(next) {
			if want := uid != "u5"; want != (stage == Awaited) {
				t.Errorf("%s is %q while the process before may be at work", uid, stage)
			}
		}
		time.Sleep(11 * time.Second)
		if got := stages(next); len(got) != 3 || got["u2"] != Creating || got["u3"] != Creating {
			t.Errorf("intents %v after the end of the process before, want u2 and u3 to be gone on with, and u5", got)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if want := []string{"pvc-u1", "pvc-u2", "pvc-u3"}; !slices.Equal(b.adopted, want) || len(b.reports) > 0 {
			t.Errorf("adopted %q, want %q: the claim of u1 has waited, too; reports %q", b.adopted, want, b.reports)
		}
	})
}

// TestHandOverToldTooLate has the process before close an intent when its time is over: its successor may have asked for another volume of the claim by then.
func TestHandOverToldTooLate(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		b.elected = true
		before, stop := b.start()
		b.open(before, "u1")
		if err := before.HandOver(quiet(t), 20*time.Second); err != nil {
			t.Fatal(err)
		}
		next, _ := b.start()
		time.Sleep(21 * time.Second)
		before.Close("u1")
		stop()
		time.Sleep(2 * heartbeat)
		if got := stages(next); got["u1"] != Creating {
			t.Errorf("intents %v, want u1 as it was", got)
		}
	})
}

// TestHandOverBeforeASuccessor closes an intent before there is a successor, and ends: its successor finds the other one, and need not wait.
func TestHandOverBeforeASuccessor(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		b.elected = true
		before, stop := b.start()
		b.open(before, "u1", "u2")
		if err := before.HandOver(quiet(t), 20*time.Second); err != nil {
			t.Fatal(err)
		}
		before.Close("u1")
		time.Sleep(5 * time.Second)
		if d := b.stored(); d.Busy < 17*time.Second || d.Busy > 18*time.Second {
			t.Errorf("a process that may work for 18s when it writes says %v", d.Busy)
		}
		stop()
		next, _ := b.start()
		if got := stages(next); len(got) != 1 || got["u2"] != Creating {
			t.Errorf("intents %v, want u2 to be gone on with", got)
		}
	})
}

// lossyLeases lose the answer to the first write of AnnotationAbandon.
type lossyLeases struct {
	kube.Leases

	lost bool
}

// Update implements kube.Leases.
func (l *lossyLeases) Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	stored, err := l.Leases.Update(ctx, lease, opts)
	if err == nil && !l.lost && lease.Annotations[AnnotationAbandon] != "" {
		l.lost = true
		return nil, apierrors.NewTimeoutError("the answer is lost", 1)
	}
	return stored, err
}

// TestHandOverToldOnce loses the answer to the write that reports a closed record: it took effect, and the successor may have another record of the claim by now.
func TestHandOverToldOnce(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		b.elected, b.lossy = true, true
		before, stop := b.start()
		b.open(before, "u1", "u2")
		if err := before.HandOver(quiet(t), 20*time.Second); err != nil {
			t.Fatal(err)
		}
		b.lossy = false
		next, _ := b.start()
		before.Close("u1")
		time.Sleep(5 * time.Second)
		b.open(next, "u3") // the write finds the annotation
		next.Close("u3")
		b.open(next, "u1")
		before.Close("u2")
		stop()
		time.Sleep(2 * heartbeat)
		if got := stages(next); len(got) != 1 || got["u1"] != Creating {
			t.Errorf("intents %v, want the new one of u1", got)
		}
	})
}

// TestHandOverRefused keeps the journal when the records cannot be stored: no successor would know of running calls.
func TestHandOverRefused(t *testing.T) {
	onBench(t, func(t *testing.T, b *bench) {
		b.elected = true
		j, _ := b.start()
		b.open(j, "u1")
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "driver-journal", errors.New("no"))
		b.cluster.Inject(kubetest.Fault{Verb: "update", Resource: "leases", Err: forbidden, Times: 1})
		if err := j.HandOver(quiet(t), 20*time.Second); !apierrors.IsForbidden(err) {
			t.Errorf("HandOver returned %v, want the refusal", err)
		}
		b.open(j, "u2")
	})
}
