package volume_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// claimed is a volume of a claim of 1 MiB.
func (w *world) claimed(pod, handle string) volume.Publication {
	p := persistentOf(pod, handle)
	p.Claim, p.Capacity = volume.Claim{Namespace: "ns", Name: handle, UID: w.claim(handle).UID}, 1<<20
	return p
}

// enlarge hands an expansion to 2 MiB over to the node.
func (w *world) enlarge(handle string) {
	w.driver.AddVolume(csitest.Volume{ID: handle, Capacity: 2 << 20})
	w.grown(handle)
}

func (w *world) grown(handle string) {
	w.write("persistentvolumes", "", "pv-"+handle, `{"spec":{"capacity":{"storage":"2Mi"}}}`)
	w.write("persistentvolumeclaims", "ns", handle, `{"status":{"allocatedResources":{"storage":"2Mi"}}}`)
	w.handOver(handle)
}

// requests counts the requests for objects of a kind.
func (w *world) requests(kind string) *atomic.Int64 {
	n := new(atomic.Int64)
	w.api.Inject(kubetest.Fault{Resource: kind, Do: func() { n.Add(1) }})
	return n
}

// TestIdleClaimsCostOneRequest: as long as nothing is expanded, the claim of a mounted volume is read about once a minute,
// however many pods of the node use it, and nothing else is.
func TestIdleClaimsCostOneRequest(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.addClaim("vol-1")
		claims, volumes := w.requests("persistentvolumeclaims"), w.requests("persistentvolumes")
		for _, pod := range []string{"a", "b", "c"} {
			p := w.claimed(pod, "vol-1")
			w.m.Want(p)
			w.expectPublished(p, true)
		}
		synctest.Wait()
		before := claims.Load()
		if before > 3 {
			t.Errorf("%d requests to mount a volume for 3 pods, want one each", before)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := claims.Load() - before; n < 40 || n > 60 || volumes.Load() > 0 {
			t.Errorf("%d requests for the claim and %d for the volume in an hour, want one in 60 to 90 seconds and none", n, volumes.Load())
		}
		for _, pod := range []string{"a", "b", "c"} {
			w.m.Drop(podOf(pod))
		}
		synctest.Wait()
		before = claims.Load()
		time.Sleep(time.Hour)
		synctest.Wait()
		if claims.Load() != before {
			t.Error("the claim of a volume that no pod uses is still read")
		}
		w.expectClean()
	})
}

// TestPodWaitsForTheClaim: whether there is an expansion has to be known before a pod may run; later a request that fails is
// made up for.
func TestPodWaitsForTheClaim(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.addClaim("vol-1")
		w.enlarge("vol-1")
		w.api.Inject(kubetest.Fault{Verb: "get", Resource: "persistentvolumeclaims", Err: errAway, Times: 2})
		w.api.Inject(kubetest.Fault{Verb: "get", Resource: "persistentvolumes", Err: errAway, Times: 2})
		p := w.claimed("a", "vol-1")
		w.m.Want(p)
		w.expectPublished(p, false)
		st, _ := w.m.Status(p.Volume.Name, p.Key())
		if st.Err == nil || !strings.Contains(st.Err.Error(), "away") {
			t.Errorf("the pod waits for %v, want the API server", st.Err)
		}
		time.Sleep(time.Minute)
		w.expectPublished(p, true)
		w.expectCalls("mounted and expanded", "NodeStageVolume", "NodePublishVolume", "NodeExpandVolume")
		w.set(func() {
			if strings.Contains(strings.Join(w.events, ""), "Failed") {
				t.Errorf("a short trouble is not worth an event: %q", w.events)
			}
		})
		w.api.Heal()
		w.api.Fail("get", "persistentvolumeclaims", errAway, 0)
		time.Sleep(time.Hour)
		w.expectPublished(p, true)
		w.expectCalls("a running pod is not disturbed")
		w.m.Drop(p.Pod)
		synctest.Wait()
		w.expectClean()
	})
}

// TestClaimIsGone: what is gone, or belongs to another claim, is mounted as it is.
func TestClaimIsGone(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*volume.Publication)
	}{
		"Claim":   {reason: "deleted by force", change: func(p *volume.Publication) { p.Claim.Name = "other" }},
		"Another": {reason: "made again", change: func(p *volume.Publication) { p.Claim.UID = "other" }},
		"Volume":  {reason: "the claim is bound to another volume now", change: func(p *volume.Publication) { p.SpecName = "pv-old" }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(_ *testing.T, w *world) {
				w.addClaim("vol-1")
				w.enlarge("vol-1")
				p := w.claimed("a", "vol-1")
				tc.change(&p)
				w.m.Want(p)
				w.expectPublished(p, true)
				w.expectCalls(tc.reason, "NodeStageVolume", "NodePublishVolume")
				w.m.Drop(p.Pod)
				synctest.Wait()
				w.expectClean()
			})
		})
	}
}

