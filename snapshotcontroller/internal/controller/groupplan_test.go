package controller

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// testSource is a claim that is bound to a volume of driver d.
func testSource(name string) source {
	v := testView(func(*view) {})
	v.claim.Name, v.claim.UID, v.claim.Spec.VolumeName = name, "uid-c", "pv-"+v.claim.Name
	v.volume.Name, v.volume.Spec.ClaimRef.Name, v.volume.Spec.ClaimRef.UID = "pv-"+name, name, "uid-c"
	v.volume.Spec.CSI.VolumeHandle = "vol-" + name
	return source{v.claim, v.volume}
}

// testGroupView is a group snapshot of two claims, with its class; change makes another case of it.
func testGroupView(change func(v *groupView)) groupView {
	v := groupView{
		group: &groupv1.VolumeGroupSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g", UID: "1"},
			Spec: groupv1.VolumeGroupSnapshotSpec{
				Source: groupv1.VolumeGroupSnapshotSource{Selector: &metav1.LabelSelector{}}, VolumeGroupSnapshotClassName: new("fast"),
			},
		},
		class: &groupv1.VolumeGroupSnapshotClass{
			ObjectMeta: metav1.ObjectMeta{Name: "fast", Annotations: map[string]string{snapshotapi.AnnGroupDefaultClass: "true"}}, Driver: "d", DeletionPolicy: "Delete",
		},
		sources: []source{testSource("a"), testSource("b")},
	}
	change(&v)
	return v
}

func protectGroup(v *groupView) { v.group.Finalizers = []string{snapshotapi.FinalizerGroupBound} }

// unnamed leaves the class to the default.
func unnamed(v *groupView) {
	v.group.Spec.VolumeGroupSnapshotClassName = nil
	v.classes, v.class = []*groupv1.VolumeGroupSnapshotClass{v.class}, nil
}

// bindGroup gives the group snapshot its finalizer and a content.
func bindGroup(v *groupView) {
	protectGroup(v)
	v.content = &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: snapshotapi.GroupContentName("1"), UID: "3", Finalizers: []string{snapshotapi.FinalizerGroupContent}},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			Driver: "d", DeletionPolicy: "Delete", Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"vol-a", "vol-b"}},
			VolumeGroupSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "g", UID: "1"},
		},
	}
	v.group.Status = copiedGroupStatus(v.group, v.content)
}

// preProvision makes it one of a content of the admin.
func preProvision(v *groupView) {
	bindGroup(v)
	v.group.Spec.Source = groupv1.VolumeGroupSnapshotSource{VolumeGroupSnapshotContentName: &v.content.Name}
	v.content.Spec.Source = groupv1.VolumeGroupSnapshotContentSource{GroupSnapshotHandles: &groupv1.GroupSnapshotHandles{VolumeGroupSnapshotHandle: "h"}}
}

// takeGroup has the driver report the group snapshot and a member.
func takeGroup(v *groupView) {
	bindGroup(v)
	v.content.Status = &groupv1.VolumeGroupSnapshotContentStatus{VolumeGroupSnapshotHandle: new("h"), ReadyToUse: new(true), CreationTime: new(metav1.Now())}
	v.members = []member{{info: groupv1.VolumeSnapshotInfo{VolumeHandle: "vol-a", SnapshotHandle: "s"}, source: v.sources[0]}}
}

// completeMember gives the member its objects.
func completeMember(v *groupView) {
	m := &v.members[0]
	m.snapshot = memberSnapshot(*v, *m)
	m.content = memberContent(*v, *m, false)
	m.content.Spec.VolumeSnapshotRef.UID = "5"
	m.content.Status = &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &m.info.SnapshotHandle}
}

// removeGroup deletes the group snapshot of the view, which has a member.
func removeGroup(v *groupView) {
	takeGroup(v)
	v.group.DeletionTimestamp = new(metav1.Now())
	v.snapshots = []*snapshotv1.VolumeSnapshot{memberSnapshot(*v, v.members[0])}
}

func markGroupContent(v *groupView) {
	metav1.SetMetaDataAnnotation(&v.content.ObjectMeta, snapshotapi.AnnGroupBeingDeleted, "yes")
}

// loseMembers has all members been deleted.
func loseMembers(v *groupView) { v.snapshots = nil }

