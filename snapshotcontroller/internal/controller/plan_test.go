package controller

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// change makes another case of a view.
type change = func(v *view)

// testSource is a claim that is bound to a volume of driver d.
func testSource(name string) source {
	csi := &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "vol-" + name}
	return source{
		name: name,
		claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "2"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		volume: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: name, UID: "2"}, PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: csi},
		}},
	}
}

// testView is a snapshot of a claim that is bound, or a group snapshot of two, with its class.
func testView(group bool, changes ...change) view {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "1"}
	v := view{kind: snapshotKind(), owner: ownerOfSnapshot(&snapshotv1.VolumeSnapshot{ObjectMeta: meta}), sources: []source{testSource("a")}}
	if group {
		v.kind, v.owner, v.sources = groupKind(), ownerOfGroup(&groupv1.VolumeGroupSnapshot{ObjectMeta: meta}), append(v.sources, testSource("b"))
	}
	v.owner.dynamic, v.owner.class = true, new("fast")
	v.named = &class{Object: &metav1.ObjectMeta{Name: "fast", Annotations: map[string]string{v.defaultClass: "true"}}, driver: "d", policy: "Delete"}
	for _, change := range changes {
		change(&v)
	}
	return v
}

func protect(v *view) { v.owner.SetFinalizers(withAll(v.finalizers, v.finalizersDelete...)) }

// bind gives the owner its finalizers and a content.
func bind(v *view) {
	protect(v)
	v.content = &content{
		Object: &metav1.ObjectMeta{Name: v.contentName("1"), UID: "3", Finalizers: []string{v.contentFinalizer}}, driver: "d", policy: "Delete",
		ref: corev1.ObjectReference{Namespace: "ns", Name: "s", UID: "1"}, volumes: []string{"vol-a", "vol-b"}[:len(v.sources)],
	}
	v.owner.status = v.copiedStatus()
}

// preProvision makes it one of a content of the admin.
func preProvision(v *view) {
	bind(v)
	v.owner.dynamic, v.owner.existing = false, new(v.content.GetName())
	v.content.volumes, v.content.existing = nil, true
}

// unnamed leaves the class to the default.
func unnamed(v *view) { v.owner.class, v.classes, v.named = nil, []*class{v.named}, nil }

func taken(v *view) {
	bind(v)
	v.content.status = &contentStatus{handle: "h", ready: true, created: time.Unix(1, 0)}
}

func failed(message *string) change {
	return func(v *view) {
		v.content.status = &contentStatus{err: &snapshotv1.VolumeSnapshotError{Message: message, Time: new(metav1.Now())}}
	}
}

// remove deletes the owner.
func remove(v *view) {
	bind(v)
	v.owner.SetDeletionTimestamp(new(metav1.Now()))
}

func annotate(key string) change {
	return func(v *view) {
		annotations := map[string]string{key: "yes"}
		for k, value := range v.content.GetAnnotations() {
			annotations[k] = value
		}
		v.content.SetAnnotations(annotations)
	}
}

func mark(v *view) { annotate(v.beingDeleted)(v) }

// terminating has the content be deleted, a minute ago.
func terminating(v *view) {
	v.contentDeleted = true
	v.content.SetDeletionTimestamp(new(metav1.NewTime(time.Now().Add(-time.Minute))))
}

func gone(v *view)    { v.content, v.contentGone = nil, true }
func unread(v *view)  { v.content = nil }
func retain(v *view)  { v.content.policy = "Retain" }
func foreign(v *view) { v.content.ref.UID = "9" }
func fresh(v *view)   { v.owner.status = nil }

// tests of planning: what is planned, and the reason and a part of the last event.
type planned struct {
	reason  string
	changes []change
	want    verdict
	event   string
	part    string
}

func (tt planned) run(t *testing.T, group bool) {
	t.Helper()
	v := testView(group, tt.changes...)
	got := v.plan()
	var last event
	if len(got.events) > 0 {
		last = got.events[len(got.events)-1]
	}
	if got.verdict != tt.want || last.reason != tt.event || !strings.Contains(last.message, tt.part) {
		t.Errorf("%s: got %s, event %+v; want %s, %s, %q", tt.reason, got.verdict, last, tt.want, tt.event, tt.part)
	}
}

