package controller

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

// answers is a driver with fixed answers, such as no driver should give.
type answers struct {
	csi.ControllerClient
	create *csi.CreateSnapshotResponse
	list   *csi.ListSnapshotsResponse
}

// CreateSnapshot implements csi.ControllerClient.
func (a answers) CreateSnapshot(context.Context, *csi.CreateSnapshotRequest, ...grpc.CallOption) (*csi.CreateSnapshotResponse, error) {
	return a.create, nil
}

// ListSnapshots implements csi.ControllerClient.
func (a answers) ListSnapshots(context.Context, *csi.ListSnapshotsRequest, ...grpc.CallOption) (*csi.ListSnapshotsResponse, error) {
	return a.list, nil
}

func entries(snapshots ...*csi.Snapshot) *csi.ListSnapshotsResponse {
	reply := &csi.ListSnapshotsResponse{}
	for _, s := range snapshots {
		reply.Entries = append(reply.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: s})
	}
	return reply
}

// TestAnswers survives answers that lack what is required, and believes no other (S25, S28; entry 0 of ListSnapshots unchecked).
func TestAnswers(t *testing.T) {
	epoch := &timestamppb.Timestamp{}
	tests := map[string]struct {
		reason string
		driver answers
		given  bool
		// handle, ready and error are those of the status, marked whether the attempt may still be in progress.
		handle, err string
		ready       bool
		marked      bool
	}{
		"NoSnapshot":  {reason: "S25: nil in the answer; there may be a snapshot", driver: answers{create: &csi.CreateSnapshotResponse{}}, err: "without the handle", marked: true},
		"NoReply":     {reason: "S25: nil", driver: answers{}, err: "without the handle", marked: true},
		"NoID":        {reason: "a snapshot without a handle", driver: answers{create: &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{ReadyToUse: true}}}, err: "without the handle", marked: true},
		"Epoch":       {reason: "S25: 0 is no time", driver: answers{create: &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{SnapshotId: "s", ReadyToUse: true, CreationTime: epoch}}}, handle: "s", ready: true},
		"Listed":      {reason: "the entry is found by its handle", given: true, driver: answers{list: entries(&csi.Snapshot{SnapshotId: "other"}, &csi.Snapshot{SnapshotId: "old", ReadyToUse: true})}, handle: "old", ready: true},
		"Others":      {reason: "a list of other snapshots", given: true, driver: answers{list: entries(&csi.Snapshot{SnapshotId: "other", ReadyToUse: true})}, err: `lists no snapshot "old"`},
		"NilEntry":    {reason: "S28: an entry without a snapshot", given: true, driver: answers{list: entries(nil)}, err: `lists no snapshot "old"`},
		"NothingElse": {reason: "S28: nil", given: true, driver: answers{}, err: `lists no snapshot "old"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				content := askAgainst(t, tt.driver, tt.given)
				s := *content.Status
				message := ""
				if s.Error != nil {
					message = valueOf(s.Error.Message)
				}
				if valueOf(s.SnapshotHandle) != tt.handle || valueOf(s.ReadyToUse) != tt.ready || !strings.Contains(message, tt.err) || (message == "") != (tt.err == "") {
					t.Errorf("%s: status %q, ready %v, error %q", tt.reason, valueOf(s.SnapshotHandle), valueOf(s.ReadyToUse), message)
				}
				if _, marked := content.Annotations[snapshotapi.AnnBeingCreated]; marked != tt.marked {
					t.Errorf("%s: being-created is %v", tt.reason, marked)
				}
				if tt.handle != "" && time.Since(time.Unix(0, valueOf(s.CreationTime))) > time.Hour {
					t.Errorf("%s: creation time %d", tt.reason, valueOf(s.CreationTime))
				}
			})
		})
	}
}

// groupAnswer is a driver that answers about a group snapshot with these members, however it is asked.
type groupAnswer struct {
	csi.GroupControllerClient
	members []*csi.Snapshot
}

// CreateVolumeGroupSnapshot implements csi.GroupControllerClient.
func (a groupAnswer) CreateVolumeGroupSnapshot(context.Context, *csi.CreateVolumeGroupSnapshotRequest, ...grpc.CallOption) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: &csi.VolumeGroupSnapshot{GroupSnapshotId: "g", ReadyToUse: true, Snapshots: a.members}}, nil
}

// TestPartialGroup asks for a group snapshot of two volumes: an answer that lacks one, or has another, is not ready, and says why. What was taken is recorded, so that
// it can be deleted; nothing of a volume that was not asked for becomes a VolumeSnapshot.
func TestPartialGroup(t *testing.T) {
	of := func(id, volume string) *csi.Snapshot {
		return &csi.Snapshot{SnapshotId: id, SourceVolumeId: volume, ReadyToUse: true}
	}
	tests := map[string]struct {
		members []*csi.Snapshot
		err     string
		infos   []string
	}{
		"Whole":    {members: []*csi.Snapshot{of("s1", "vol-1"), of("s2", "vol-2")}, infos: []string{"s1", "s2"}},
		"OneOfTwo": {members: []*csi.Snapshot{of("s1", "vol-1")}, err: `0 snapshots of volume "vol-2"`, infos: []string{"s1"}},
		"None":     {err: `0 snapshots of volume "vol-1"`},
		"Foreign":  {members: []*csi.Snapshot{of("s1", "vol-1"), of("s2", "vol-2"), of("s9", "vol-9")}, err: `"vol-9", of which none was asked for`, infos: []string{"s1", "s2"}},
		"Twice":    {members: []*csi.Snapshot{of("s1", "vol-1"), of("s2", "vol-2"), of("s3", "vol-2")}, err: `2 snapshots of volume "vol-2"`, infos: []string{"s1", "s2", "s3"}},
		"NoID":     {members: []*csi.Snapshot{of("s1", "vol-1"), of("", "vol-2")}, err: `without the handle of the snapshot of volume "vol-2"`, infos: []string{"s1"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := kubetest.New()
				snapshotapitest.Install(cluster)
				if err := cluster.Apply(&groupv1.VolumeGroupSnapshotContent{
					ObjectMeta: metav1.ObjectMeta{Name: "c", Finalizers: []string{snapshotapi.FinalizerGroupContent}},
					Spec: groupv1.VolumeGroupSnapshotContentSpec{
						Driver: "d", DeletionPolicy: "Delete", VolumeGroupSnapshotClassName: new("fast"), Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"vol-1", "vol-2"}},
						VolumeGroupSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "backup", UID: "u"},
					},
				}, &groupv1.VolumeGroupSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: "d", DeletionPolicy: "Delete"}); err != nil {
					t.Fatal(err)
				}
				client := snapshotapitest.New(cluster)
				run(t, New(Config{
					Driver: "d", Snapshots: client, CSI: answers{}, GroupCSI: groupAnswer{members: tt.members}, Groups: true,
					Features: func() Features { return Features{Create: true, List: true, Groups: true} },
					Events:   events.Discard{}, Secrets: kube.NewSecretCache(cluster.Client(), nil), Workers: 1, Retry: flagset.Retry{Start: time.Hour, Max: time.Hour},
					Timeout: time.Second, KubeTimeout: time.Second, GroupNames: Naming{Prefix: "groupsnapshot", UUIDLength: WholeUUID},
				}), 2*time.Minute)
				content, err := client.VolumeGroupSnapshotContents().Get(t.Context(), "c", metav1.GetOptions{})
				if err != nil || content.Status == nil {
					t.Fatalf("content %+v, %v", content, err)
				}
				status, message, infos := content.Status, "", []string(nil)
				if status.Error != nil {
					message = valueOf(status.Error.Message)
				}
				for _, info := range status.VolumeSnapshotInfoList {
					infos = append(infos, info.SnapshotHandle)
				}
				if valueOf(status.VolumeGroupSnapshotHandle) != "g" || valueOf(status.ReadyToUse) != (tt.err == "") || !strings.Contains(message, tt.err) || (message == "") != (tt.err == "") {
					t.Errorf("handle %q, ready %v, error %q; want error %q", valueOf(status.VolumeGroupSnapshotHandle), valueOf(status.ReadyToUse), message, tt.err)
				}
				if !slices.Equal(infos, tt.infos) {
					t.Errorf("members %q, want %q", infos, tt.infos)
				}
			})
		})
	}
}

// run runs a controller for a while.
func run(t *testing.T, c *Controller, long time.Duration) {
	t.Helper()
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	<-time.After(long)
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// askAgainst has a driver take a snapshot, or asks it about one, and returns the content after that.
func askAgainst(t *testing.T, driver answers, given bool) *snapshotv1.VolumeSnapshotContent {
	t.Helper()
	cluster := kubetest.New()
	snapshotapitest.Install(cluster)
	content := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "c", Finalizers: []string{snapshotapi.FinalizerContent}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: "d", DeletionPolicy: "Delete", VolumeSnapshotClassName: new("fast"), Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: new("vol")},
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "backup", UID: "u"},
		},
	}
	if given {
		content.Spec.Source = snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: new("old")}
	}
	class := &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: "d", DeletionPolicy: "Delete"}
	if err := cluster.Apply(content, class); err != nil {
		t.Fatal(err)
	}
	client := snapshotapitest.New(cluster)
	run(t, New(Config{
		Driver: "d", Snapshots: client, CSI: driver, Features: func() Features { return Features{Create: true, List: true} },
		Events: events.Discard{}, Secrets: kube.NewSecretCache(cluster.Client(), nil), Workers: 1, Retry: flagset.Retry{Start: time.Hour, Max: time.Hour},
		Timeout: time.Second, KubeTimeout: time.Second, SnapshotNames: Naming{Prefix: "snapshot", UUIDLength: WholeUUID},
	}), time.Minute)
	content, err := client.VolumeSnapshotContents().Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if content.Status == nil {
		t.Fatal("the content has no status")
	}
	return content
}
