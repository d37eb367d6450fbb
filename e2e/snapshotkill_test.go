package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
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
			s.snapshotReady(snapshot)
			s.waitDriverSnapshots(1)
			s.delete(snapshot)
			s.endSnapshots()
		})
		t.Run("Abandon/"+victim, func(t *testing.T) {
			s := newSnapshotStory(t)
			snapshot := s.takeInTheMiddle()
			s.delete(snapshot)
			s.strike(victim)
			s.endSnapshots()
		})
		t.Run("Delete/"+victim, func(t *testing.T) {
			s := newSnapshotStory(t)
			snapshot := s.take("monday", "data")
			s.snapshotReady(snapshot)
			s.signal(controllerDriver, "STOP")
			content := s.contentOf(snapshot)
			s.delete(snapshot)
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
	s := &story{Scene: bed.NewScene(t), t: t}
	s.addSnapshotClass("")
	s.createClaim()
	s.bound()
	s.createPod()
	s.running()
	return s
}

// takeInTheMiddle takes a snapshot, and returns when the driver, which is frozen, has been asked for it.
func (s *story) takeInTheMiddle() *unstructured.Unstructured {
	s.t.Helper()
	s.signal(controllerDriver, "STOP")
	snapshot := s.take("monday", "data")
	s.waitContent(s.contentOf(snapshot), "be created by the driver", func(o *unstructured.Unstructured) bool {
		return o.GetAnnotations()[snapshotapi.AnnBeingCreated] != ""
	})
	return snapshot
}

// contentOf names the content of a snapshot.
func (s *story) contentOf(snapshot *unstructured.Unstructured) *unstructured.Unstructured {
	s.t.Helper()
	name := snapshotapi.ContentName(s.read(snapshot).GetUID())
	return s.decode(fmt.Sprintf("{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshotContent, metadata: {name: %s}}", name))[0]
}

func (s *story) waitContent(content *unstructured.Unstructured, what string, done func(*unstructured.Unstructured) bool) {
	s.t.Helper()
	s.Wait(content.GetName()+" to "+what, func(ctx context.Context) (bool, error) {
		resource, err := s.NewWriter(s.t).Resource(content)
		if err != nil {
			return false, err
		}
		now, err := resource.Get(ctx, content.GetName(), metav1.GetOptions{})
		return err == nil && done(now), err
	})
}

// strike kills a process, and lets the driver, which was frozen, go on.
func (s *story) strike(victim string) {
	s.t.Helper()
	s.signal(victim, "KILL")
	if victim != controllerDriver {
		s.signal(controllerDriver, "CONT")
	}
}

// waitDriverSnapshots waits until the driver has so many snapshots.
func (s *story) waitDriverSnapshots(want int) {
	s.t.Helper()
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
	s.t.Helper()
	s.waitNoSnapshots()
	s.waitDriverSnapshots(0)
	s.deletePod()
	s.WaitNoPod("pod")
	s.deleteClaim()
	s.WaitNothingLeft()
}
