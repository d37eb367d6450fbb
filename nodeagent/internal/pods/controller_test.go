package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/resolve"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a Controller with an API server in memory and volumes that do what the test says.
type bench struct {
	t   *testing.T
	api *kubetest.Cluster
	c   *Controller

	mu        sync.Mutex
	wants     []string // wished for, in order
	refreshed int
	published bool // what volumes that are wished for become
	busy      map[types.UID]bool
	stuck     bool // volumes cannot be taken down
	staged    bool // volumes that need no attachment cannot be unstaged
	statusErr error
	ignored   []volume.Unsupported // what the volume asks for
	counted   []string
	limited   bool // the volume limit of the node is exceeded
	problems  []*resolve.Problem
	resolves  int
	cleanErr  error
	log       []string // drops and cleanings, in order
	events    []string
	logged    strings.Builder // what an operator sees without -v
}

// Write implements io.Writer for the logger.
func (b *bench) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.logged.Write(line)
}

var _ Volumes = (*bench)(nil)

func (b *bench) Want(p volume.Publication) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wants = append(b.wants, p.SpecName)
	b.busy[p.Pod.UID] = true
}

func (b *bench) Refresh(volume.Publication) { b.set(func() { b.refreshed++ }) }

func (b *bench) Drop(p volume.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy[p.UID] && !b.stuck {
		b.log = append(b.log, "drop "+string(p.UID))
		delete(b.busy, p.UID)
	}
}

func (b *bench) Of(uid types.UID) []string {
	if b.Busy(uid) {
		return []string{"vol"}
	}
	return nil
}

func (b *bench) Unstaging(names []string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.staged {
		return names
	}
	return nil
}

func (b *bench) Busy(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.busy[uid]
}

func (b *bench) Status(string, volume.Key) (volume.Status, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return volume.Status{Published: b.published, Err: b.statusErr}, true
}

func (b *bench) Warning(_ runtime.Object, reason, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, reason+": "+message)
}

func (b *bench) resolve(_ context.Context, pod *corev1.Pod) ([]volume.Publication, []*resolve.Problem) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resolves++
	if len(b.problems) > 0 {
		return nil, b.problems
	}
	return []volume.Publication{{SpecName: "pv-1", PodVolumes: []string{"data"}, Unsupported: b.ignored, Pod: volume.Pod{UID: pod.UID}}}, nil
}

func (b *bench) limitExceeded(context.Context, *volume.Volume) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limited
}

func (b *bench) clean(uid types.UID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, "clean "+string(uid))
	return b.cleanErr
}

func (b *bench) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func scenario(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, api: kubetest.New(), busy: map[types.UID]bool{}}
		var err error
		b.c, err = New(Config{
			Pods: b.api.Client().Pods, Resolve: b.resolve, Volumes: b, Clean: b.clean, Events: b, HostIP: "10.0.0.1",
			LimitExceeded: b.limitExceeded,
			Unsupported:   func(feature string) { b.set(func() { b.counted = append(b.counted, feature) }) },
		})
		if err != nil {
			t.Fatal(err)
		}
		logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(b)))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		var wg sync.WaitGroup
		wg.Go(func() { _ = b.c.Run(ctx) })
		f(t, b)
		cancel()
		wg.Wait()
	})
}

// add creates a pod and shows it to the controller.
func (b *bench) add(pod *corev1.Pod) {
	b.t.Helper()
	if err := b.api.Apply(pod); err != nil {
		b.t.Fatal(err)
	}
	b.show()
}

// show tells the controller about the pod as it is now.
func (b *bench) show() {
	b.t.Helper()
	if pod := b.pod(); pod != nil {
		b.c.Changed(pod, pod)
	}
	synctest.Wait()
}

