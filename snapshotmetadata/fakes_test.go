package snapshotmetadata

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/snapshotmetadata/internal/kubeapi"
)

const (
	driverName = csitest.DefaultName
	audience   = "backup"
	goodUser   = "system:serviceaccount:backup:agent"
	goodToken  = "token-1234" // its user is goodUser
	otherToken = "token-5678"
	otherUser  = "system:serviceaccount:web:shop"
)

// reviewer decides as an API server: there are two tokens for the audience "backup". Only goodUser may get snapshots in the namespace "shop".
type reviewer struct {
	mu    sync.Mutex
	down  error // of all requests, if set
	asked []string
}

var _ kubeapi.Client = (*reviewer)(nil)

func (r *reviewer) note(verb, resource string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, resource+" "+verb)
	return r.down
}

func (r *reviewer) set(down error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

func (r *reviewer) used() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(r.asked)))
}

// Audience implements kubeapi.Client.
func (r *reviewer) Audience(_ context.Context, driver string) (string, error) {
	if err := r.note("get", kubeapi.Resource); err != nil {
		return "", err
	}
	if driver != driverName {
		return "", fmt.Errorf("no SnapshotMetadataService %q", driver)
	}
	return audience, nil
}

// ReviewToken implements kubeapi.Client.
func (r *reviewer) ReviewToken(_ context.Context, review *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	if err := r.note("create", "tokenreviews"); err != nil {
		return nil, err
	}
	out := review.DeepCopy()
	token, unaware := strings.CutSuffix(review.Spec.Token, "@api") // of an authenticator that knows no audiences
	user := map[string]string{goodToken: goodUser, otherToken: otherUser}[token]
	switch {
	case user == "":
		out.Status.Error = "token is expired"
	case unaware:
		out.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: user}}
	case slices.Contains(review.Spec.Audiences, audience):
		out.Status = authenticationv1.TokenReviewStatus{
			Authenticated: true, Audiences: []string{audience},
			User: authenticationv1.UserInfo{Username: user, Extra: map[string]authenticationv1.ExtraValue{"pod": {"backup"}}},
		}
	}
	return out, nil
}

// ReviewAccess implements kubeapi.Client.
func (r *reviewer) ReviewAccess(_ context.Context, review *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
	if err := r.note("create", "subjectaccessreviews"); err != nil {
		return nil, err
	}
	out, a := review.DeepCopy(), review.Spec.ResourceAttributes
	out.Status.Allowed = review.Spec.User == goodUser && a.Namespace == "shop" && a.Verb == "get" && a.Resource == "volumesnapshots" &&
		a.Group == "snapshot.storage.k8s.io" && a.Name != "" && len(review.Spec.Extra["pod"]) == 1
	return out, nil
}

// metadata is the SnapshotMetadata service of a driver, as the test says.
type metadata struct {
	csi.UnimplementedSnapshotMetadataServer

	mu        sync.Mutex
	allocated func(*csi.GetMetadataAllocatedRequest, csi.SnapshotMetadata_GetMetadataAllocatedServer) error
	delta     func(*csi.GetMetadataDeltaRequest, csi.SnapshotMetadata_GetMetadataDeltaServer) error
}

func (m *metadata) onAllocated(f func(*csi.GetMetadataAllocatedRequest, csi.SnapshotMetadata_GetMetadataAllocatedServer) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.allocated = f
}

// GetMetadataAllocated implements csi.SnapshotMetadataServer.
func (m *metadata) GetMetadataAllocated(req *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	m.mu.Lock()
	f := m.allocated
	m.mu.Unlock()
	return f(req, stream)
}

// GetMetadataDelta implements csi.SnapshotMetadataServer.
func (m *metadata) GetMetadataDelta(req *csi.GetMetadataDeltaRequest, stream csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	m.mu.Lock()
	f := m.delta
	m.mu.Unlock()
	return f(req, stream)
}

// newSocket returns a path for a driver's socket.
func newSocket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // the path of t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "s")
}

// withMetadata returns a driver that announces snapshot metadata.
func withMetadata() *csitest.Driver {
	return csitest.New(csitest.Options{Plugin: []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE}})
}

// serveDriver serves a driver with snapshot metadata on a socket until the test ends.
func serveDriver(t *testing.T, socket string, driver *csitest.Driver, m *metadata) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	driver.Register(server)
	csi.RegisterSnapshotMetadataServer(server, m)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// block is a range of 4 KiB.
func block(number int64) *csi.BlockMetadata {
	return &csi.BlockMetadata{ByteOffset: number << 12, SizeBytes: 1 << 12}
}

const capacity = 1 << 30

// allocated answers with the blocks of these numbers, each in a message of its own, from the starting offset on.
func allocated(numbers ...int64) func(*csi.GetMetadataAllocatedRequest, csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	return func(req *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
		for _, n := range numbers {
			if b := block(n); b.ByteOffset+b.SizeBytes > req.GetStartingOffset() {
				if err := stream.Send(&csi.GetMetadataAllocatedResponse{
					BlockMetadataType: csi.BlockMetadataType_FIXED_LENGTH, VolumeCapacityBytes: capacity, BlockMetadata: []*csi.BlockMetadata{b},
				}); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// testSnapshot returns a VolumeSnapshot in the namespace "shop" with its content, bound and ready. The handle is "handle-" and the name.
func testSnapshot(name string) (*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotContent) {
	vs := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid-1"},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: new("data")}},
		Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: new("content-" + name), ReadyToUse: new(true)},
	}
	content := &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "content-" + name},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: driverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
			Source:            snapshotv1.VolumeSnapshotContentSource{VolumeHandle: new("volume")},
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: "shop", Name: name, UID: vs.UID},
		},
		Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("handle-" + name), ReadyToUse: new(true)},
	}
	return vs, content
}

var errDown = io.ErrUnexpectedEOF