// TestPlan has what is the same for snapshots and group snapshots, and is tried with both.
func TestPlan(t *testing.T) {
	tests := map[string]planned{
		"S5":         {"the finalizers come before the content", nil, doPatch, "", ""},
		"Create":     {"claims and content are next", []change{protect}, doCreate, "", ""},
		"NoSource":   {"nothing is asked for", []change{func(v *view) { v.owner.dynamic = false }}, doStatus, ReasonValidation, "exactly one"},
		"TwoSources": {"two things are asked for", []change{func(v *view) { v.owner.existing = new("c") }}, doStatus, ReasonValidation, "exactly one"},
		"Unbound": {"a claim has no volume yet", []change{func(v *view) { v.sources[0].claim.Status.Phase = corev1.ClaimPending }},
			doStatus, ReasonContentCreationFailed, "ns/a is not yet bound"},
		"InTree":     {"a volume is not one of a driver", []change{func(v *view) { v.sources[0].volume.Spec.CSI = nil }}, doStatus, ReasonContentCreationFailed, "not one of a CSI driver"},
		"OtherClaim": {"the volume is that of a claim of the same name", []change{func(v *view) { v.sources[0].volume.Spec.ClaimRef.UID = "9" }}, doStatus, ReasonContentCreationFailed, "not bound"},
		"NoVolume":   {"it may come", []change{func(v *view) { v.sources[0].volume = nil }}, doStatus, ReasonContentCreationFailed, "does not exist"},
		"S24":        {"the driver of the class cannot know the volume", []change{func(v *view) { v.named.driver = "e" }}, doStatus, ReasonValidation, `driver "e"`},
		"NoClass":    {"it may come", []change{func(v *view) { v.named = nil }}, doStatus, ReasonClassFailed, `"fast"`},
		"Default":    {"the default class is named in the spec", []change{protect, unnamed}, doPatch, "", ""},
		"NoDefault":  {"no class is the default", []change{unnamed, func(v *view) { v.classes[0].SetAnnotations(nil) }}, doStatus, ReasonDefaultClassFailed, "cannot find default"},
		"TwoDefaults": {"which one is meant?", []change{unnamed, func(v *view) { v.classes = append(v.classes, v.classes[0]) }},
			doStatus, ReasonDefaultClassFailed, "2 default"},
		"BadSecret": {"the class names half a secret", []change{func(v *view) { v.named.parameters = map[string]string{v.secret.Name: "s"} }},
			doStatus, ReasonContentCreationFailed, "given together"},
		"Lost":    {"no content is made in place of one that was deleted", []change{bind, unread}, doStatus, ReasonContentMissing, "was deleted"},
		"Missing": {"the admin's content may come", []change{preProvision, unread}, doStatus, ReasonContentMissing, "create it"},

		"Grace":   {"most drivers are quick: one write of the status is enough", []change{bind, fresh, func(v *view) { v.grace = 1 }}, doNothing, "", ""},
		"Waiting": {"this driver is not", []change{bind, fresh}, doStatus, ReasonCreating, "ns/s"},
		"AtOnce":  {"the driver was quick: no user has waited", []change{taken, fresh}, doStatus, "", ""},
		"Ready":   {"the status has said that it is not", []change{taken}, doStatus, ReasonReady, "ns/s"},
		"Created": {"it has been taken, and is not ready", []change{taken, func(v *view) { v.content.status.ready = false }}, doStatus, ReasonCreated, "ns/s"},
		"Bound":   {"the driver is awaited", []change{bind}, doNothing, "", ""},
		"S14":     {"the class is needed until the content exists", []change{bind, func(v *view) { v.named = nil }}, doNothing, "", ""},
		"S2":      {"an older controller has created the content", []change{bind, func(v *view) { v.content.SetFinalizers(nil) }}, doPatchContent, "", ""},
		"S16":     {"another node is in charge", []change{bind, func(v *view) { v.node = "n" }}, doPatchContent, "", ""},
		"Adopt":   {"the content is bound to the owner", []change{preProvision, func(v *view) { v.content.ref.UID = "" }}, doPatchContent, "", ""},
		"Adopted": {"nothing is missing", []change{preProvision}, doNothing, "", ""},
		"S17":     {"a content of that name refers to another owner", []change{bind, fresh, foreign}, doStatus, ReasonContentMisbound, "uid 9"},
		"Misbound": {"the content is that of another owner now", []change{bind, foreign},
			doStatus, ReasonMisbound, "uid 9"},
		"Dynamic": {"a content of volumes was named", []change{preProvision, func(v *view) { v.content.volumes, v.content.existing = []string{"vol"}, false }},
			doStatus, ReasonContentMismatch, "dynamically provisioned while expecting"},
		"PreProvisioned": {"a content of a snapshot is in the way", []change{bind, func(v *view) { v.content.volumes, v.content.existing = nil, true }},
			doStatus, ReasonContentMismatch, "pre-provisioned while expecting"},
		"Failed":   {"users see the error of the driver", []change{bind, failed(new("quota"))}, doStatus, ReasonCreationFailed, "quota"},
		"S28Error": {"an error may have no message", []change{bind, failed(nil)}, doStatus, ReasonCreationFailed, "unknown error"},

		"Mark":          {"the mark comes first", []change{remove}, doMark, "", ""},
		"MarkUnpatched": {"S2: the finalizer comes before that", []change{remove, func(v *view) { v.content.SetFinalizers(nil) }}, doPatchContent, "", ""},
		"Delete":        {"then the deletion", []change{remove, mark}, doDelete, "", ""},
		"Deleted":       {"then the content is awaited", []change{remove, mark, terminating}, doNothing, "", ""},
		"NodeGone":      {"15: a content that is being deleted gets another node, too", []change{remove, mark, terminating, func(v *view) { v.node = "n" }}, doPatchContent, "", ""},
		"Verify":        {"a content that is not in the cache may exist", []change{remove, unread}, doVerify, "", ""},
		"Unanswered":    {"11: the request for it may still be on its way", []change{remove, gone, func(v *view) { v.unanswered = time.Second }}, doNothing, "", ""},
		"Release":       {"the content is gone", []change{remove, gone}, doPatch, "", ""},
		"Retain":        {"the content stays", []change{remove, mark, retain}, doPatch, "", ""},
		"Foreign":       {"the content is that of another owner", []change{remove, foreign}, doPatch, "", ""},
		"Released":      {"others hold it", []change{remove, func(v *view) { v.owner.SetFinalizers([]string{"x"}) }}, doNothing, "", ""},
		"InUse":         {"a restore reads it", []change{remove, func(v *view) { v.inUse = "ns/r reads it" }}, doNothing, ReasonDeletePending, "ns/r"},
		"DeleteFails":   {"users see why", []change{remove, mark, terminating, failed(new("in use"))}, doStatus, ReasonDeleteError, "in use"},
		"CreateFailed": {"16: an error of the creation is none of the deletion", []change{remove, mark, terminating, failed(new("quota")), func(v *view) {
			v.content.status.err.Time = new(metav1.NewTime(time.Now().Add(-time.Hour)))
		}}, doNothing, "", ""},
		"S8": {"the driver may still be taking it", []change{remove, mark, terminating, failed(new("quota")), func(v *view) { annotate(v.beingCreated)(v) }},
			doStatus, ReasonDeleteError, "is deleted when the driver has answered"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.run(t, false)
			tt.run(t, true)
		})
	}
}

