package volume_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/redact"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/fsgroup"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// republished is a volume of a driver that wants NodePublishVolume to be repeated.
func republished(p volume.Publication) volume.Publication {
	p.Republish = true
	return p
}

// publishes lists all requests to publish a volume.
func (w *world) publishes() []*csi.NodePublishVolumeRequest {
	var all []*csi.NodePublishVolumeRequest
	for _, c := range w.driver.Calls() {
		if r, ok := c.Request.(*csi.NodePublishVolumeRequest); ok {
			all = append(all, r)
		}
	}
	return all
}

// TestRepublish: the call is repeated every 60 to 90 seconds, with new tokens and secrets, and no other call is made.
func TestRepublish(t *testing.T) {
	for name, p := range map[string]volume.Publication{"Persistent": persistentOf("a", "vol-1"), "Inline": inlineOf("a", "v")} {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				p := republished(w.withTokens(p))
				p.PublishSecret = &corev1.SecretReference{Namespace: "ns", Name: "s"}
				w.m.Want(p)
				w.expectPublished(p, true)
				w.driver.ResetCalls()
				time.Sleep(time.Hour)
				synctest.Wait()
				tokens := map[string]bool{}
				for _, r := range w.publishes() {
					tokens[r.GetVolumeContext()[redact.TokensKey]] = true
					if r.GetSecrets()["from"] != "ns/s" || r.GetTargetPath() != w.root.Target("uid-a", p.SpecName) {
						t.Errorf("request is %v", r)
					}
				}
				if n := len(w.calls()); n < 40 || n > 60 || n != len(w.publishes()) {
					t.Errorf("%d calls, %d of them NodePublishVolume; want nothing else, every 60 to 90 seconds", n, len(w.publishes()))
				}
				if len(tokens) != 7 && len(tokens) != 8 { // which live for ten minutes, and are refreshed after eight
					t.Errorf("%d different tokens in an hour, want one in 8 to 9.5 minutes", len(tokens))
				}
				w.expectPublished(p, true)
				w.expectEvents("nothing has failed")
				w.m.Drop(p.Pod)
				synctest.Wait()
				w.driver.ResetCalls()
				time.Sleep(time.Hour)
				w.expectCalls("not for a volume that is gone")
				w.expectClean()
			})
		})
	}
}

// TestNoRepublish: only drivers that want it.
func TestNoRepublish(t *testing.T) {
	scenario(t, csitest.Options{}, func(_ *testing.T, w *world) {
		w.m.Want(persistentOf("a", "vol-1"))
		time.Sleep(time.Hour)
		w.expectCalls("published once", "NodeStageVolume", "NodePublishVolume")
	})
}

// TestRepublishErrorKeepsTheMount is kubelet issue 121271: whatever the answer, the mount that the pod uses stays, and so does its record;
// the pod learns of the failure, the call is repeated with backoff, and the next success ends it.
func TestRepublishErrorKeepsTheMount(t *testing.T) {
	cases := map[string]csitest.Fault{"Capabilities": {Method: "NodeGetCapabilities", Code: codes.Internal}}
	for _, code := range []codes.Code{
		codes.Internal, codes.NotFound, codes.InvalidArgument, codes.FailedPrecondition, codes.DeadlineExceeded, codes.Unknown, codes.Unimplemented,
		codes.AlreadyExists, codes.PermissionDenied, codes.ResourceExhausted, codes.Aborted, codes.Unavailable, codes.DataLoss,
	} {
		cases[code.String()] = csitest.Fault{Method: "NodePublishVolume", Code: code}
		cases[code.String()+"After"] = csitest.Fault{Method: "NodePublishVolume", Code: code, After: true}
	}
	for name, fault := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				for _, p := range []volume.Publication{republished(persistentOf("a", "vol-1")), republished(inlineOf("a", "v"))} {
					w.m.Want(p)
					w.expectPublished(p, true)
					dir := w.root.TargetDir("uid-a", p.SpecName)
					if err := os.Mkdir(w.root.Target("uid-a", p.SpecName), 0o750); err != nil { // what the driver of a kubelet mounts on
						t.Fatal(err)
					}
					w.driver.ResetCalls()
					w.driver.Inject(fault)
					time.Sleep(10 * time.Minute)
					w.expectPublished(p, true)
					calls := w.calls()
					if slices.Contains(calls, "NodeUnpublishVolume") || slices.Contains(calls, "NodeUnstageVolume") {
						t.Errorf("the volume was taken down: %v", calls)
					}
					if left, _ := filepath.Glob(dir + "/*"); len(left) != 2 {
						t.Errorf("left on disk: %v, want the target and its record", left)
					}
					if n := len(w.driver.Calls()); n < 8 || n > 40 {
						t.Errorf("%d calls in ten minutes, want backoff up to two minutes", n)
					}
					want := `a FailedMount: MountVolume.SetUp failed for volume "` + p.SpecName + `" : `
					w.set(func() {
						if len(w.events) == 0 || !strings.HasPrefix(w.events[0], want) {
							t.Errorf("events are %q, want %q", w.events, want)
						}
						w.events = nil
					})
					w.driver.Heal()
					time.Sleep(10 * time.Minute)
					w.expectEvents("it works again")
					w.m.Drop(p.Pod)
					time.Sleep(10 * time.Minute)
				}
				w.expectClean()
			})
		})
	}
}

