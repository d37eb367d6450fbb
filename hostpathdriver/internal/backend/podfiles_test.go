package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/podinfo"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func fullPod() podinfo.Info {
	return podinfo.Info{Name: "web-0", Namespace: "shop", UID: "u1", ServiceAccount: "web", Tokens: `{"aud":{"token":"first"}}`, Ephemeral: true}
}

// podRequest asks for an inline volume with the files of a pod.
func (w *world) podRequest() *volume.TargetRequest {
	req := w.inlineRequest("csi-1", map[string]string{"podInfo": "true"})
	req.Inline.Pod = fullPod()
	return req
}

// podFiles reads what the workload sees, directories left out.
func (w *world) podFiles() map[string]string {
	w.t.Helper()
	entries, err := os.ReadDir(w.inlineContents("csi-1"))
	w.must(err)
	found := map[string]string{}
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(w.inlineContents("csi-1"), entry.Name()))
		w.must(err)
		found[entry.Name()] = string(content)
	}
	return found
}

// checkTokens reports whether the workload has the tokens, and no other files than
// those of its pod.
func (w *world) checkTokens(want podinfo.Tokens) error {
	found := w.podFiles()
	if found[podinfo.FileTokens] != string(want) || len(found) != len(fullPod().Files()) {
		return fmt.Errorf("files %v, want tokens %q", found, string(want))
	}
	return nil
}

func (w *world) inode(name string) uint64 {
	w.t.Helper()
	var st unix.Stat_t
	w.must(unix.Lstat(filepath.Join(w.inlineContents("csi-1"), name), &st))
	return st.Ino
}

// TestRepublishRenewsTokens: the kubelet repeats the call with new tokens. They
// are seen through the mount that is there.
func TestRepublishRenewsTokens(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	req := w.podRequest()
	w.must(s.node.Publish(s.ctx, req))
	want := map[string]string{"pod.name": "web-0", "pod.namespace": "shop", "pod.uid": "u1", "serviceAccount.name": "web", "tokens": `{"aud":{"token":"first"}}`}
	if diff := cmp.Diff(want, w.podFiles()); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	name, mounts := w.inode("pod.name"), w.fake.Targets()
	req.Inline.Pod.Tokens, want["tokens"] = "second", "second"
	w.must(s.node.Renew(s.ctx, req), s.node.Renew(s.ctx, req))
	if diff := cmp.Diff(want, w.podFiles()); diff != "" {
		t.Errorf("republished (-want +got):\n%s", diff)
	}
	if w.inode("pod.name") != name {
		t.Error("a file that has not changed is another one")
	}
	if diff := cmp.Diff(mounts, w.fake.Targets()); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	req.Inline.Pod.Tokens, req.Inline.Pod.ServiceAccount = "", ""
	delete(want, "tokens")
	delete(want, "serviceAccount.name")
	w.must(s.node.Renew(s.ctx, req))
	if diff := cmp.Diff(want, w.podFiles()); diff != "" {
		t.Errorf("no tokens any more (-want +got):\n%s", diff)
	}
	record, err := os.ReadFile(filepath.Join(nodeDir(w.stateDir, testNode), recordsDir, "csi-1.json"))
	if err != nil || strings.Contains(string(record), "first") || strings.Contains(string(record), "second") {
		t.Errorf("the record has tokens (%v):\n%s", err, record)
	}
	w.must(s.node.Unpublish(s.ctx, "csi-1", w.target("csi-1")))
	if left := append(w.files(), w.fake.Targets()...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestRenewTouchesNothingElse: who did not ask for files has none, whatever the
// kubelet tells, and a volume that is not published is not affected.
func TestRenewTouchesNothingElse(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	req := w.inlineRequest("csi-1", nil)
	req.Inline.Pod = fullPod()
	w.must(s.node.Renew(s.ctx, req), s.node.Publish(s.ctx, req), s.node.Renew(s.ctx, req))
	if found := w.podFiles(); len(found) > 0 {
		t.Errorf("files %v, want none", found)
	}
	v := s.create("pvc-1")
	w.must(s.node.Stage(s.ctx, w.stageRequest(v.ID)), s.node.Publish(s.ctx, w.targetRequest(v.ID)), s.node.Renew(s.ctx, w.targetRequest(v.ID)))
}

// TestPodFilesAreTheOwners: tokens are for the owner of the volume alone.
func TestPodFilesAreTheOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving files away needs root")
	}
	w := newWorld(t)
	s := w.boot()
	req := w.podRequest()
	req.Inline.Attributes["uid"], req.Inline.Attributes["gid"] = "1234", "567"
	w.must(s.node.Publish(s.ctx, req))
	for name, mode := range map[string]uint32{"tokens": 0o600, "pod.name": 0o644} {
		var st unix.Stat_t
		w.must(unix.Lstat(filepath.Join(w.inlineContents("csi-1"), name), &st))
		if st.Uid != 1234 || st.Gid != 567 || st.Mode&0o7777 != mode {
			t.Errorf("%s: uid %d, gid %d, mode %o, want 1234, 567, %o", name, st.Uid, st.Gid, st.Mode&0o7777, mode)
		}
	}
}