// TestPlanSnapshot has what concerns VolumeSnapshots alone: members of groups among them.
func TestPlanSnapshot(t *testing.T) {
	member := func(v *view) { v.group, v.groupExists = &groupRef{"g", "8"}, true }
	tests := map[string]planned{
		"NoClaim": {"it may come", []change{func(v *view) { v.sources[0].claim = nil }}, doStatus, ReasonClaimMissing, "ns/a"},
		"ClaimIsDeleted": {"a finalizer cannot be added any more", []change{func(v *view) { v.sources[0].claim.DeletionTimestamp = new(metav1.Now()) }},
			doStatus, ReasonContentCreationFailed, "being deleted"},
		"S25Epoch":      {"0 is no time", []change{bind, func(v *view) { v.content.status = &contentStatus{} }}, doNothing, "", ""},
		"Joins":         {"a content says that the snapshot is of a group", []change{bind, member}, doPatch, "", ""},
		"MemberToCome":  {"what makes the group makes the content of its member", []change{protect, member}, doNothing, "", ""},
		"FirstStatus":   {"and its first status", []change{bind, annotate(snapshotapi.AnnVolumeGroupSnapshotHandle)}, doNothing, "", ""},
		"Member":        {"it is deleted with its group", []change{remove, member}, doStatus, ReasonDeletePending, `"g"`},
		"GroupDeleting": {"the group comes first", []change{remove, member, func(v *view) { v.groupDeleting = true }}, doNothing, "", ""},
		"GroupUnknown": {"it is not known whether the group exists", []change{remove, func(v *view) { v.group, v.groupUnknown = &groupRef{"g", "8"}, true }},
			doNothing, "", ""},
		"GroupUnread": {"5: and that does not come to be known", []change{remove, func(v *view) { v.group, v.groupUnknown, v.groupUnread = &groupRef{"g", "8"}, true, true }},
			doStatus, ReasonDeletePending, "does not say"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { tt.run(t, false) })
	}
}