// TestRepublishWithoutItsNeeds: a driver, a token, a secret or an attachment that is missing changes nothing for the pod.
func TestRepublishWithoutItsNeeds(t *testing.T) {
	cases := map[string]struct {
		take, give func(w *world)
		event      string
	}{
		"Driver": {take: func(w *world) { w.registered = false }, give: func(w *world) { w.registered = true }, event: "not registered"},
		"Secret": {take: func(w *world) { w.secretErr = errors.New("no secret") }, give: func(w *world) { w.secretErr = nil }, event: "no secret"},
		"Attachment": {
			take: func(w *world) { clear(w.attached) }, event: "not found",
			give: func(w *world) {
				w.attached[persistentOf("a", "vol-1").Volume.Name] = &volume.Attachment{UID: "va-1"}
			},
		},
		"Token": {
			take:  func(w *world) { w.api.Inject(kubetest.Fault{Resource: "serviceaccounts/token", Err: errAway}) },
			give:  func(w *world) { w.api.Heal() },
			event: "away",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
				p := republished(w.withTokens(persistentOf("a", "vol-1")))
				p.Volume.Attachable, p.PublishSecret = true, &corev1.SecretReference{Namespace: "ns", Name: "s"}
				w.attach("vol-1", "va-1")
				w.m.Want(p)
				w.expectPublished(p, true)
				w.set(func() { tc.take(w) })
				w.driver.ResetCalls()
				time.Sleep(time.Hour)
				w.expectPublished(p, true)
				if calls := w.calls(); slices.Contains(calls, "NodeUnpublishVolume") {
					t.Errorf("the volume was taken down: %v", calls)
				}
				w.set(func() {
					if len(w.events) == 0 || !strings.Contains(w.events[0], tc.event) {
						t.Errorf("events are %q, want %q", w.events, tc.event)
					}
					tc.give(w)
				})
				w.driver.ResetCalls()
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if len(w.publishes()) == 0 {
					t.Error("the call is not repeated any more")
				}
				w.m.Drop(p.Pod)
				synctest.Wait()
				w.expectClean()
			})
		})
	}
}

// TestRepublishForAnotherAttachment: what is staged belongs to a device that may be gone, so the driver is not called; the pod learns of it.
func TestRepublishForAnotherAttachment(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := republished(persistentOf("a", "vol-1"))
		p.Volume.Attachable = true
		w.attach("vol-1", "va-1")
		w.m.Want(p)
		w.expectPublished(p, true)
		w.driver.ResetCalls()
		w.attach("vol-1", "va-2")
		time.Sleep(time.Hour)
		w.expectPublished(p, true)
		w.expectCalls("not for another device")
		w.expectEvents("two events", "FailedMount", "StaleVolumeMount")
	})
}

// TestRepublishedFilesGetTheGroup: the driver may have made new files; the pod has its volume all the time.
func TestRepublishedFilesGetTheGroup(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := republished(grouped("a", "vol-1"))
		w.m.Want(p)
		w.expectPublished(p, true)
		change := fsgroup.Change{Path: w.root.Target("uid-a", "pv-vol-1"), Group: 7}
		w.expectGroups("at first", change)
		w.set(func() { w.changeGroup = w.brokenGroup })
		time.Sleep(90 * time.Second)
		w.expectGroups("after the repeated call", change)
		w.expectPublished(p, true)
	})
}

// TestRefresh: a change of the CSIDriver object takes effect with the next call, which is not made for it at once.
func TestRefresh(t *testing.T) {
	scenario(t, csitest.Options{}, func(t *testing.T, w *world) {
		p := w.withTokens(persistentOf("a", "vol-1"))
		p.Tokens = nil
		w.m.Refresh(p) // not known
		w.m.Want(p)
		w.expectPublished(p, true)
		w.driver.ResetCalls()
		w.m.Refresh(republished(w.withTokens(p)))
		time.Sleep(59 * time.Second)
		w.expectCalls("not yet")
		time.Sleep(time.Minute)
		w.expectPublished(p, true)
		if all := w.publishes(); len(all) != 1 || !strings.Contains(all[0].GetVolumeContext()[redact.TokensKey], "token-1") {
			t.Errorf("calls are %v, want one with a token", all)
		}
		w.driver.ResetCalls()
		w.m.Refresh(p)
		time.Sleep(time.Hour)
		w.expectCalls("not any more")
		w.m.Drop(p.Pod)
		w.m.Refresh(republished(p))
		time.Sleep(time.Hour)
		w.expectClean()
	})
}