// TestPodFilesRefused: nothing is left of a call that cannot be served.
func TestPodFilesRefused(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(r *volume.TargetRequest)
		err    error
	}{
		"Image":   {reason: "its file system may be mounted read-only", change: func(r *volume.TargetRequest) { r.Target.Capability.FSType = "ext4" }, err: volume.ErrInvalid},
		"Backend": {reason: "the same by another attribute", change: func(r *volume.TargetRequest) { r.Inline.Attributes["backend"] = "image" }, err: volume.ErrInvalid},
		"NotTold": {reason: "podInfoOnMount is false", change: func(r *volume.TargetRequest) { r.Inline.Pod = podinfo.Info{Ephemeral: true} }, err: volume.ErrPrecondition},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.boot()
			req := w.podRequest()
			c.change(req)
			wantErr(t, c.reason, s.node.Publish(s.ctx, req), c.err)
			if left := append(w.files(), w.fake.Targets()...); len(left) > 0 {
				t.Errorf("%s: left: %v", c.reason, left)
			}
		})
	}
	w := newWorld(t)
	s := w.boot()
	req := w.podRequest()
	w.must(s.node.Publish(s.ctx, req))
	req.Inline.Pod = podinfo.Info{Ephemeral: true}
	wantErr(t, "republished with nothing told", s.node.Renew(s.ctx, req), volume.ErrPrecondition)
	if w.podFiles()["pod.name"] != "web-0" {
		t.Errorf("the files are gone: %v", w.podFiles())
	}
}

// TestPodFilesInHostileVolume: the workload owns the directory in which a
// privileged process writes.
func TestPodFilesInHostileVolume(t *testing.T) {
	cases := map[string]struct {
		reason string
		plant  func(path, victim string) error
		fails  bool
	}{
		"Link":         {reason: "a link to a file of the machine", plant: func(path, victim string) error { return os.Symlink(victim, path) }},
		"RelativeLink": {reason: "a link upwards", plant: func(path, _ string) error { return os.Symlink("../../../../victim", path) }},
		"LoopOfLinks":  {reason: "a link to itself", plant: func(path, _ string) error { return os.Symlink(filepath.Base(path), path) }},
		"Pipe":         {reason: "opening it would wait forever", plant: func(path, _ string) error { return unix.Mkfifo(path, 0o666) }},
		"EmptyFolder":  {reason: "what cannot be replaced is an error", plant: func(path, _ string) error { return os.Mkdir(path, 0o700) }, fails: true},
		"LargerFile":   {reason: "the right beginning", plant: func(path, _ string) error { return os.WriteFile(path, []byte("web-0 and more"), 0o600) }},
		"BesideIsTaken": {reason: "the name that is written first", plant: func(path, victim string) error {
			return os.Symlink(victim, filepath.Join(filepath.Dir(path), ".pod.name.new"))
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.boot()
			req := w.podRequest()
			w.must(s.node.Publish(s.ctx, req))
			path, victim := filepath.Join(w.inlineContents("csi-1"), "pod.name"), filepath.Join(w.stateDir, "victim")
			w.writeFile(victim, "precious")
			w.must(os.Remove(path), c.plant(path, victim))
			err := s.node.Renew(s.ctx, req)
			if (err != nil) != c.fails {
				t.Errorf("%s: %v", c.reason, err)
			}
			if content, err := os.ReadFile(victim); err != nil || string(content) != "precious" {
				t.Errorf("%s: the victim has %q, %v", c.reason, content, err)
			}
			if !c.fails && w.podFiles()["pod.name"] != "web-0" {
				t.Errorf("%s: files %v", c.reason, w.podFiles())
			}
			w.must(s.node.Unpublish(s.ctx, "csi-1", w.target("csi-1")))
			if _, err := os.Lstat(w.inlineContents("csi-1")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: the volume is left: %v", c.reason, err)
			}
		})
	}
}

// TestPodFilesThroughAReadOnlyMount: the workload only reads, the node writes.
func TestPodFilesThroughAReadOnlyMount(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	req := w.podRequest()
	req.Target.ReadOnly = true
	w.must(s.node.Publish(s.ctx, req))
	req.Inline.Pod.Tokens = "second"
	w.must(s.node.Renew(s.ctx, req))
	if w.podFiles()["tokens"] != "second" || !w.fake.At(w.target("csi-1")).Options.ReadOnly {
		t.Errorf("files %v, mount %+v", w.podFiles(), w.fake.At(w.target("csi-1")))
	}
}