// takeGroup has the driver report the group snapshot and a member of each volume.
func takeGroup(v *view) {
	taken(v)
	for i, s := range v.sources {
		v.members = append(v.members, member{info: groupv1.VolumeSnapshotInfo{VolumeHandle: "vol-" + s.name, SnapshotHandle: "snap-" + s.name}, source: v.sources[i]})
	}
}

// completeMembers gives the members their objects.
func completeMembers(v *view) {
	for i := range v.members {
		m := &v.members[i]
		m.snapshot = v.memberSnapshot(*m)
		m.content = contentOfSnapshot(encodeSnapshotContent(v.memberContent(*m)))
		m.content.ref.UID, m.content.status = "5", &contentStatus{handle: m.info.SnapshotHandle}
	}
}

// removeGroup deletes the group snapshot, which has members.
func removeGroup(v *view) {
	takeGroup(v)
	v.owner.SetDeletionTimestamp(new(metav1.Now()))
	for _, m := range v.members {
		v.snapshots = append(v.snapshots, v.memberSnapshot(m))
	}
}

func TestPlanGroup(t *testing.T) {
	first := func(change func(m *member)) change { return func(v *view) { change(&v.members[0]) } }
	refused := func(v *view) { v.members, v.memberRefused = v.members[1:], true }
	claimB := func(change func(claim *corev1.PersistentVolumeClaim)) change {
		return func(v *view) { change(v.sources[1].claim) }
	}
	tests := map[string]planned{
		"BadSelector": {"the selector cannot be read", []change{func(v *view) { v.selectorErr = errors.New("bad operator") }}, doStatus, ReasonValidation, "bad operator"},
		"NoClaims":    {"S22: nothing matches, which is not everything", []change{func(v *view) { v.sources = nil }}, doStatus, ReasonContentCreationFailed, "matches no"},
		"TwoDrivers":  {"S24: one driver cannot know the volume of another", []change{func(v *view) { v.sources[1].volume.Spec.CSI.Driver = "e" }}, doStatus, ReasonValidation, `"e"`},
		"Terminating": {"13: another finalizer holds the claim as long as its pod runs", []change{protect, claimB(func(claim *corev1.PersistentVolumeClaim) { claim.DeletionTimestamp = new(metav1.Now()) })},
			doCreate, "", ""},

		"Member":        {"members come before the status", []change{takeGroup}, doMember, "", ""},
		"MemberContent": {"the content of a member is missing", []change{takeGroup, completeMembers, first(func(m *member) { m.content = nil })}, doMember, "", ""},
		"MemberUID":     {"the content of a member is not bound", []change{takeGroup, completeMembers, first(func(m *member) { m.content.ref.UID = "" })}, doMember, "", ""},
		"MemberStatus":  {"the content of a member does not name the snapshot", []change{takeGroup, completeMembers, first(func(m *member) { m.content.status = nil })}, doMember, "", ""},
		"MemberGoes": {"a member that users delete is not created again", []change{takeGroup, completeMembers, first(func(m *member) {
			m.content, m.snapshot.DeletionTimestamp = nil, new(metav1.Now())
		})}, doStatus, ReasonReady, "ns/s"},
		"NoHandle": {"2: the driver has not said which snapshot it is", []change{takeGroup, first(func(m *member) { m.info.SnapshotHandle = "" })},
			doStatus, ReasonCreateContentFailed, "no handle"},
		"Refused": {"19: the other members are made all the same", []change{takeGroup, refused}, doMember, "", ""},
		"OneLeft": {"but the group is not ready without it", []change{takeGroup, completeMembers, refused}, doNothing, "", ""},
		"Ready":   {"all is there", []change{takeGroup, completeMembers}, doStatus, ReasonReady, "ns/s"},
		"S23": {"members of a group that was ready are not looked at again", []change{takeGroup, func(v *view) { v.owner.status = v.copiedStatus() }},
			doNothing, "", ""},

		"DeleteMembers": {"members are deleted before the content is gone", []change{removeGroup, mark, terminating}, doDeleteMember, "", ""},
		"LastMember":    {"one of them is being deleted", []change{removeGroup, mark, terminating, func(v *view) { v.snapshots[0].DeletionTimestamp = new(metav1.Now()) }}, doDeleteMember, "", ""},
		"Await": {"then the content is awaited", []change{removeGroup, mark, terminating, func(v *view) { v.snapshots = nil }},
			doNothing, "", ""},
		"RetainMembers": {"the content stays, the members go", []change{removeGroup, mark, retain}, doDeleteMember, "", ""},
		"GoneMembers":   {"the content is gone, the members are not", []change{removeGroup, gone}, doDeleteMember, "", ""},

		// Two things are wrong at a time.
		"TerminatingUnbound": {"one claim goes, the other has no volume", []change{protect, func(v *view) {
			v.sources[0].claim.DeletionTimestamp, v.sources[1].claim.Status.Phase = new(metav1.Now()), corev1.ClaimPending
		}}, doStatus, ReasonContentCreationFailed, "ns/b is not yet bound"},
		"TwoDriversNoClass":      {"the class comes first: it says which driver is meant", []change{func(v *view) { v.sources[1].volume.Spec.CSI.Driver, v.named = "e", nil }}, doStatus, ReasonClassFailed, `"fast"`},
		"MisboundLacks":          {"no member is made for a content of another group", []change{takeGroup, foreign}, doStatus, ReasonMisbound, "uid 9"},
		"FailedLacks":            {"members come before the error", []change{takeGroup, func(v *view) { v.content.status.err = &snapshotv1.VolumeSnapshotError{} }}, doMember, "", ""},
		"RefusedNoHandle":        {"one is refused, the other has no handle", []change{takeGroup, refused, first(func(m *member) { m.info.SnapshotHandle = "" })}, doStatus, ReasonCreateContentFailed, "no handle"},
		"InUseNodeGone":          {"a restore comes before the node", []change{removeGroup, func(v *view) { v.inUse, v.node = "ns/r reads it", "n" }}, doStatus, ReasonDeletePending, "ns/r"},
		"NodeGoneFailed":         {"the node comes before the error", []change{removeGroup, mark, terminating, failed(new("quota")), func(v *view) { v.node = "n" }}, doPatchContent, "", ""},
		"MembersFailed":          {"members come before the error of the deletion", []change{removeGroup, mark, terminating, failed(new("in use"))}, doDeleteMember, "", ""},
		"UnansweredWithMembers":  {"a content may come, members are there", []change{removeGroup, gone, func(v *view) { v.unanswered = time.Second }}, doNothing, "", ""},
		"RetainedForeignMembers": {"the content is another group's, and stays", []change{removeGroup, foreign, retain}, doDeleteMember, "", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) { tt.run(t, true) })
	}
}

