package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/longshore-csi/longshore/csikit/snapshotapi"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/snapshotapitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stage is a cluster in memory: what is applied runs at once, on the node that the stage directions name.
type stage struct {
	client *fake.Clientset
	// kinds has snapshots, which are ready at once, unless unready.
	kinds     *kubetest.Cluster
	snapshots snapshotapi.Client
	unready   bool
	// nodeOf says where a pod runs; pods that it does not know stay pending.
	nodeOf map[string]string
	// sticky is an object kind that never goes away.
	sticky string
}

func (s *stage) Apply(ctx context.Context, objects ...*unstructured.Unstructured) error {
	for _, o := range objects {
		switch o.GetKind() {
		case "Pod":
			s.pod(ctx, o.GetName())
		case "PersistentVolumeClaim":
			s.claim(ctx, o.GetName())
		case "VolumeSnapshot":
			if err := s.snapshot(ctx, o.GetName()); err != nil {
				return err
			}
		case "StatefulSet":
			for _, name := range []string{"spread-0", "spread-1", "spread-2"} {
				s.pod(ctx, name)
			}
		}
	}
	return nil
}

func (s *stage) pod(ctx context.Context, name string) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: "uid-of-" + "pod"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	if node := s.nodeOf[name]; node != "" {
		pod.Spec.NodeName, pod.Status.Phase = node, corev1.PodRunning
	}
	_ = s.client.Tracker().Add(pod)
}

func (s *stage) claim(_ context.Context, name string) {
	_ = s.client.Tracker().Add(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name}})
	_ = s.client.Tracker().Add(volume("pv-" + name))
}

func (s *stage) Delete(ctx context.Context, _ ...*unstructured.Unstructured) error {
	everything := metav1.ListOptions{}
	now := metav1.DeleteOptions{}
	core := s.client.CoreV1()
	pods, _ := core.Pods(namespace).List(ctx, everything)
	for _, p := range pods.Items {
		_ = core.Pods(namespace).Delete(ctx, p.Name, now)
	}
	claims, _ := core.PersistentVolumeClaims(namespace).List(ctx, everything)
	for _, c := range claims.Items {
		_ = core.PersistentVolumeClaims(namespace).Delete(ctx, c.Name, now)
	}
	if list, err := s.snapshots.VolumeSnapshots(namespace).List(ctx, everything); err == nil {
		for _, o := range list.Items {
			_ = s.snapshots.VolumeSnapshots(namespace).Delete(ctx, o.Name, now)
		}
	}
	volumes, _ := core.PersistentVolumes().List(ctx, everything)
	for _, v := range volumes.Items {
		if s.sticky != "volume" {
			_ = core.PersistentVolumes().Delete(ctx, v.Name, now)
		}
	}
	return nil
}

// expands has every claim get what it asks for.
func (s *stage) expands(t *testing.T) {
	s.client.PrependReactor("patch", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		claim, err := s.client.Tracker().Get(action.GetResource(), namespace, action.(clienttesting.PatchAction).GetName())
		if err != nil {
			t.Error(err)
			return true, nil, err
		}
		grown := claim.(*corev1.PersistentVolumeClaim).DeepCopy()
		if err := json.Unmarshal(action.(clienttesting.PatchAction).GetPatch(), grown); err != nil {
			t.Error(err)
		}
		grown.Status.Capacity = grown.Spec.Resources.Requests
		return true, grown, s.client.Tracker().Update(action.GetResource(), grown, namespace)
	})
}

func volume(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{VolumeHandle: "handle-of-" + name}},
	}}
}

// newTestShow makes a show on a stage, without narration.
func newTestShow(t *testing.T, nodeOf map[string]string, objects ...runtime.Object) (*show, *stage, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	client := fake.NewClientset(objects...)
	kinds := kubetest.New()
	snapshotapitest.Install(kinds)
	on := &stage{client: client, kinds: kinds, snapshots: snapshotapitest.New(kinds), nodeOf: nodeOf}
	n := &narrator{out: &out, start: time.Now(), last: map[string]string{}}
	return &show{Config: Config{Examples: "../../../examples", Out: &out}, client: client, snapshots: on.snapshots, apply: on, narrator: n}, on, &out
}

func allNodes() map[string]string {
	return map[string]string{"writer": "n1", "scratch": "n1", "spread-0": "n1", "spread-1": "n2", "spread-2": "n3", "user": "n1", "reader": "n2"}
}

