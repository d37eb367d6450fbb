package demo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
)

// snapshot takes a snapshot of a claim.
func (s *stage) snapshot(ctx context.Context, name string) error {
	client := s.snapshots.VolumeSnapshots(namespace)
	made, err := client.Create(ctx, &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: new("data")}},
	}, metav1.CreateOptions{})
	if err != nil || s.unready {
		return err
	}
	made.Status = &snapshotv1.VolumeSnapshotStatus{ReadyToUse: new(true)}
	_, err = client.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}

// newSnapshotShow makes a show whose first act is over: a pod has the volume of claim data.
func newSnapshotShow(t *testing.T) (*show, *stage, func() string) {
	t.Helper()
	s, on, out := newTestShow(t, allNodes())
	on.pod(t.Context(), "writer")
	on.claim(t.Context(), "data")
	return s, on, out.String
}

// disks gives each pod its volume on this machine, with the contents.
func disks(t *testing.T, s *show, contents map[string]string) (file func(claim string) string) {
	t.Helper()
	base := t.TempDir()
	s.NodeDir = func(node string) string { return filepath.Join(base, node) }
	file = func(claim string) string {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid-of-pod"}, Spec: corev1.PodSpec{NodeName: map[string]string{"data": "n1", "restored": "n2"}[claim]}}
		return filepath.Join(s.target(pod, "pv-"+claim), "hello")
	}
	for claim, text := range contents {
		if err := os.MkdirAll(filepath.Dir(file(claim)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file(claim), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

func TestSnapshotShowsBothContents(t *testing.T) {
	tests := map[string]struct {
		reason   string
		contents map[string]string
		want     string
	}{
		"Restored": {reason: "the former text is in the new volume", contents: map[string]string{"data": "before\n", "restored": "before\n"}},
		"Other": {
			reason: "a volume that has anything else is no copy of the snapshot", contents: map[string]string{"data": "before\n", "restored": "else\n"},
			want: `claim restored has "else" in `,
		},
		"Empty":  {reason: "nor is an empty one", contents: map[string]string{"data": "before\n"}, want: "read through the pod's target path"},
		"NoFile": {reason: "the pod of the first act has written nothing", want: "read through the pod's target path"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s, _, out := newSnapshotShow(t)
			file := disks(t, s, tc.contents)
			err := s.snapshot(t.Context())
			if err == nil {
				err = s.restore(t.Context())
			}
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{
				"claim data had when the snapshot was taken   before\nand has now, still in use                    changed after the snapshot\n",
				"claim restored has   before\nclaim data has       changed after the snapshot\n",
			} {
				if !strings.Contains(out(), want) {
					t.Errorf("%s: lacks %q:\n%s", tc.reason, want, out())
				}
			}
			if text, err := os.ReadFile(file("data")); err != nil || string(text) != "changed after the snapshot\n" {
				t.Errorf("claim data has %q, %v", text, err)
			}
		})
	}
}

func TestSnapshotThatIsNeverReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, on, _ := newSnapshotShow(t)
		on.unready = true
		err := s.snapshot(t.Context())
		if want := "wait for snapshot backup to be ready: snapshot backup: being taken"; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	})
}

// TestSnapshotIsLeftOut where the driver takes none, and where the cluster has no such kind.
func TestSnapshotIsLeftOut(t *testing.T) {
	for name, reason := range map[string]string{"Driver": "driver d does not announce CREATE_DELETE_SNAPSHOT", "Cluster": "the cluster has no VolumeSnapshots"} {
		t.Run(name, func(t *testing.T) {
			s, on, out := newSnapshotShow(t)
			on.kinds.SetServed(snapshotapi.Group, false)
			if name == "Driver" {
				s.NoSnapshots = reason
			}
			if err := s.findSnapshots(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, act := range []func(context.Context) error{s.snapshot, s.restore} {
				if err := act(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if want := "5. A snapshot of a volume in use: left out, as " + reason; !strings.Contains(out(), want) || strings.Contains(out(), "6.") {
				t.Errorf("want one line, %q:\n%s", want, out())
			}
			if left, err := s.leftSnapshots(t.Context()); err != nil || len(left) > 0 || s.watched() != nil {
				t.Errorf("it looks for snapshots: %q, %v", left, err)
			}
		})
	}
}

func TestSnapshotsThatAreLeft(t *testing.T) {
	s, on, _ := newSnapshotShow(t)
	if err := s.findSnapshots(t.Context()); err != nil || s.NoSnapshots != "" {
		t.Fatalf("%q, %v", s.NoSnapshots, err)
	}
	if err := on.snapshot(t.Context(), "monday"); err != nil {
		t.Fatal(err)
	}
	for _, of := range []string{namespace, "elsewhere"} {
		content := &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: "of-" + of}, Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: "d", DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: new("v")},
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: of, Name: "monday"},
		}}
		if _, err := s.snapshots.VolumeSnapshotContents().Create(t.Context(), content, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	left, err := s.leftSnapshots(t.Context())
	if diff := cmp.Diff([]string{"snapshot monday", "content of-" + namespace}, left); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

func TestNarratorFollowsSnapshots(t *testing.T) {
	_, on, _ := newSnapshotShow(t)
	if err := on.snapshot(t.Context(), "earlier"); err != nil {
		t.Fatal(err)
	}
	out := &syncBuffer{}
	ctx, cancel := context.WithCancel(t.Context())
	n, err := narrate(ctx, fake.NewClientset(), on.snapshots.VolumeSnapshots(namespace), out)
	if err != nil {
		t.Fatal(err)
	}
	if err := on.snapshot(t.Context(), "ours"); err != nil {
		t.Fatal(err)
	}
	out.waitFor(t, "snapshot ours: ready")
	if err := on.snapshots.VolumeSnapshots(namespace).Delete(t.Context(), "ours", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	out.waitFor(t, "snapshot ours is gone")
	cancel()
	n.stop()
	if got := out.String(); strings.Contains(got, "earlier") {
		t.Errorf("told\n%s", got)
	}
}

func TestDescribeSnapshot(t *testing.T) {
	content, text := "snapcontent-1", "no space"
	tests := map[string]struct {
		deleted bool
		status  *snapshotv1.VolumeSnapshotStatus
		want    string
	}{
		"New":     {want: "snapshot a: being taken"},
		"Ready":   {status: &snapshotv1.VolumeSnapshotStatus{ReadyToUse: new(true)}, want: "snapshot a: ready"},
		"Size":    {status: &snapshotv1.VolumeSnapshotStatus{ReadyToUse: new(true), RestoreSize: new(resource.MustParse("64Mi")), BoundVolumeSnapshotContentName: &content}, want: "snapshot a: ready, 64Mi, content snapcontent-1"},
		"Error":   {status: &snapshotv1.VolumeSnapshotStatus{Error: &snapshotv1.VolumeSnapshotError{Message: &text}}, want: "snapshot a: error: no space"},
		"Deleted": {deleted: true, want: "snapshot a: being deleted"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: tc.status}
			if tc.deleted {
				o.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			}
			if got := describe(o); got != tc.want || short(o) != "snapshot a" {
				t.Errorf("got %q of %q, want %q", got, short(o), tc.want)
			}
		})
	}
}
