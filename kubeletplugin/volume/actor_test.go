package volume_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

func TestPersistentLifecycle(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := persistentOf("a", "vol-1")
		w.m.Want(p)
		w.expectCalls("a volume is staged, then published", "NodeStageVolume", "NodePublishVolume")
		w.expectPublished(p, true)
		if _, err := records.ReadStaging(w.root.StagingDir(testDriver, "vol-1")); err != nil {
			t.Errorf("staging record: %v", err)
		}
		if rec, err := records.ReadTarget(w.root.TargetDir("uid-a", "pv-vol-1")); err != nil || rec.Lifecycle != records.Persistent {
			t.Errorf("target record: %+v, %v", rec, err)
		}
		w.m.Want(p)
		w.expectCalls("repeating the wish changes nothing")
		w.m.Drop(p.Pod)
		w.expectCalls("it is taken down in reverse", "NodeUnpublishVolume", "NodeUnstageVolume")
		w.expectClean()
	})
}

func TestTwoPodsShareTheStage(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		a, b := persistentOf("a", "vol-1"), persistentOf("b", "vol-1")
		w.m.Want(a)
		w.m.Want(b)
		w.expectCalls("one stage for two pods", "NodeStageVolume", "NodePublishVolume", "NodePublishVolume")
		w.m.Drop(a.Pod)
		w.expectCalls("the other pod keeps the stage", "NodeUnpublishVolume")
		w.expectPublished(b, true)
		w.m.Drop(b.Pod)
		w.expectCalls("the last one takes it down", "NodeUnpublishVolume", "NodeUnstageVolume")
		w.expectClean()
	})
}

// TestOneHandleTwiceInAPod is kubelet issue 91556: two PersistentVolumes of a pod have the same handle. Both are mounted.
func TestOneHandleTwiceInAPod(t *testing.T) {
	scenario(t, csitest.Options{}, func(_ *testing.T, w *world) {
		p, q := persistentOf("a", "vol-1"), persistentOf("a", "vol-1")
		q.SpecName = "pv-other"
		w.m.Want(p)
		w.m.Want(q)
		w.expectCalls("staged once, published at a path each", "NodeStageVolume", "NodePublishVolume", "NodePublishVolume")
		w.expectPublished(p, true)
		w.expectPublished(q, true)
		w.m.Drop(p.Pod)
		w.expectCalls("both go", "NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume")
		w.expectClean()
	})
}

// TestInline is test items T3 and E4/E5: an inline volume is published and unpublished, no more.
func TestInline(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p, q := inlineOf("a", "v1"), inlineOf("a", "v2")
		w.m.Want(p)
		w.m.Want(q)
		synctest.Wait()
		published := w.driver.Volumes()
		ephemeral := 0
		for _, v := range published {
			if v.Ephemeral {
				ephemeral++
			}
		}
		if ephemeral != 2 {
			t.Errorf("driver has %d inline volumes, want 2: %+v", ephemeral, published)
		}
		w.expectCalls("two volumes of one pod", "NodePublishVolume", "NodePublishVolume")
		w.m.Drop(p.Pod)
		w.expectCalls("both go", "NodeUnpublishVolume", "NodeUnpublishVolume")
		w.expectClean()
	})
}

// TestInlineUnpublishNotFound is kubelet issue 90752: the answer NOT_FOUND means that it is done.
func TestInlineUnpublishNotFound(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := inlineOf("a", "v1")
		w.m.Want(p)
		w.expectPublished(p, true)
		w.driver.Inject(csitest.Fault{Method: "NodeUnpublishVolume", Code: codes.DeadlineExceeded, After: true, Times: 1})
		w.driver.Inject(csitest.Fault{Method: "NodeUnpublishVolume", Code: codes.NotFound})
		w.m.Drop(p.Pod)
		time.Sleep(time.Minute)
		synctest.Wait()
		w.expectClean()
	})
}

func TestDriverWithoutStage(t *testing.T) {
	scenario(t, csitest.Options{Node: []csi.NodeServiceCapability_RPC_Type{}}, func(t *testing.T, w *world) {
		p := persistentOf("a", "vol-1")
		w.m.Want(p)
		w.expectCalls("such a driver only publishes", "NodePublishVolume")
		if _, err := records.ReadStaging(w.root.StagingDir(testDriver, "vol-1")); err != nil {
			t.Errorf("the staging record is what keeps the volume in use after a crash: %v", err)
		}
		w.m.Drop(p.Pod)
		w.expectCalls("and unpublishes", "NodeUnpublishVolume")
		w.expectClean()
	})
}