func TestPlanGroup(t *testing.T) {
	do := func(changes ...func(*groupView)) func(*groupView) {
		return func(v *groupView) {
			for _, change := range changes {
				change(v)
			}
		}
	}
	tests := map[string]struct {
		reason string
		change func(v *groupView)
		want   verdict
		event  string // reason of the last event, and a part of its message
		part   string
	}{
		"S5":       {"the finalizer comes before the content", func(*groupView) {}, doPatch, "", ""},
		"Create":   {"the content is next", protectGroup, doCreate, ReasonCreating, "ns/g"},
		"NoSource": {"nothing is asked for", func(v *groupView) { v.group.Spec.Source.Selector = nil }, doStatus, ReasonValidation, "exactly one"},
		"TwoSources": {"two things are asked for", func(v *groupView) { v.group.Spec.Source.VolumeGroupSnapshotContentName = new("c") },
			doStatus, ReasonValidation, "exactly one"},
		"BadSelector": {"the selector cannot be read", func(v *groupView) { v.selectorErr = errors.New("bad operator") }, doStatus, ReasonValidation, "bad operator"},
		"NoClaims":    {"S22: nothing matches, which is not everything", func(v *groupView) { v.sources = nil }, doStatus, ReasonContentCreationFailed, "matches no"},
		"Unbound": {"one claim has no volume yet", func(v *groupView) { v.sources[1].claim.Status.Phase = corev1.ClaimPending },
			doStatus, ReasonContentCreationFailed, "ns/b is not yet bound"},
		"InTree":      {"one volume is not one of a driver", func(v *groupView) { v.sources[1].volume.Spec.CSI = nil }, doStatus, ReasonContentCreationFailed, "not one of a CSI driver"},
		"TwoDrivers":  {"S24: one driver cannot know the volume of another", func(v *groupView) { v.sources[1].volume.Spec.CSI.Driver = "e" }, doStatus, ReasonValidation, `"e"`},
		"OtherDriver": {"S24: the driver of the class cannot know the volumes", func(v *groupView) { v.class.Driver = "e" }, doStatus, ReasonValidation, `for driver "e"`},
		"NoClass":     {"it may come", func(v *groupView) { v.class = nil }, doStatus, ReasonClassFailed, `"fast"`},
		"Default":     {"the default class is named in the spec", do(protectGroup, unnamed), doPatch, "", ""},
		"NoDefault":   {"no class is the default", do(unnamed, func(v *groupView) { v.classes[0].Annotations = nil }), doStatus, ReasonDefaultClassFailed, "cannot find default group snapshot class"},
		"TwoDefaults": {"which one is meant?", do(unnamed, func(v *groupView) { v.classes = append(v.classes, v.classes[0]) }), doStatus, ReasonDefaultClassFailed, "2 default"},
		"BadSecret": {"the class names half a secret", func(v *groupView) { v.class.Parameters = map[string]string{snapshotapi.ParamGroupSecretName: "s"} },
			doStatus, ReasonContentCreationFailed, "given together"},
		"Lost":    {"no content is made in place of one that was deleted", do(bindGroup, func(v *groupView) { v.content = nil }), doStatus, ReasonContentMissing, "was deleted"},
		"Missing": {"the admin's content may come", do(preProvision, func(v *groupView) { v.content = nil }), doStatus, ReasonContentMissing, "create it"},

		"Bound":     {"the driver is awaited", bindGroup, doNothing, "", ""},
		"S14":       {"the class is needed until the content exists", do(bindGroup, func(v *groupView) { v.class = nil }), doNothing, "", ""},
		"NewStatus": {"users see which content it is", do(bindGroup, func(v *groupView) { v.group.Status = nil }), doStatus, "", ""},
		"S2":        {"an older controller has created the content", do(bindGroup, func(v *groupView) { v.content.Finalizers = nil }), doPatchContent, "", ""},
		"S16":       {"another node is in charge", do(bindGroup, func(v *groupView) { v.node = "n" }), doPatchContent, "", ""},
		"Adopt":     {"the content is bound to the group", do(preProvision, func(v *groupView) { v.content.Spec.VolumeGroupSnapshotRef.UID = "" }), doPatchContent, "", ""},
		"Adopted":   {"nothing is missing", preProvision, doNothing, "", ""},
		"Misbound": {"the content is that of another group", do(bindGroup, func(v *groupView) { v.content.Spec.VolumeGroupSnapshotRef.UID = "9" }),
			doStatus, ReasonMisbound, "uid 9"},
		"S17": {"a content of that name refers to another group", do(bindGroup, func(v *groupView) { v.group.Status = nil; v.content.Spec.VolumeGroupSnapshotRef.UID = "9" }),
			doStatus, ReasonContentMisbound, "uid 9"},
		"Dynamic": {"a content of volumes was named", do(preProvision, func(v *groupView) {
			v.content.Spec.Source = groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"vol"}}
		}), doStatus, ReasonContentMismatch, "dynamically provisioned while expecting"},
		"PreProvisioned": {"a content of a snapshot is in the way", do(bindGroup, func(v *groupView) {
			v.content.Spec.Source = groupv1.VolumeGroupSnapshotContentSource{GroupSnapshotHandles: &groupv1.GroupSnapshotHandles{}}
		}), doStatus, ReasonContentMismatch, "pre-provisioned while expecting"},
		"Failed": {"users see the error of the driver", do(bindGroup, func(v *groupView) {
			v.content.Status = &groupv1.VolumeGroupSnapshotContentStatus{Error: &snapshotv1.VolumeSnapshotError{Message: new("quota")}}
		}), doStatus, ReasonCreationFailed, "quota"},
		"S28Error": {"an error may have no message", do(bindGroup, func(v *groupView) {
			v.content.Status = &groupv1.VolumeGroupSnapshotContentStatus{Error: &snapshotv1.VolumeSnapshotError{}}
		}), doStatus, ReasonCreationFailed, "unknown error"},

		"Member": {"members come before the status", takeGroup, doMember, "", ""},
		"MemberContent": {"the content of a member is missing", do(takeGroup, func(v *groupView) { v.members[0].snapshot = memberSnapshot(*v, v.members[0]) }),
			doMember, "", ""},
		"MemberUID":    {"the content of a member is not bound", do(takeGroup, completeMember, func(v *groupView) { v.members[0].content.Spec.VolumeSnapshotRef.UID = "" }), doMember, "", ""},
		"MemberStatus": {"the content of a member does not name the snapshot", do(takeGroup, completeMember, func(v *groupView) { v.members[0].content.Status = nil }), doMember, "", ""},
		"MemberGoes": {"a member that users delete is not created again", do(takeGroup, func(v *groupView) {
			v.members[0].snapshot = memberSnapshot(*v, v.members[0])
			v.members[0].snapshot.DeletionTimestamp = new(metav1.Now())
		}), doStatus, ReasonReady, "ns/g"},
		"Ready": {"all is there", do(takeGroup, completeMember), doStatus, ReasonReady, "ns/g"},
		"S23": {"members of a group that was ready are not looked at again", do(takeGroup, func(v *groupView) {
			v.group.Status = copiedGroupStatus(v.group, v.content)
		}), doNothing, "", ""},
		"Unready": {"it has been taken", do(takeGroup, completeMember, func(v *groupView) { v.content.Status.ReadyToUse = new(false) }), doStatus, ReasonCreated, "ns/g"},

		"Restoring":     {"a restore reads a member", do(removeGroup, func(v *groupView) { v.restoring = "ns/r" }), doNothing, ReasonDeletePending, "ns/r"},
		"Mark":          {"the mark comes first", removeGroup, doMark, "", ""},
		"MarkUnpatched": {"S2: the finalizer comes before that", do(removeGroup, func(v *groupView) { v.content.Finalizers = nil }), doPatchContent, "", ""},
		"Delete":        {"then the content", do(removeGroup, markGroupContent), doDelete, "", ""},
		"DeleteMembers": {"then the members", do(removeGroup, markGroupContent, func(v *groupView) { v.contentDeleted = true }), doDeleteMember, "", ""},
		"Await":         {"then the content is awaited", do(removeGroup, markGroupContent, loseMembers, func(v *groupView) { v.contentDeleted = true }), doNothing, "", ""},
		"Retain":        {"the content stays, the members go", do(removeGroup, markGroupContent, func(v *groupView) { v.content.Spec.DeletionPolicy = "Retain" }), doDeleteMember, "", ""},
		"Retained":      {"the group goes", do(removeGroup, markGroupContent, loseMembers, func(v *groupView) { v.content.Spec.DeletionPolicy = "Retain" }), doPatch, "", ""},
		"Verify":        {"S5: a content that is not in the cache may exist", do(removeGroup, func(v *groupView) { v.content = nil }), doVerify, "", ""},
		"GoneMembers":   {"the content is gone, the members are not", do(removeGroup, func(v *groupView) { v.content, v.contentGone = nil, true }), doDeleteMember, "", ""},
		"Gone":          {"all is gone", do(removeGroup, loseMembers, func(v *groupView) { v.content, v.contentGone = nil, true }), doPatch, "", ""},
		"Foreign":       {"the content is that of another group", do(removeGroup, loseMembers, func(v *groupView) { v.content.Spec.VolumeGroupSnapshotRef.UID = "9" }), doPatch, "", ""},
		"Released":      {"others hold it", do(removeGroup, func(v *groupView) { v.group.Finalizers = []string{"x"} }), doNothing, "", ""},
		"DeleteFails": {"users see why", do(removeGroup, markGroupContent, loseMembers, func(v *groupView) {
			v.contentDeleted = true
			v.content.Status.Error = &snapshotv1.VolumeSnapshotError{Message: new("in use")}
		}), doStatus, ReasonDeleteError, "in use"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := planGroup(testGroupView(tt.change))
			var last event
			if len(p.events) > 0 {
				last = p.events[len(p.events)-1]
			}
			if p.verdict != tt.want || last.reason != tt.event || !strings.Contains(last.message, tt.part) {
				t.Errorf("%s: got %s, event %+v; want %s, %s, %q", tt.reason, p.verdict, last, tt.want, tt.event, tt.part)
			}
		})
	}
}

