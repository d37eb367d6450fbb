package e2e

import (
	"fmt"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	groupClass = `
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: %[1]s}
driver: %[2]s
deletionPolicy: Delete
`
	groupSnapshot = `
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: %[2]s, namespace: %[1]s}
spec: {volumeGroupSnapshotClassName: %[1]s, source: {selector: {matchLabels: {app: %[1]s}}}}
`
)

// TestGroupSnapshotAndRestore takes a snapshot of two volumes of the reference driver at one time, makes a volume of each member, which has
// the former content, and deletes the group, which deletes its members. No pod uses the volumes meanwhile: on tmpfs, which may have them, the driver
// could not tell whether somebody writes.
func TestGroupSnapshotAndRestore(t *testing.T) {
	dev(t)
	s := newStory(t)
	s.AddObject(fmt.Sprintf(groupClass, s.Namespace, s.Driver))
	claims := []string{"a", "b"}
	for _, claim := range claims {
		s.member(claim)
		s.CreatePod(claim, testbed.FromClaim(claim))
		testbed.WriteText(t, filepath.Join(s.MountPath(claim, claim), "file"), claim+" before")
		s.DeletePod(claim)
		s.WaitNoPod(claim)
	}
	s.CreateClaim("other", s.ImmediateClass()) // without the label
	s.WaitBound("other")
	group := s.takeGroup("monday")
	s.WaitSnapshotReady(group)
	s.waitDriverSnapshots(len(claims))

	uid := s.Read(group).GetUID()
	for _, claim := range claims {
		s.CreatePod(claim, testbed.FromClaim(claim))
		testbed.WriteText(t, filepath.Join(s.MountPath(claim, claim), "file"), claim+" after")
		name := snapshotapi.MemberSnapshotName(uid, s.Volume(claim).Spec.CSI.VolumeHandle)
		member := testbed.Decode(s.T, fmt.Sprintf("{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {namespace: %s, name: %s}}", s.Namespace, name))[0]
		s.WaitSnapshotReady(member)
		if of, _, err := unstructured.NestedString(s.Read(member).Object, "status", "volumeGroupSnapshotName"); of != "monday" || err != nil {
			t.Errorf("snapshot %s is of the group %q, %v", name, of, err)
		}
		s.RestoreSnapshot("copy-"+claim, name)
	}
	for _, claim := range claims {
		copied := "copy-" + claim
		s.WaitBound(copied)
		s.CreatePod(copied, testbed.FromClaim(copied))
		s.CheckText(claim, claim, claim+" after")
		s.CheckText(copied, copied, claim+" before")
	}

	s.Delete(group)
	s.WaitNoSnapshots()
	s.waitDriverSnapshots(0)
	for _, claim := range []string{"a", "b", "copy-a", "copy-b"} {
		s.DeletePod(claim)
		s.WaitNoPod(claim)
		s.DeleteClaim(claim)
	}
	s.DeleteClaim("other")
	s.WaitNothingLeft()
}

// member makes a claim that the group of the scene selects.
func (s *story) member(claim string) {
	s.T.Helper()
	s.CreateClaim(claim, s.ImmediateClass())
	s.PatchClaim(claim, fmt.Sprintf(`{"metadata": {"labels": {"app": %q}}}`, s.Namespace))
	s.WaitBound(claim)
}

// takeGroup asks for a snapshot of the claims of the group, with the class of the scene.
func (s *story) takeGroup(name string) *unstructured.Unstructured {
	s.T.Helper()
	group := testbed.Decode(s.T, fmt.Sprintf(groupSnapshot, s.Namespace, name))[0]
	s.Write(group)
	return group
}

// TestGroupSnapshotKilledInTheMiddle kills processes while the driver takes a snapshot of a group.
func TestGroupSnapshotKilledInTheMiddle(t *testing.T) {
	dev(t)
	for _, victim := range []string{"csi-snapshotter", "snapshot-controller", controllerDriver, "kube-apiserver"} {
		t.Run(victim, func(t *testing.T) {
			s := newStory(t)
			s.AddObject(fmt.Sprintf(groupClass, s.Namespace, s.Driver))
			s.member("a")
			s.member("b")
			s.Signal(controllerDriver, "STOP")
			group := s.takeGroup("monday")
			name := snapshotapi.GroupContentName(s.Read(group).GetUID())
			content := testbed.Decode(s.T, fmt.Sprintf("{apiVersion: groupsnapshot.storage.k8s.io/v1, kind: VolumeGroupSnapshotContent, metadata: {name: %s}}", name))[0]
			s.waitContent(content, "be created by the driver", func(o *unstructured.Unstructured) bool {
				return o.GetAnnotations()[snapshotapi.AnnGroupBeingCreated] != ""
			})
			s.strike(victim)
			s.WaitSnapshotReady(group)
			s.waitDriverSnapshots(2)
			s.Delete(group)
			s.WaitNoSnapshots()
			s.waitDriverSnapshots(0)
			s.DeleteClaim("a")
			s.DeleteClaim("b")
			s.WaitNothingLeft()
		})
	}
}