// TestAdoptMarked: the mark of a former owner's deletion goes when another one is bound, which lives.
func TestAdoptMarked(t *testing.T) {
	for _, group := range []bool{false, true} {
		v := testView(group, preProvision, mark, func(v *view) { v.content.ref.UID = "" })
		metadata, _ := v.plan().contentPatch["metadata"].(map[string]any)
		if diff := cmp.Diff(map[string]any{v.beingDeleted: nil}, metadata["annotations"]); diff != "" {
			t.Errorf("%s: annotations -want +got\n%s", v.what, diff)
		}
	}
}

// TestNewContent looks at the whole content of a group snapshot.
func TestNewContent(t *testing.T) {
	v := testView(true, func(v *view) {
		v.node = "n"
		v.named.parameters = map[string]string{
			snapshotapi.ParamGroupSecretName: "${volumegroupsnapshot.name}", snapshotapi.ParamGroupSecretNamespace: "${volumegroupsnapshot.namespace}",
		}
	})
	class, made, err := v.newContent()
	if err != nil || class != v.named {
		t.Fatalf("class %v, error %v", class, err)
	}
	want := &groupv1.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: "groupsnapcontent-1", Finalizers: []string{snapshotapi.FinalizerGroupContent}, Labels: map[string]string{snapshotapi.LabelManagedBy: "n"},
			Annotations: map[string]string{snapshotapi.AnnGroupDeletionSecretName: "s", snapshotapi.AnnGroupDeletionSecretNamespace: "ns"},
		},
		Spec: groupv1.VolumeGroupSnapshotContentSpec{
			VolumeGroupSnapshotRef: corev1.ObjectReference{Kind: "VolumeGroupSnapshot", APIVersion: "groupsnapshot.storage.k8s.io/v1", Namespace: "ns", Name: "s", UID: "1"},
			DeletionPolicy:         "Delete", Driver: "d", VolumeGroupSnapshotClassName: new("fast"),
			Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"vol-a", "vol-b"}},
		},
	}
	if diff := cmp.Diff(want, encodeGroupContent(made)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestMember looks at the objects of a member.
func TestMember(t *testing.T) {
	v := testView(true, takeGroup)
	v.groupVersion, v.sourceVolumeMode = "v1beta2", true
	v.content.SetLabels(map[string]string{snapshotapi.LabelManagedBy: "n"})
	v.content.SetAnnotations(map[string]string{snapshotapi.AnnGroupDeletionSecretName: "s", snapshotapi.AnnGroupDeletionSecretNamespace: "ns"})
	m := v.members[0]
	m.source.volume.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	m.info.CreationTime, m.info.RestoreSize = new(int64(7)), new(int64(0))

	m.snapshot = v.memberSnapshot(m)
	wantSnapshot := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: snapshotapi.MemberSnapshotName("1", "vol-a"),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "groupsnapshot.storage.k8s.io/v1beta2", Kind: "VolumeGroupSnapshot", Name: "s", UID: "1"}},
			Finalizers:      []string{snapshotapi.FinalizerInGroup, snapshotapi.FinalizerAsSource, snapshotapi.FinalizerBound},
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
	if diff := cmp.Diff(wantContent, encodeSnapshotContent(v.memberContent(m))); diff != "" {
		t.Errorf("content: -want +got\n%s", diff)
	}
	wantStatus := map[string]any{"snapshotHandle": "snap-a", "volumeGroupSnapshotHandle": "h", "readyToUse": false, "creationTime": int64(7), "restoreSize": int64(0)}
	if diff := cmp.Diff(wantStatus, v.memberStatus(m)); diff != "" {
		t.Errorf("status: -want +got\n%s", diff)
	}
	m.source.claim.Namespace = "other" // whose claim is none of the group's
	if got := v.memberSnapshot(m); *got.Spec.Source.PersistentVolumeClaimName != "" {
		t.Errorf("the claim is %q", *got.Spec.Source.PersistentVolumeClaimName)
	}
}