// TestNewGroupContent looks at the whole content of a group snapshot.
func TestNewGroupContent(t *testing.T) {
	v := testGroupView(func(v *groupView) {
		v.node = "n"
		v.class.Parameters = map[string]string{
			snapshotapi.ParamGroupSecretName: "${volumegroupsnapshot.name}", snapshotapi.ParamGroupSecretNamespace: "${volumegroupsnapshot.namespace}",
		}
	})
	class, content, err := newGroupContent(v)
	if err != nil || class != v.class {
		t.Fatalf("class %v, error %v", class, err)
	}
	want := &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: "groupsnapcontent-1", Finalizers: []string{snapshotapi.FinalizerGroupContent}, Labels: map[string]string{snapshotapi.LabelManagedBy: "n"},
			Annotations: map[string]string{snapshotapi.AnnGroupDeletionSecretName: "g", snapshotapi.AnnGroupDeletionSecretNamespace: "ns"},
		},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			VolumeGroupSnapshotRef: corev1.ObjectReference{Kind: "VolumeGroupSnapshot", APIVersion: "groupsnapshot.storage.k8s.io/v1", Namespace: "ns", Name: "g", UID: "1"},
			DeletionPolicy:         "Delete", Driver: "d", VolumeGroupSnapshotClassName: new("fast"),
			Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"vol-a", "vol-b"}},
		},
	}
	if diff := cmp.Diff(want, content); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestMember looks at the objects of a member.