// TestRefusedUntilMountedAgain: a driver that does not expand a volume in use is asked again when a second pod mounts it, and
// from then on.
func TestRefusedUntilMountedAgain(t *testing.T) {
	scenario(t, csitest.Options{}, func(_ *testing.T, w *world) {
		w.addClaim("vol-1")
		w.driver.AddVolume(csitest.Volume{ID: "vol-1", Capacity: 3 << 20})
		w.grown("vol-1")
		w.driver.Inject(csitest.Fault{Method: "NodeExpandVolume", Code: codes.FailedPrecondition, Times: 1})
		first, second := w.claimed("a", "vol-1"), w.claimed("b", "vol-1")
		w.m.Want(first)
		w.expectPublished(first, true)
		time.Sleep(time.Hour)
		w.expectCalls("refused", "NodeStageVolume", "NodePublishVolume", "NodeExpandVolume")
		w.m.Want(second)
		w.expectPublished(second, true)
		w.expectCalls("mounted again", "NodePublishVolume", "NodeExpandVolume")
		w.write("persistentvolumes", "", "pv-vol-1", `{"spec":{"capacity":{"storage":"3Mi"}}}`)
		w.write("persistentvolumeclaims", "ns", "vol-1", `{"status":{"allocatedResources":{"storage":"3Mi"}}}`)
		w.handOver("vol-1")
		time.Sleep(2 * time.Minute)
		w.expectCalls("in use", "NodeExpandVolume")
	})
}

// TestDriverThatComesBackIsAsked: an expansion does not wait out its backoff when the driver has been started again.
func TestDriverThatComesBackIsAsked(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.addClaim("vol-1")
		w.enlarge("vol-1")
		w.driver.Inject(csitest.Fault{Method: "NodeExpandVolume", Code: codes.Unavailable})
		p := w.claimed("a", "vol-1")
		w.m.Want(p)
		time.Sleep(10 * time.Minute)
		w.expectPublished(p, false)
		w.driver.Heal()
		w.driver.ResetCalls()
		w.m.DriverChanged(testDriver)
		w.expectCalls("at once", "NodeExpandVolume")
		w.expectPublished(p, true)
	})
}

// TestTwoVolumesOfOneHandle: each PersistentVolume has a claim of its own.
func TestTwoVolumesOfOneHandle(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		w.addClaim("vol-1")
		w.addClaim("vol-2")
		w.driver.AddVolume(csitest.Volume{ID: "vol-1", Capacity: 2 << 20})
		first, second := w.claimed("a", "vol-1"), w.claimed("b", "vol-2")
		second.Volume = first.Volume
		w.write("persistentvolumes", "", "pv-vol-2", `{"spec":{"csi":{"volumeHandle":"vol-1"}}}`)
		for _, p := range []volume.Publication{first, second} {
			w.m.Want(p)
			w.expectPublished(p, true)
		}
		w.driver.ResetCalls()
		w.grown("vol-1")
		w.grown("vol-2")
		time.Sleep(2 * time.Minute)
		w.expectCalls("one for each claim", "NodeExpandVolume", "NodeExpandVolume")
		for _, h := range []string{"vol-1", "vol-2"} {
			if s := w.claim(h).Status; s.Capacity.Storage().Value() != 2<<20 || s.AllocatedResourceStatuses != nil {
				t.Errorf("claim %s has status %+v", h, s)
			}
		}
	})
}

// TestPodLeavesDuringExpansion: a call that hangs ends with its deadline, and the volume is then taken down.
func TestPodLeavesDuringExpansion(t *testing.T) {
	scenario(t, csitest.Options{}, func(_ *testing.T, w *world) {
		w.addClaim("vol-1")
		w.enlarge("vol-1")
		w.driver.Inject(csitest.Fault{Method: "NodeExpandVolume", Hang: true})
		p := w.claimed("a", "vol-1")
		w.m.Want(p)
		time.Sleep(time.Second)
		w.m.Drop(p.Pod)
		time.Sleep(10 * time.Minute)
		w.expectCalls("nothing is expanded for a pod that is gone", "NodeStageVolume", "NodePublishVolume", "NodeExpandVolume", "NodeUnpublishVolume", "NodeUnstageVolume")
		w.expectClean()
	})
}