func TestIsOpen(t *testing.T) {
	tests := map[string]struct {
		reason   string
		change   change
		deleting bool // the claim
		want     bool
	}{
		"New":          {"the driver will be asked", bind, true, true},
		"Taken":        {"the outcome is known", func(v *view) { v.content.status = &contentStatus{handle: "x"} }, false, false},
		"Refused":      {"it is tried again", failed(nil), false, true},
		"RefusedClaim": {"a claim is not held by what fails", failed(nil), true, false},
		"Uncertain": {"the driver may be taking it", func(v *view) {
			failed(nil)(v)
			annotate(v.beingCreated)(v)
		}, true, true},
		"Member": {"the group counts", annotate(snapshotapi.AnnVolumeGroupSnapshotHandle), false, false},
	}
	for name, tt := range tests {
		for _, group := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				v := testView(group, bind, tt.change)
				if got := v.content.isOpen(v.kind, tt.deleting); got != tt.want {
					t.Errorf("%s: got %v", tt.reason, got)
				}
			})
		}
	}
}

func TestCause(t *testing.T) {
	const a, b = `rpc error: code = Internal desc = volume "v1" busy, request 7f3a`, `rpc error: code = Internal desc = volume "v1" busy, request 8b21`
	if cause(a) != cause(b) {
		t.Error("an ID is no other cause")
	}
	if cause(a) == cause(strings.Replace(a, "v1", "v2", 1)) {
		t.Error("another volume is another cause")
	}
}