func TestMember(t *testing.T) {
	v := testGroupView(takeGroup)
	v.version = "v1beta2"
	v.content.Labels = map[string]string{snapshotapi.LabelManagedBy: "n"}
	v.content.Annotations = map[string]string{snapshotapi.AnnGroupDeletionSecretName: "s", snapshotapi.AnnGroupDeletionSecretNamespace: "ns"}
	m := v.members[0]
	m.source.volume.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	m.info.CreationTime, m.info.RestoreSize = new(int64(7)), new(int64(0))

	m.snapshot = memberSnapshot(v, m)
	owner := metav1.OwnerReference{APIVersion: "groupsnapshot.storage.k8s.io/v1beta2", Kind: "VolumeGroupSnapshot", Name: "g", UID: "1"}
	wantSnapshot := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: snapshotapi.MemberSnapshotName("1", "vol-a"), OwnerReferences: []metav1.OwnerReference{owner},
			Finalizers: []string{snapshotapi.FinalizerInGroup, snapshotapi.FinalizerAsSource, snapshotapi.FinalizerBound},
		},
		Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: new("a")}},
	}
	if diff := cmp.Diff(wantSnapshot, m.snapshot); diff != "" {
		t.Errorf("snapshot: -want +got\n%s", diff)
	}
	wantContent := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: snapshotapi.MemberContentName("1", "vol-a"), Finalizers: []string{snapshotapi.FinalizerContent}, Labels: map[string]string{snapshotapi.LabelManagedBy: "n"},
			Annotations: map[string]string{
				snapshotapi.AnnVolumeGroupSnapshotHandle: "h", snapshotapi.AnnDeletionSecretName: "s", snapshotapi.AnnDeletionSecretNamespace: "ns",
			},
		},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Kind: "VolumeSnapshot", APIVersion: "snapshot.storage.k8s.io/v1", Namespace: "ns", Name: m.snapshot.Name},
			Source:            snapshotv1.VolumeSnapshotContentSource{VolumeHandle: new("vol-a")}, Driver: "d", DeletionPolicy: "Delete",
			SourceVolumeMode: new(corev1.PersistentVolumeBlock),
		},
	}
	if diff := cmp.Diff(wantContent, memberContent(v, m, true)); diff != "" {
		t.Errorf("content: -want +got\n%s", diff)
	}
	wantStatus := map[string]any{"snapshotHandle": "s", "volumeGroupSnapshotHandle": new("h"), "readyToUse": false, "creationTime": int64(7), "restoreSize": int64(0)}
	if diff := cmp.Diff(wantStatus, memberStatus(v, m)); diff != "" {
		t.Errorf("status: -want +got\n%s", diff)
	}
	m.source.claim.Namespace = "other" // whose claim is none of the group's
	if got := memberSnapshot(v, m); *got.Spec.Source.PersistentVolumeClaimName != "" {
		t.Errorf("the claim is %q", *got.Spec.Source.PersistentVolumeClaimName)
	}
}