func TestAllActsOnAClusterWhoseDisksAreElsewhere(t *testing.T) {
	s, on, out := newTestShow(t, allNodes())
	on.expands(t)
	for _, act := range []func(context.Context) error{s.claim, s.inline, s.statefulSet, s.expand, s.snapshot, s.restore, s.cleanUp} {
		if err := act(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"1. A claim", "2. An ephemeral volume", "3. A StatefulSet", "on a node of its own", "4. A volume that grows", "asks for 448Mi", "5. A snapshot", "6. A claim that is made", "7. Everything", "no volume, no attachment, no snapshot.\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out.String(), "no directory") || strings.Contains(out.String(), "file system that the pod sees") || strings.Contains(out.String(), "still in use") {
		t.Errorf("it tells of disks that it has not seen:\n%s", out)
	}
}

// TestExpansionThatDoesNotHappen has a claim that stays as it is, and a file system that does not grow with its claim.
func TestExpansionThatDoesNotHappen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, out := newTestShow(t, allNodes())
		err := s.expand(t.Context())
		if want := "wait for claim grows to have 448Mi: claim grows: "; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if strings.Contains(out.String(), "still mounted") {
			t.Errorf("it says\n%s", out)
		}
	})
	s, on, out := newTestShow(t, allNodes())
	on.expands(t)
	base := t.TempDir()
	t.Setenv("PATH", base)
	s.NodeDir = func(node string) string { return filepath.Join(base, node) }
	if err := s.expand(t.Context()); err != nil || !strings.Contains(out.String(), "no mkfs.xfs (package xfsprogs)") || len(on.client.Actions()) > 0 {
		t.Errorf("without the program: %v, %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(base, "mkfs.xfs"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.expand(t.Context()); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "size of the file system in "+base) {
		t.Errorf("got %v", err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "user", UID: "uid-of-pod"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	if err := os.MkdirAll(s.target(pod, "pv-grows"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.expand(t.Context()); err == nil || !strings.Contains(err.Error(), "the file system of pod user had") {
		t.Errorf("got %v", err)
	}
}

func TestReplicasThatShareANodeAreAnError(t *testing.T) {
	nodes := allNodes()
	nodes["spread-2"] = "n1"
	s, _, _ := newTestShow(t, nodes)
	if err := s.statefulSet(t.Context()); err == nil || !strings.Contains(err.Error(), "spread-0 and spread-2 share the node n1") {
		t.Errorf("got %v", err)
	}
}

func TestPodThatNeverRunsEndsTheAct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := newTestShow(t, nil)
		began := time.Now()
		err := s.inline(t.Context())
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "wait for pod scratch to run: pod scratch: Pending") {
			t.Errorf("got %v", err)
		}
		if waited := time.Since(began); waited != stepTimeout {
			t.Errorf("waited %s, want %s", waited, stepTimeout)
		}
	})
}

func TestWaitRunningPassesOverWhatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, on, _ := newTestShow(t, map[string]string{"late": "n1"})
		failures := 2
		on.client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if failures--; failures >= 0 {
				return true, nil, errors.New("the server is busy")
			}
			return false, nil, nil
		})
		done := make(chan error, 1)
		go func() {
			pod, err := s.waitRunning(t.Context(), "late")
			if err == nil && pod.Spec.NodeName != "n1" {
				err = errors.New("on " + pod.Spec.NodeName)
			}
			done <- err
		}()
		synctest.Wait()
		on.pod(t.Context(), "late")
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestWaitTellsTheLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, _ := newTestShow(t, nil)
		broken := errors.New("no route")
		err := s.wait(t.Context(), "a miracle", func(context.Context) (string, error) { return "", broken })
		if !errors.Is(err, broken) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "wait for a miracle") {
			t.Errorf("got %v", err)
		}
	})
}

func TestLeftNamesEveryKind(t *testing.T) {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: namespace} }
	state := t.TempDir()
	for _, dir := range []string{"volumes/v1", "nodes/n1/volumes/e1", "elsewhere/x"} {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s, on, _ := newTestShow(t, nil,
		&corev1.Pod{ObjectMeta: meta("p")}, &corev1.PersistentVolumeClaim{ObjectMeta: meta("c")}, volume("v"),
		&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "kube-system"}},
	)
	s.StateDir, s.Dir = state, state
	got, err := s.left(t.Context())
	want := []string{"pod p", "claim c", "volume v", "attachment a", filepath.Join(state, "volumes/v1"), filepath.Join(state, "nodes/n1/volumes/e1")}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	on.client.PrependReactor("list", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("forbidden here")
	})
	if _, err := s.left(t.Context()); err == nil || !strings.Contains(err.Error(), "look for what is left: forbidden here") {
		t.Errorf("got %v", err)
	}
}

