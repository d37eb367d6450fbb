package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// TestSnapshotKilledInTheMiddle kills processes while CreateSnapshot runs, while it runs for a snapshot that its user deletes at that moment,
// and while DeleteSnapshot runs. Whatever is killed comes back, and nothing is left in the end: no snapshot in the driver, no content, and
// no finalizer on the claim.
func TestSnapshotKilledInTheMiddle(t *testing.T) {
	dev(t)
	for _, victim := range []string{"csi-snapshotter", "snapshot-controller", controllerDriver, "kube-apiserver"} {
		t.Run("Create/"+victim, func(t *testing.T) {
			s := newSnapshotStory(t)
			snapshot := s.takeInTheMiddle()
			s.strike(victim)
			s.WaitSnapshotReady(snapshot)
			s.waitDriverSnapshots(1)
			s.Delete(snapshot)
			s.endSnapshots()
		})
		t.Run("Abandon/"+victim, func(t *testing.T) {
			s := newSnapshotStory(t)
			snapshot := s.takeInTheMiddle()
			s.Delete(snapshot)
			s.strike(victim)
			s.endSnapshots()
		})
		t.Run("Delete/"+victim, func(t *testing.T) {
			s := newSnapshotStory(t)
			snapshot := s.TakeSnapshot("monday", "data")
			s.WaitSnapshotReady(snapshot)
			s.Signal(controllerDriver, "STOP")
			content := s.contentOf(snapshot)
			s.Delete(snapshot)
			s.waitContent(content, "be deleted by csi-snapshotter", func(o *unstructured.Unstructured) bool {
				return o.GetDeletionTimestamp() != nil && o.GetAnnotations()[snapshotapi.AnnBeingDeleted] != ""
			})
			s.strike(victim)
			s.endSnapshots()
		})
	}
}

// newSnapshotStory has a claim whose volume a pod uses.
func newSnapshotStory(t *testing.T) *story {
	t.Helper()
	s := newStory(t)
	s.AddSnapshotClass("")
	s.createClaim()
	s.bound()
	s.createPod()
	s.running()
	return s
}

// takeInTheMiddle takes a snapshot, and returns when the driver, which is frozen, has been asked for it.
func (s *story) takeInTheMiddle() *unstructured.Unstructured {
	s.T.Helper()
	s.Signal(controllerDriver, "STOP")
	snapshot := s.TakeSnapshot("monday", "data")
	s.waitContent(s.contentOf(snapshot), "be created by the driver", func(o *unstructured.Unstructured) bool {
		return o.GetAnnotations()[snapshotapi.AnnBeingCreated] != ""
	})
	return snapshot
}

// contentOf names the content of a snapshot.
func (s *story) contentOf(snapshot *unstructured.Unstructured) *unstructured.Unstructured {
	s.T.Helper()
	name := snapshotapi.ContentName(s.Read(snapshot).GetUID())
	return testbed.Decode(s.T, fmt.Sprintf("{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshotContent, metadata: {name: %s}}", name))[0]
}

func (s *story) waitContent(content *unstructured.Unstructured, what string, done func(*unstructured.Unstructured) bool) {
	s.T.Helper()
	s.Wait(content.GetName()+" to "+what, func(ctx context.Context) (bool, error) {
		resource, err := s.NewWriter(s.T).Resource(content)
		if err != nil {
			return false, err
		}
		now, err := resource.Get(ctx, content.GetName(), metav1.GetOptions{})
		return err == nil && done(now), err
	})
}

// strike kills a process, and lets the driver, which was frozen, go on.
func (s *story) strike(victim string) {
	s.T.Helper()
	s.Signal(victim, "KILL")
	if victim != controllerDriver {
		s.Signal(controllerDriver, "CONT")
	}
}

// waitDriverSnapshots waits until the driver has so many snapshots.
func (s *story) waitDriverSnapshots(want int) {
	s.T.Helper()
	s.Wait(fmt.Sprintf("the driver to have %d snapshots", want), func(context.Context) (bool, error) {
		found, err := filepath.Glob(filepath.Join(s.Dev.StateDir, "snapshots", "*"))
		if err == nil && len(found) != want {
			err = fmt.Errorf("it has %q", found)
		}
		return err == nil, err
	})
}

// endSnapshots sees that no snapshot is left, and ends the story.
func (s *story) endSnapshots() {
	s.T.Helper()
	s.WaitNoSnapshots()
	s.waitDriverSnapshots(0)
	s.deletePod()
	s.WaitNoPod("pod")
	s.deleteClaim()
	s.WaitNothingLeft()
}