func TestAttachHandshake(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := persistentOf("a", "vol-1")
		p.Volume.Attachable = true
		w.m.Want(p)
		w.expectCalls("nothing happens before the volume is attached")
		w.set(func() {
			if !w.inUse[p.Volume.Name] {
				t.Error("the volume must be in use before it is attached")
			}
			if len(w.events) > 0 {
				t.Errorf("waiting for the attachment is no failure: %v", w.events)
			}
		})
		begin := time.Now()
		w.attach("vol-1", "va-1")
		w.expectPublished(p, true)
		if waited := time.Since(begin); waited > 0 {
			t.Errorf("the attachment was noticed after %v, want at once", waited)
		}
		for _, c := range w.driver.Calls() {
			if s, ok := c.Request.(*csi.NodeStageVolumeRequest); ok && s.GetPublishContext()["device"] != "/dev/x" {
				t.Errorf("publish context is %v, want the attachment's metadata", s.GetPublishContext())
			}
		}
		w.m.Drop(p.Pod)
		synctest.Wait()
		w.expectClean()
	})
}

func TestExclusiveVolume(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		a, b := persistentOf("a", "vol-1"), persistentOf("b", "vol-1")
		for _, p := range []*volume.Publication{&a, &b} {
			p.Volume.Exclusive, p.Volume.AccessMode = true, corev1.ReadWriteOncePod
		}
		w.m.Want(a)
		synctest.Wait()
		w.m.Want(b)
		w.expectPublished(b, false)
		if st, _ := w.m.Status(b.Volume.Name, b.Key()); st.Err == nil || !strings.Contains(st.Err.Error(), "ReadWriteOncePod") {
			t.Errorf("the waiting pod is told %v, want the access mode", st.Err)
		}
		w.m.Drop(a.Pod)
		w.expectPublished(b, true)
	})
}

func TestDriverComesLater(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.set(func() { w.registered = false })
		p := persistentOf("a", "vol-1")
		w.m.Want(p)
		time.Sleep(10 * time.Minute)
		w.expectPublished(p, false)
		begin := time.Now()
		w.set(func() { w.registered = true })
		w.m.DriverChanged(testDriver)
		w.expectPublished(p, true)
		if waited := time.Since(begin); waited > 0 {
			t.Errorf("the driver was noticed after %v, want at once", waited)
		}
	})
}

func TestUnpublishWaitsForTheDriver(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := persistentOf("a", "vol-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		w.set(func() { w.registered = false })
		w.m.Drop(p.Pod)
		time.Sleep(time.Hour)
		synctest.Wait()
		if !w.m.Busy(p.Pod.UID) {
			t.Error("the pod must not be released while its volume is published")
		}
		w.set(func() { w.registered = true })
		w.m.DriverChanged(testDriver)
		synctest.Wait()
		w.expectClean()
	})
}

// TestFaults makes one call go wrong once or more, and looks at what the driver saw until the
// volume was published, and whether everything can be taken down.
func TestFaults(t *testing.T) {
	const stage, publish, unpublish, unstage = "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"
	cases := map[string]struct {
		reason string
		faults []csitest.Fault
		want   []string
		event  string
	}{
		"StageRefused": {
			reason: "a refusal proves that nothing was done, so nothing is undone",
			faults: []csitest.Fault{{Method: stage, Code: codes.InvalidArgument, Times: 1}},
			want:   []string{stage, stage, publish},
			event:  "MountVolume.MountDevice failed",
		},
		"StageInternal": {
			reason: "a failure in the middle leaves doubt: undo, then try again",
			faults: []csitest.Fault{{Method: stage, Code: codes.Internal, Times: 1}},
			want:   []string{stage, unstage, stage, publish},
		},
		"StageTimeout": {
			reason: "an unanswered call is repeated, not undone",
			faults: []csitest.Fault{{Method: stage, Code: codes.DeadlineExceeded, After: true, Times: 1}},
			want:   []string{stage, stage, publish},
		},
		"StageTimeoutThenRefused": {
			reason: "a refusal does not prove that the unanswered call before had no effect",
			faults: []csitest.Fault{
				{Method: stage, Code: codes.DeadlineExceeded, After: true, Times: 1},
				{Method: stage, Code: codes.InvalidArgument, Times: 1},
			},
			want: []string{stage, stage, unstage, stage, publish},
		},
		"StageHangs": {
			reason: "the deadline ends a call that hangs",
			faults: []csitest.Fault{{Method: stage, Hang: true, After: true, Times: 1}},
			want:   []string{stage, stage, publish},
		},
		"PublishRefused": {
			reason: "a refusal proves that nothing was done",
			faults: []csitest.Fault{{Method: publish, Code: codes.FailedPrecondition, Times: 1}},
			want:   []string{stage, publish, publish},
			event:  "MountVolume.SetUp failed",
		},
		"PublishInternalAfterEffect": {
			reason: "a failure in the middle is undone",
			faults: []csitest.Fault{{Method: publish, Code: codes.Internal, After: true, Times: 1}},
			want:   []string{stage, publish, unpublish, publish},
		},
		"PublishExhausted": {
			reason: "a lack of resources is no final answer",
			faults: []csitest.Fault{{Method: publish, Code: codes.ResourceExhausted, Times: 1}},
			want:   []string{stage, publish, publish},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				for _, f := range tc.faults {
					w.driver.Inject(f)
				}
				p := persistentOf("a", "vol-1")
				w.m.Want(p)
				time.Sleep(10 * time.Minute)
				w.expectCalls(tc.reason, tc.want...)
				w.expectPublished(p, true)
				w.set(func() {
					if tc.event != "" && (len(w.events) != 1 || !strings.Contains(w.events[0], tc.event)) {
						t.Errorf("events are %v, want one about %q", w.events, tc.event)
					}
				})
				w.m.Drop(p.Pod)
				w.expectCalls("taken down", unpublish, unstage)
				w.expectClean()
			})
		})
	}
}