// TestCleanUpDoesNotEndWhileSomethingIsLeft: the demo must not say that nothing is left when a volume is.
func TestCleanUpDoesNotEndWhileSomethingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, on, out := newTestShow(t, allNodes())
		if err := s.claim(t.Context()); err != nil {
			t.Fatal(err)
		}
		on.sticky = "volume"
		err := s.cleanUp(t.Context())
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "volume pv-data") || strings.Contains(err.Error(), "claim data") {
			t.Errorf("got %v", err)
		}
		if strings.Contains(out.String(), "Nothing is left") {
			t.Errorf("it says\n%s", out)
		}
	})
}

func TestShowBytes(t *testing.T) {
	tests := map[string]struct {
		reason string
		// link makes the pod's path lead into this directory of the driver, as a mount does; empty: no path at all.
		link   string
		handle string
		want   string
	}{
		"Mounted":     {reason: "the bytes lie in the directory of the volume", link: "volumes/handle-1", handle: "handle-1"},
		"Ephemeral":   {reason: "an inline volume has no handle to compare", link: "nodes/n1/ephemeral/x"},
		"OtherVolume": {reason: "the bytes of one volume in another are a disaster", link: "volumes/handle-2", handle: "handle-1", want: `the bytes of volume "handle-1" lie in`},
		"NotMounted":  {reason: "a plain directory in the place of the mount", link: "../outside", handle: "handle-1", want: "not a mount of the volume"},
		"NoPath":      {reason: "a pod that runs without its path", want: "write through the pod's target path"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			s, _, out := newTestShow(t, nil)
			s.StateDir = filepath.Join(base, "data")
			s.NodeDir = func(node string) string { return filepath.Join(base, node) }
			volumes := filepath.Join(base, "n1", "pods", "u", "volumes", "kubernetes.io~csi", "v")
			for _, dir := range []string{volumes, s.StateDir, filepath.Join(s.StateDir, tc.link)} {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if tc.link != "" {
				if err := os.Symlink(filepath.Join(s.StateDir, tc.link), filepath.Join(volumes, "mount")); err != nil {
					t.Fatal(err)
				}
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: corev1.PodSpec{NodeName: "n1"}}
			err := s.showBytes(pod, "v", tc.handle)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
				}
				return
			}
			if err != nil || !strings.Contains(out.String(), filepath.Join(s.StateDir, tc.link, "hello")) {
				t.Errorf("%s: %v\n%s", tc.reason, err, out)
			}
		})
	}
}

func TestNarratorWatchesTheCluster(t *testing.T) {
	out := &syncBuffer{}
	earlier := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "earlier", Namespace: namespace}}
	client := fake.NewClientset(earlier)
	// The cluster in memory does not tell a watcher what has happened since its list, so the watch must be there first.
	watched := make(chan struct{})
	tell := sync.OnceFunc(func() { close(watched) })
	client.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
		defer tell()
		w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		return true, w, err
	})
	ctx, cancel := context.WithCancel(t.Context())
	n, err := narrate(ctx, client, nil, out)
	if err != nil {
		t.Fatal(err)
	}
	<-watched
	for _, obj := range []*corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Name: "ours", Namespace: namespace}},
		{ObjectMeta: metav1.ObjectMeta{Name: "theirs", Namespace: "kube-system"}},
	} {
		if _, err := client.CoreV1().Pods(obj.Namespace).Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.CoreV1().Pods(namespace).Delete(t.Context(), "ours", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	out.waitFor(t, "pod ours is gone")
	cancel()
	n.stop()
	if got := out.String(); !strings.Contains(got, "pod ours: Pending") || strings.Contains(got, "theirs") || strings.Contains(got, "earlier") {
		t.Errorf("told\n%s", got)
	}
}

func TestNarratorThatCannotWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := narrate(ctx, fake.NewClientset(), nil, &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestLeftNamesMounts: a volume that is still mounted somewhere below the cluster's directory is left.
func TestLeftNamesMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a mount")
	}
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(target, target, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	s, _, _ := newTestShow(t, nil)
	s.StateDir, s.Dir = filepath.Join(dir, "data"), dir
	if got, err := s.left(t.Context()); err != nil || !slices.Equal(got, []string{target}) {
		t.Errorf("got %q, %v", got, err)
	}
}