func (b *bench) pod() *corev1.Pod {
	b.t.Helper()
	p, err := b.api.Client().Pods("ns").Get(b.t.Context(), "a", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

func (b *bench) remove(grace int64) {
	b.t.Helper()
	if err := b.api.Client().Pods("ns").Delete(b.t.Context(), "a", metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		b.t.Fatal(err)
	}
	b.show()
}

func (b *bench) expectLog(reason string, want ...string) {
	b.t.Helper()
	b.set(func() {
		if !slices.Equal(b.log, want) {
			b.t.Errorf("%s: got %v, want %v", reason, b.log, want)
		}
		b.log = nil
	})
}

func TestPodRunsWhenItsVolumesAreThere(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.add(testPod())
		if p := b.pod(); p.Status.Phase != corev1.PodPending {
			t.Errorf("phase is %s before the volumes are there", p.Status.Phase)
		}
		b.set(func() { b.published = true })
		b.c.Wake("uid-a")
		synctest.Wait()
		if p := b.pod(); p.Status.Phase != corev1.PodRunning {
			t.Errorf("phase is %s, want Running at once", p.Status.Phase)
		}
		writes := len(b.api.Writes())
		b.show()
		b.c.Refresh()
		synctest.Wait()
		if n := len(b.api.Writes()) - writes; n > 0 {
			t.Errorf("a running pod was written %d times again", n)
		}
		b.set(func() {
			if b.resolves != 2 {
				t.Errorf("claims were read %d times, want once, and once more for the CSIDriver object that has changed", b.resolves)
			}
		})
	})
}

func TestRestartedAgentDoesNotWriteAgain(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published = true })
		b.add(testPod(isRunning))
		if n := len(b.api.Writes()); n > 0 {
			t.Errorf("a pod that was running already was written %d times", n)
		}
	})
}

func TestGracefulDeletion(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published = true })
		b.add(testPod())
		b.set(func() { b.stuck = true })
		b.show()
		b.remove(30)
		if p := b.pod(); p == nil || p.Status.Phase != corev1.PodFailed {
			t.Fatalf("pod is %+v, want it ended but there while its volume is", p)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if b.pod() == nil {
			t.Fatal("the pod was deleted before its volume was unpublished")
		}
		b.set(func() { b.stuck = false })
		b.c.Wake("uid-a")
		synctest.Wait()
		if p := b.pod(); p != nil {
			t.Errorf("pod is still there: %+v", p)
		}
		b.expectLog("volumes, then directories, then the pod", "drop uid-a", "clean uid-a")
	})
}

// TestStagedVolumeKeepsThePod: nothing but the pod keeps a volume that needs no attachment from being deleted while it is staged.
func TestStagedVolumeKeepsThePod(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published, b.staged = true, true })
		b.add(testPod())
		b.remove(30)
		time.Sleep(time.Hour)
		synctest.Wait()
		if b.pod() == nil {
			t.Fatal("the pod was deleted before its volume was unstaged")
		}
		b.set(func() { b.staged = false })
		time.Sleep(unstageCheck)
		synctest.Wait()
		if b.pod() != nil {
			t.Error("the pod is still there")
		}
	})
}

func TestDirtyDirectoryKeepsThePod(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published, b.cleanErr = true, errors.New("device or resource busy") })
		b.add(testPod())
		b.remove(30)
		if b.pod() == nil {
			t.Error("the pod was deleted although something is mounted in its directory")
		}
		b.set(func() {
			if len(b.events) == 0 || !strings.Contains(b.events[0], "busy") {
				t.Errorf("events are %v, want the reason", b.events)
			}
			b.cleanErr = nil
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if b.pod() != nil {
			t.Error("the pod was not deleted after the directory was clean")
		}
	})
}

// TestForceDeletion: the pod vanishes, and another of its name comes, before the volume is gone.
func TestForceDeletion(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published = true })
		old := testPod()
		b.add(old)
		b.set(func() { b.stuck = true })
		b.remove(0)
		b.c.Changed(old, nil)
		b.add(testPod(func(p *corev1.Pod) { p.UID = "uid-b" }))
		if p := b.pod(); p.UID != "uid-b" || p.Status.Phase != corev1.PodRunning {
			t.Errorf("the second pod is %s with UID %s, want it running", p.Status.Phase, p.UID)
		}
		b.set(func() { b.stuck = false })
		b.c.Wake("uid-a")
		synctest.Wait()
		b.expectLog("only the first pod's volume is released", "drop uid-a", "clean uid-a")
		if b.pod() == nil {
			t.Error("the second pod was deleted")
		}
	})
}