// TestRefusedStageLeavesNothing: directory and record of a stage that the driver has refused are removed again; those of one
// without an answer stay, as there may be a mount.
func TestRefusedStageLeavesNothing(t *testing.T) {
	cases := map[string]struct {
		reason string
		code   codes.Code
		left   int
	}{
		"Refused":    {reason: "a refusal proves that nothing was done", code: codes.InvalidArgument},
		"Unanswered": {reason: "the call may still run", code: codes.Unavailable, left: 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				w.driver.Inject(csitest.Fault{Method: "NodeStageVolume", Code: tc.code})
				w.m.Want(persistentOf("a", "vol-1"))
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := w.files(); len(got) != tc.left {
					t.Errorf("%s: left on disk: %v, want %d directories", tc.reason, got, tc.left)
				}
			})
		})
	}
}

// TestOneCallAtATime: calls for one volume are made one after the other, whatever the number of its pods; another volume does
// not wait for them.
func TestOneCallAtATime(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.driver.Inject(csitest.Fault{Method: "NodePublishVolume", Delay: time.Second})
		pods := []volume.Publication{persistentOf("a", "vol-1"), persistentOf("b", "vol-1"), persistentOf("c", "vol-1")}
		other := persistentOf("a", "vol-2")
		for _, p := range append(pods, other) {
			w.m.Want(p)
		}
		time.Sleep(100 * time.Millisecond)
		for done := 1; done <= len(pods); done++ {
			time.Sleep(time.Second)
			synctest.Wait()
			published := 0
			for _, p := range pods {
				if st, _ := w.m.Status(p.Volume.Name, p.Key()); st.Published {
					published++
				}
			}
			if published != done {
				t.Errorf("after %d seconds %d pods have the volume, want one call in a second", done, published)
			}
			w.expectPublished(other, true)
		}
	})
}

// TestOtherCallsSayNothing is kubelet issue 135929: after a publish without an answer, a failure to
// read the capabilities must not end the doubt.
func TestOtherCallsSayNothing(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		inDoubt := false
		w.driver.Inject(csitest.Fault{
			Method: "NodePublishVolume", Code: codes.DeadlineExceeded, After: true, Times: 1,
			Match: func(proto.Message) bool { inDoubt = true; return true },
		})
		w.driver.Inject(csitest.Fault{
			Method: "NodeGetCapabilities", Code: codes.Internal,
			Match: func(proto.Message) bool { return inDoubt },
		})
		p := persistentOf("a", "vol-1")
		w.m.Want(p)
		time.Sleep(10 * time.Minute)
		w.expectCalls("the second publish waits for the capabilities", "NodeStageVolume", "NodePublishVolume")
		w.driver.Heal()
		w.m.Drop(p.Pod)
		w.expectCalls("what may be there is taken down", "NodeUnpublishVolume", "NodeUnstageVolume")
		w.expectClean()
	})
}

