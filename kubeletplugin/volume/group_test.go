package volume_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/fsgroup"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/recovery"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// grouped is a volume whose files a pod wants to have its group.
func grouped(pod, handle string) volume.Publication {
	p := persistentOf(pod, handle)
	p.FSGroup, p.ChangeGroup = &aGroup, true
	return p
}

// expectGroups compares the changes of groups since the last call.
func (w *world) expectGroups(reason string, want ...fsgroup.Change) {
	w.t.Helper()
	synctest.Wait()
	w.set(func() {
		if !slices.Equal(w.groups, want) {
			w.t.Errorf("%s: got %+v, want %+v", reason, w.groups, want)
		}
		w.groups = nil
	})
}

func (w *world) expectEvents(reason string, want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.set(func() {
		if !slices.EqualFunc(w.events, want, strings.Contains) {
			w.t.Errorf("%s: got events\n  %s\nwant\n  %s", reason, strings.Join(w.events, "\n  "), strings.Join(want, "\n  "))
		}
		w.events = nil
	})
}

// TestGroup is when the files of a published volume get the group of the pod.
func TestGroup(t *testing.T) {
	mountsWithGroup := csitest.Options{Node: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP}}
	cases := map[string]struct {
		reason string
		driver csitest.Options
		change func(*volume.Publication)
		want   bool
		onRoot bool
	}{
		"Always":         {reason: "the driver does not know groups", want: true},
		"OnRootMismatch": {reason: "the root directory decides", change: func(p *volume.Publication) { p.OnRootMismatch = true }, want: true, onRoot: true},
		"Inline":         {reason: "an inline volume", change: func(p *volume.Publication) { *p = inlineOf("a", "pv-vol-1"); p.FSGroup, p.ChangeGroup = &aGroup, true }, want: true},
		"Delegated":      {reason: "the driver mounts with the group", driver: mountsWithGroup},
		"ReadOnly":       {reason: "a read-only volume", change: func(p *volume.Publication) { p.ReadOnly = true }},
		"Policy":         {reason: "fsGroupPolicy does not want it", change: func(p *volume.Publication) { p.ChangeGroup = false }},
		"NoGroup":        {reason: "the pod has no group", change: func(p *volume.Publication) { p.FSGroup = nil }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, tc.driver, func(t *testing.T, w *world) {
				p := grouped("a", "vol-1")
				if tc.change != nil {
					tc.change(&p)
				}
				w.changeGroup = func(context.Context, fsgroup.Change, *atomic.Int64) (fsgroup.Result, error) {
					if st, _ := w.m.Status(p.Volume.Name, p.Key()); st.Published || !slices.Contains(w.calls(), "NodePublishVolume") {
						t.Error("the group must be changed after NodePublishVolume and before the pod runs")
					}
					return fsgroup.Result{}, nil
				}
				w.m.Want(p)
				w.expectPublished(p, true)
				var want []fsgroup.Change
				if tc.want {
					want = []fsgroup.Change{{Path: w.root.Target("uid-a", "pv-vol-1"), Group: 7, OnRootMismatch: tc.onRoot}}
				}
				w.expectGroups(tc.reason, want...)
				w.m.Want(p)
				time.Sleep(time.Hour)
				w.expectGroups("once is enough")
				w.expectEvents("nothing has gone wrong")
				w.m.Drop(p.Pod)
				synctest.Wait()
				w.expectClean()
			})
		})
	}
}