func TestEndedPodIsReleased(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published = true })
		b.add(testPod())
		ended := b.pod().DeepCopy()
		ended.Status.Phase = corev1.PodFailed
		if _, err := b.api.Client().Pods("ns").UpdateStatus(t.Context(), ended, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		b.show()
		b.expectLog("released", "drop uid-a", "clean uid-a")
		if b.pod() == nil {
			t.Error("a pod that has ended was deleted")
		}
	})
}

func TestAdopt(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published = true; b.busy["uid-old"] = true })
		b.add(testPod())
		b.c.Adopt([]types.UID{"uid-a", "uid-old"})
		synctest.Wait()
		b.expectLog("only the pod that is not in the list is gone", "drop uid-old", "clean uid-old")
	})
}

func TestProblems(t *testing.T) {
	cases := map[string]struct {
		reason  string
		problem resolve.Problem
		after   time.Duration
		events  int
	}{
		"AtOnce":  {reason: "a problem is told at once", problem: resolve.Problem{Volume: "v", Reason: "FailedMount", Err: errors.New("not bound")}, events: 1},
		"Lag":     {reason: "a refusal that passes is not told", problem: resolve.Problem{Volume: "v", Reason: "FailedMount", Err: errors.New("forbidden"), Transient: true}, after: time.Second},
		"LongLag": {reason: "unless it does not pass", problem: resolve.Problem{Volume: "v", Reason: "FailedMount", Err: errors.New("forbidden"), Transient: true}, after: time.Minute, events: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, b *bench) {
				b.set(func() { b.published, b.problems = true, []*resolve.Problem{&tc.problem} })
				b.add(testPod())
				time.Sleep(tc.after)
				synctest.Wait()
				b.set(func() {
					if (len(b.events) > 0) != (tc.events > 0) {
						t.Errorf("%s: events are %v", tc.reason, b.events)
					}
					b.problems = nil
				})
				time.Sleep(time.Minute)
				synctest.Wait()
				if p := b.pod(); p.Status.Phase != corev1.PodRunning {
					t.Errorf("%s: the pod does not run after the problem has gone", tc.reason)
				}
			})
		})
	}
}

// TestLongWait tells users in the kubelet's words, as often as the kubelet.
func TestLongWait(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.add(testPod())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		b.set(func() {
			if len(b.events) > 0 {
				t.Errorf("events after two minutes: %v", b.events)
			}
		})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		want := "FailedMount: Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], " +
			"failed to process volumes=[]: timed out waiting for the condition"
		b.set(func() {
			if len(b.events) != 1 || b.events[0] != want {
				t.Errorf("events are %q, want %q", b.events, want)
			}
		})
	})
}

// TestRefresh resolves the volumes of waiting pods again when a CSIDriver object has changed.
func TestRefresh(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.add(testPod())
		for i := 2; i < 5; i++ {
			b.c.Refresh()
			synctest.Wait()
			b.set(func() {
				if b.resolves != i {
					t.Errorf("volumes were resolved %d times, want %d", b.resolves, i)
				}
			})
		}
	})
}

func TestServerErrors(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published = true })
		b.api.Fail("patch", "pods", errors.New("away"), 3)
		b.api.Fail("delete", "pods", errors.New("away"), 0)
		b.add(testPod())
		time.Sleep(time.Minute)
		synctest.Wait()
		if p := b.pod(); p.Status.Phase != corev1.PodRunning {
			t.Errorf("phase is %s, want Running after the server is back", p.Status.Phase)
		}
	})
}

func TestNewNeedsEverything(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("a controller without anything: no error")
	}
}

func TestManyPods(t *testing.T) {
	scenario(t, func(t *testing.T, b *bench) {
		b.set(func() { b.published = true })
		for i := range 100 {
			pod := testPod(func(p *corev1.Pod) {
				p.Name, p.UID = fmt.Sprintf("p%d", i), types.UID(fmt.Sprintf("uid-%d", i))
			})
			if err := b.api.Apply(pod); err != nil {
				t.Fatal(err)
			}
			b.c.Changed(nil, pod)
		}
		synctest.Wait()
		for _, o := range b.api.Objects("pods") {
			if p, ok := o.(*corev1.Pod); ok && p.Status.Phase != corev1.PodRunning {
				t.Errorf("pod %s is %s", p.Name, p.Status.Phase)
			}
		}
	})
}