// TestGiveUpInDoubt drops the pod while a call has not been answered: what may be there is removed.
func TestGiveUpInDoubt(t *testing.T) {
	cases := map[string]struct {
		reason string
		fault  csitest.Fault
		want   []string
	}{
		"Staging": {
			reason: "a stage in doubt is unstaged (kubelet issue 82190)",
			fault:  csitest.Fault{Method: "NodeStageVolume", Code: codes.DeadlineExceeded, After: true},
			want:   []string{"NodeUnstageVolume"},
		},
		"Publishing": {
			reason: "a publish in doubt is unpublished",
			fault:  csitest.Fault{Method: "NodePublishVolume", Code: codes.Unavailable, After: true},
			want:   []string{"NodeUnpublishVolume", "NodeUnstageVolume"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				w.driver.Inject(tc.fault)
				p := persistentOf("a", "vol-1")
				w.m.Want(p)
				time.Sleep(time.Second)
				synctest.Wait()
				w.driver.ResetCalls()
				w.m.Drop(p.Pod)
				w.expectCalls(tc.reason, tc.want...)
				w.expectClean()
			})
		})
	}
}

// TestRestageAfterFailedUnstage is kubelet issue 86360: after an unstage without an answer the
// volume is staged again before it is published.
func TestRestageAfterFailedUnstage(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		a, b := persistentOf("a", "vol-1"), persistentOf("b", "vol-1")
		w.m.Want(a)
		w.expectPublished(a, true)
		w.driver.Inject(csitest.Fault{Method: "NodeUnstageVolume", Code: codes.DeadlineExceeded, After: true})
		w.m.Drop(a.Pod)
		synctest.Wait()
		w.driver.ResetCalls()
		w.m.Want(b)
		w.expectCalls("staged again", "NodeStageVolume", "NodePublishVolume")
		w.driver.Heal()
		w.m.Drop(b.Pod)
		synctest.Wait()
		w.expectClean()
	})
}

func TestAdopted(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := persistentOf("a", "vol-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		w.halt()
		w.driver.ResetCalls()

		w.m = w.manager()
		w.m.Adopt([]volume.Recovered{{Volume: p.Volume, Staged: true, Targets: []volume.Key{p.Key()}}})
		w.start()
		time.Sleep(time.Hour)
		w.expectCalls("nothing is unmounted before it is known that the pod is gone (kubelet issue 120150)")
		w.m.Want(p)
		w.expectCalls("a pod that is still there is set up again", "NodeStageVolume", "NodePublishVolume")
		w.m.Drop(p.Pod)
		w.expectCalls("and taken down", "NodeUnpublishVolume", "NodeUnstageVolume")
		w.expectClean()
	})
}

// TestAdoptedKeepsALiveMount: an adopted mount may have a running pod on it, so not even a final
// error takes it down.
func TestAdoptedKeepsALiveMount(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := persistentOf("a", "vol-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		w.halt()
		w.m = w.manager()
		w.m.Adopt([]volume.Recovered{{Volume: p.Volume, Staged: true, Targets: []volume.Key{p.Key()}}})
		w.start()
		w.driver.ResetCalls()
		p.Running = true
		w.driver.Inject(csitest.Fault{Method: "NodePublishVolume", Code: codes.Internal})
		w.m.Want(p)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		for _, call := range w.calls() {
			if strings.HasPrefix(call, "NodeUn") {
				t.Errorf("%s was called under a pod that may be running", call)
			}
		}
		w.driver.Heal()
		time.Sleep(10 * time.Minute)
		w.expectPublished(p, true)
	})
}

// TestAdoptedStageWithoutPod is kubelet issue 121937: a stage that no pod uses is found and undone.
func TestAdoptedStageWithoutPod(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := persistentOf("a", "vol-1")
		p.Volume.Attachable = true
		w.attach("vol-1", "va-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		w.set(func() { w.crashAt = "before-unstage" })
		w.m.Drop(p.Pod)
		synctest.Wait()
		w.halt()
		w.set(func() { w.crashAt, w.crashed = "", false })
		w.driver.ResetCalls()

		w.m = w.manager()
		w.m.Adopt([]volume.Recovered{{Volume: p.Volume, Staged: true}})
		if got := w.m.InUse(); len(got) != 1 || got[0] != p.Volume.Name {
			t.Errorf("adopted volumes in use: %v, want %q", got, p.Volume.Name)
		}
		w.start()
		w.expectCalls("unstaged", "NodeUnstageVolume")
		w.expectClean()
	})
}

func TestChangedTellsThePod(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := persistentOf("a", "vol-1")
		w.m.Want(p)
		synctest.Wait()
		w.set(func() {
			if len(w.changed) == 0 || w.changed[0] != types.UID("uid-a") {
				t.Errorf("changed pods are %v, want uid-a", w.changed)
			}
		})
	})
}