// TestGroupFails: the pod waits and learns why; the change is repeated with backoff, and NodePublishVolume before it: the mount may be dead, which some drivers repair there
// (https://github.com/longhorn/longhorn/issues/2629).
func TestGroupFails(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		failures := 3
		w.changeGroup = func(context.Context, fsgroup.Change, *atomic.Int64) (fsgroup.Result, error) {
			if failures--; failures >= 0 {
				return fsgroup.Result{}, &os.PathError{Op: "chown", Path: "/vol/file", Err: syscall.EIO}
			}
			return fsgroup.Result{}, nil
		}
		p := grouped("a", "vol-1")
		begin := time.Now()
		w.m.Want(p)
		w.expectPublished(p, false)
		if st, _ := w.m.Status(p.Volume.Name, p.Key()); !errors.Is(st.Err, syscall.EIO) {
			t.Errorf("the pod waits for %v, want the error", st.Err)
		}
		for st := (volume.Status{}); !st.Published && time.Since(begin) < time.Hour; time.Sleep(100 * time.Millisecond) {
			st, _ = w.m.Status(p.Volume.Name, p.Key())
		}
		if waited := time.Since(begin); waited < 3*time.Second || waited > 4*time.Second {
			t.Errorf("published after %v, want backoff of 500 ms, 1 s and 2 s", waited)
		}
		event := `a FailedMount: MountVolume.SetUp failed for volume "pv-vol-1" : give the files of volume "vol-1" to fsGroup 7: chown /vol/file: input/output error`
		w.expectEvents("one event for each failure", event, event, event)
		w.expectCalls("the volume is published before each change", "NodeStageVolume", "NodePublishVolume", "NodePublishVolume", "NodePublishVolume", "NodePublishVolume")
		w.m.Drop(p.Pod)
		synctest.Wait()
		w.expectClean()
	})
}

// brokenGroup is a change that fails.
func (w *world) brokenGroup(context.Context, fsgroup.Change, *atomic.Int64) (fsgroup.Result, error) {
	return fsgroup.Result{}, syscall.EIO
}

// slowly is a change that takes a time unless it is cancelled, and passes a file each second.
func slowly(ctx context.Context, d time.Duration, files *atomic.Int64) (fsgroup.Result, error) {
	end := time.Now().Add(d)
	for time.Now().Before(end) {
		files.Add(1)
		select {
		case <-ctx.Done():
			return fsgroup.Result{}, ctx.Err()
		case <-time.After(time.Second):
		}
	}
	return fsgroup.Result{}, nil
}

// TestGroupTakesLong: a change is not bounded by the deadline of CSI calls, and the pod learns of its progress at a kubelet's times.
func TestGroupTakesLong(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.changeGroup = func(ctx context.Context, _ fsgroup.Change, files *atomic.Int64) (fsgroup.Result, error) {
			return slowly(ctx, 10*time.Minute, files)
		}
		p := grouped("a", "vol-1")
		w.m.Want(p)
		time.Sleep(29*time.Second + 500*time.Millisecond)
		w.expectEvents("30 seconds are nothing unusual")
		time.Sleep(time.Second)
		w.expectEvents("then the pod learns of it", `a VolumePermissionChangeInProgress: giving the files of volume "pv-vol-1" to fsGroup 7 takes long: 3`)
		time.Sleep(time.Minute)
		w.expectEvents("and every minute", `takes long: 9`)
		w.expectPublished(p, false)
		time.Sleep(10 * time.Minute)
		w.expectPublished(p, true)
		w.set(func() {
			if n := len(w.events); n != 8 {
				t.Errorf("%d more events, want 8: %q", n, w.events)
			}
		})
	})
}

// TestGroupOfADeletedPod: the change for a pod that is deleted stops, and is no failure.
func TestGroupOfADeletedPod(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.changeGroup = func(ctx context.Context, _ fsgroup.Change, files *atomic.Int64) (fsgroup.Result, error) {
			return slowly(ctx, time.Hour, files)
		}
		p := grouped("a", "vol-1")
		w.m.Want(p)
		w.expectPublished(p, false)
		begin := time.Now()
		w.m.Drop(p.Pod)
		w.expectCalls("it is taken down", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume")
		if waited := time.Since(begin); waited > 0 {
			t.Errorf("it was taken down after %v, want at once", waited)
		}
		w.expectEvents("nothing has failed")
		w.expectClean()
	})
}

// TestGroupAfterARestart: an agent that was killed during the change does it again, and only then the pod runs. For a pod that runs,
// it is done after NodePublishVolume too, as a kubelet does.
func TestGroupAfterARestart(t *testing.T) {
	for name, running := range map[string]bool{"Waiting": false, "Running": true} {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				p := grouped("a", "vol-1")
				w.notAttachable = "vol-1"
				if !running {
					w.changeGroup = func(ctx context.Context, _ fsgroup.Change, files *atomic.Int64) (fsgroup.Result, error) {
						return slowly(ctx, time.Hour, files)
					}
				}
				w.m.Want(p)
				w.expectPublished(p, running)
				w.halt()
				w.expectCalls("before the restart", "NodeStageVolume", "NodePublishVolume")
				found, err := recovery.Scan(w.root, func(string) ([]volume.MountPoint, error) { return nil, nil })
				if err != nil {
					t.Fatal(err)
				}
				w.set(func() { w.groups, w.events, w.changeGroup = nil, nil, nil })
				w.m = w.manager()
				w.m.Adopt(found.Volumes)
				w.start()
				w.expectGroups("the pod is not known yet")
				p.Running = running
				w.m.Want(p)
				w.expectPublished(p, true)
				w.expectCalls("the volume is published again", "NodeStageVolume", "NodePublishVolume")
				w.expectGroups("and so is the group changed", fsgroup.Change{Path: w.root.Target("uid-a", "pv-vol-1"), Group: 7})
				w.expectEvents("nothing has failed")
			})
		})
	}
}

// TestGroupHangs: a walk that a dead file system holds up keeps neither the pod from being unmounted nor the plugin from ending.
func TestGroupHangs(t *testing.T) {
	for name, end := range map[string]func(*world, volume.Publication){
		"Dropped": func(w *world, p volume.Publication) { w.m.Drop(p.Pod) },
		"Stopped": func(w *world, _ volume.Publication) { w.halt() },
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				dead := make(chan struct{})
				w.changeGroup = func(context.Context, fsgroup.Change, *atomic.Int64) (fsgroup.Result, error) {
					<-dead
					return fsgroup.Result{}, nil
				}
				p := grouped("a", "vol-1")
				w.m.Want(p)
				synctest.Wait()
				end(w, p)
				time.Sleep(time.Minute)
				if name == "Dropped" {
					w.expectCalls("the volume is unmounted", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume")
					w.expectClean()
				}
				close(dead)
				synctest.Wait()
			})
		})
	}
}

// TestGroupFailsAfterRestart: while the files of a pod that may be running cannot be given to its group, nothing is taken from it.
func TestGroupFailsAfterRestart(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := grouped("a", "vol-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		w.halt()
		w.set(func() { w.changeGroup = w.brokenGroup })
		w.m = w.manager()
		w.m.Adopt([]volume.Recovered{{Volume: p.Volume, Staged: true, Targets: []volume.Key{p.Key()}}})
		w.start()
		w.driver.ResetCalls()
		p.Running = true
		w.m.Want(p)
		time.Sleep(time.Minute)
		w.driver.Inject(csitest.Fault{Method: "NodePublishVolume", Code: codes.Internal, Times: 3})
		time.Sleep(time.Hour)
		for _, call := range w.calls() {
			if strings.HasPrefix(call, "NodeUn") {
				t.Errorf("%s was called under a pod that may be running", call)
			}
		}
	})
}

// TestGroupRefused: files that cannot be changed do not keep the pod from running, as in a kubelet, but it learns of them once.
func TestGroupRefused(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.changeGroup = func(context.Context, fsgroup.Change, *atomic.Int64) (fsgroup.Result, error) {
			return fsgroup.Result{Refused: 12, Refusal: errors.New(`change group of "/x": operation not permitted`)}, nil
		}
		p := grouped("a", "vol-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		w.expectEvents("one event", `a VolumePermissionChangeRefused: volume "pv-vol-1": the group or permissions of 12 files stay unchanged`)
	})
}

// TestGroupForReal changes files on disk, for a driver that publishes directories.
func TestGroupForReal(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to any group")
	}
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := grouped("a", "vol-1")
		target := w.root.Target("uid-a", "pv-vol-1")
		file := filepath.Join(target, "file")
		w.changeGroup = func(ctx context.Context, c fsgroup.Change, files *atomic.Int64) (fsgroup.Result, error) {
			if err := errors.Join(os.Mkdir(target, 0o750), os.WriteFile(file, nil, 0o600)); err != nil {
				t.Error(err)
			}
			return fsgroup.Apply(ctx, c, files)
		}
		w.m.Want(p)
		w.expectPublished(p, true)
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Gid != 7 || info.Mode() != 0o660 {
			t.Errorf("the file is %v of %+v", info.Mode(), info.Sys())
		}
	})
}
