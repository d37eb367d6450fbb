package hostpathdriver

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The tests of this file follow the test plan of the design of inline volumes
// (seed 003), and of that of pod information (seed 002), as far as drivers are
// concerned.

// handle is the volume id that the kubelet makes of a pod and one of its
// volumes.
func handle(podUID, volume string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(podUID+volume)))
}

// inline is the call that the kubelet makes for a volume of the pod "uid".
func (m *machine) inline(pod, volume string, attributes map[string]string) *csi.NodePublishVolumeRequest {
	context := map[string]string{
		"csi.storage.k8s.io/ephemeral":           "true",
		"csi.storage.k8s.io/pod.name":            "web-" + pod,
		"csi.storage.k8s.io/pod.namespace":       "shop",
		"csi.storage.k8s.io/pod.uid":             pod,
		"csi.storage.k8s.io/serviceAccount.name": "web",
	}
	maps.Copy(context, attributes)
	return &csi.NodePublishVolumeRequest{
		VolumeId: handle(pod, volume), TargetPath: m.path("pods/" + pod + "/" + volume), VolumeCapability: mountCapability(), VolumeContext: context,
	}
}

func (m *machine) unpublishInline(p *process, req *csi.NodePublishVolumeRequest) {
	m.t.Helper()
	m.must(p.NodeUnpublishVolume(m.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: req.GetVolumeId(), TargetPath: req.GetTargetPath()}))
}

// shownAt is the directory that a mount shows.
func (m *machine) shownAt(req *csi.NodePublishVolumeRequest) string {
	m.t.Helper()
	mounted := m.mounter.At(req.GetTargetPath())
	if mounted == nil {
		m.t.Fatalf("nothing is mounted at %s", req.GetTargetPath())
	}
	return mounted.Source
}

// TestInlineHandles: the design asks for a handle that conforms to the naming of
// resources, which nobody had a test for. What the kubelet makes, with a known
// value, is an id here; what leads elsewhere is none.
func TestInlineHandles(t *testing.T) {
	const known = "csi-424d70bb9c4385fdba3fbe166a680cf8d68ec3022012560d63c12b4e5d9ff15a"
	got := handle("0d4bdab0-0d12-4ca5-8cb1-3e1d1e3cbd3a", "scratch")
	if rule := regexp.MustCompile(`^csi-[0-9a-f]{64}$`); !rule.MatchString(got) || got != known {
		t.Errorf("handle %s, want %s", got, known)
	}
	m := newMachine(t)
	p := m.start(m.options(ModeNode, "n1"))
	req := m.inline("0d4bdab0-0d12-4ca5-8cb1-3e1d1e3cbd3a", "scratch", nil)
	m.must(p.NodePublishVolume(m.ctx, req))
	m.unpublishInline(p, req)
	for _, id := range []string{"../victim", "a/b", ".", "..", ".hidden", "-rf", "a\x00b", "a b", string(make([]byte, 129))} {
		req.VolumeId = id
		_, err := p.NodePublishVolume(m.ctx, req)
		wantCode(t, fmt.Sprintf("%.20q", id), err, codes.InvalidArgument)
	}
	m.checkClean()
}

// TestInlineNeedsTheNodeAlone: only publish and unpublish reach a driver. There
// is no controller that could be called, though volumes must be attached, and
// nothing is staged.
func TestInlineNeedsTheNodeAlone(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeNode, "n1")
	o.Attach = true
	p := m.start(o)
	req := m.inline("u1", "scratch", nil)
	m.must(p.NodePublishVolume(m.ctx, req))
	if _, err := p.CreateVolume(m.ctx, &csi.CreateVolumeRequest{Name: "x"}); status.Code(err) != codes.Unimplemented {
		t.Errorf("CreateVolume: %v, want a process without a controller", err)
	}
	m.unpublishInline(p, req)
	m.checkClean()
}

// TestInlineBesidePersistent: one process serves both kinds and tells them
// apart by what the kubelet says, never by a guess: not said is persistent, for
// which an inline volume was never staged.
func TestInlineBesidePersistent(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeAll, "n1"))
	id := m.create(p, "pvc-1", "").GetVolumeId()
	m.publish(p, id)
	for what, change := range map[string]func(c map[string]string){
		"missing": func(c map[string]string) { delete(c, "csi.storage.k8s.io/ephemeral") },
		"false":   func(c map[string]string) { c["csi.storage.k8s.io/ephemeral"] = "false" },
	} {
		req := m.inline("u1", "scratch", nil)
		change(req.VolumeContext)
		_, err := p.NodePublishVolume(m.ctx, req)
		wantCode(t, what, err, codes.NotFound)
		req.StagingTargetPath = m.path("staging")
		_, err = p.NodePublishVolume(m.ctx, req)
		wantCode(t, what+", and staged", err, codes.NotFound)
	}
	req := m.inline("u1", "scratch", nil)
	req.VolumeContext["csi.storage.k8s.io/ephemeral"] = "perhaps"
	_, err := p.NodePublishVolume(m.ctx, req)
	wantCode(t, "garbage", err, codes.InvalidArgument)
	req = m.inline("u1", "scratch", nil)
	req.VolumeId = id
	_, err = p.NodePublishVolume(m.ctx, req)
	wantCode(t, "inline, with the id of a persistent volume", err, codes.FailedPrecondition)
	m.unpublish(p, id)
	m.must(p.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: id}))
	m.checkClean()
}

// TestInlineSwitchedOff: the mode is checked, so that no data is lost in a volume
// that goes with its pod. The kubelet checks volumeLifecycleModes, the driver
// its flag. What is there already can still be taken away.
func TestInlineSwitchedOff(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeNode, "n1")
	req := m.inline("u1", "scratch", nil)
	p := m.start(o)
	m.must(p.NodePublishVolume(m.ctx, req))
	p.end()
	o.Inline = false
	p = m.start(o)
	_, err := p.NodePublishVolume(m.ctx, m.inline("u2", "scratch", nil))
	wantCode(t, "switched off", err, codes.InvalidArgument)
	m.unpublishInline(p, req)
	m.checkClean()
}

// TestInlineHasPoolsAndAMaximum: who may create pods chooses neither a pool that is not for inline volumes, nor any size.
func TestInlineHasPoolsAndAMaximum(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeNode, "n1")
	o.Capacity = map[string]int64{"fast": 1 << 30, "slow": 1 << 30, "spare": 1 << 31}
	o.MaxInlineSize, o.InlinePools = 1<<20, []string{"slow", "fast"}
	p := m.start(o)
	for name, tc := range map[string]struct {
		reason     string
		attributes map[string]string
		want       codes.Code
	}{
		"Default":    {"without a size the volume is as large as it may be, in the first pool", nil, codes.OK},
		"Largest":    {"the maximum", map[string]string{"size": "1Mi"}, codes.OK},
		"TooLarge":   {"more than the maximum", map[string]string{"size": "2Mi"}, codes.OutOfRange},
		"Pool":       {"another pool of the list", map[string]string{"kind": "fast"}, codes.OK},
		"OtherPool":  {"a pool that is for persistent volumes only", map[string]string{"kind": "spare"}, codes.InvalidArgument},
		"OtherAlias": {"by its other name", map[string]string{"pool": "spare"}, codes.InvalidArgument},
	} {
		req := m.inline("u-"+strings.ToLower(name), "scratch", tc.attributes)
		_, err := p.NodePublishVolume(m.ctx, req)
		wantCode(t, name+": "+tc.reason, err, tc.want)
		if err == nil {
			m.unpublishInline(p, req)
		}
	}
	m.checkClean()
}

// TestInlineCallsAreRepeated, at any time, also over a restart: the volume stays
// the same, and what contradicts is refused. Upstream answers NOT_FOUND to the
// second unpublish.
func TestInlineCallsAreRepeated(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeNode, "n1")
	req := m.inline("u1", "scratch", map[string]string{"size": "10Mi"})
	for range 2 {
		p := m.start(o)
		for range 2 {
			m.must(p.NodePublishVolume(m.ctx, req))
		}
		m.must(nil, os.WriteFile(filepath.Join(m.shownAt(req), "file"), nil, 0o600))
		p.end()
	}
	p := m.start(o)
	other := m.inline("u1", "scratch", map[string]string{"size": "20Mi"})
	_, err := p.NodePublishVolume(m.ctx, other)
	wantCode(t, "with another size", err, codes.AlreadyExists)
	req.Readonly = true
	_, err = p.NodePublishVolume(m.ctx, req)
	wantCode(t, "read-only", err, codes.AlreadyExists)
	for range 2 {
		m.unpublishInline(p, req)
	}
	p.end()
	p = m.start(o)
	m.unpublishInline(p, req)
	m.checkClean()
}

// TestInlineIsHealed: recorded, and not mounted any more.
func TestInlineIsHealed(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeNode, "n1"))
	req := m.inline("u1", "scratch", nil)
	m.must(p.NodePublishVolume(m.ctx, req))
	shown := m.shownAt(req)
	m.must(nil, os.WriteFile(filepath.Join(shown, "file"), nil, 0o600))
	m.must(nil, m.mounter.Unmount(m.ctx, req.GetTargetPath()))
	m.must(p.NodePublishVolume(m.ctx, req))
	if again := m.shownAt(req); again != shown {
		t.Errorf("another volume: %s, was %s", again, shown)
	}
	m.must(os.Stat(filepath.Join(shown, "file")))
}

// TestInlineOrphansAreCollected: the pod went while the driver was down, and
// nobody calls for it any more.
func TestInlineOrphansAreCollected(t *testing.T) {
	m := newMachine(t)
	o := m.options(ModeNode, "n1")
	p := m.start(o)
	orphan, living := m.inline("u1", "scratch", nil), m.inline("u2", "scratch", nil)
	m.must(p.NodePublishVolume(m.ctx, orphan))
	m.must(p.NodePublishVolume(m.ctx, living))
	m.must(nil, os.WriteFile(filepath.Join(m.shownAt(orphan), "file"), nil, 0o600))
	p.end()
	m.must(nil, errors.Join(m.mounter.Unmount(m.ctx, orphan.GetTargetPath()), os.Remove(orphan.GetTargetPath())))
	p = m.start(o)
	left, err := os.ReadDir(m.path("state/nodes/n1/volumes"))
	m.must(nil, err)
	if len(left) != 1 || left[0].Name() != living.GetVolumeId() {
		t.Errorf("volumes %v, want %s", left, living.GetVolumeId())
	}
	m.unpublishInline(p, living)
	m.checkClean()
}

// TestInlineVolumesAreApart: those of two pods with the same attributes, and two
// in one pod. Upstream's definition for the suite says they are shared, so that
// nobody looks.
func TestInlineVolumesAreApart(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeNode, "n1"))
	requests := []*csi.NodePublishVolumeRequest{
		m.inline("u1", "scratch", map[string]string{"size": "1Mi"}),
		m.inline("u2", "scratch", map[string]string{"size": "1Mi"}),
		m.inline("u2", "other", map[string]string{"size": "1Mi"}),
	}
	for _, req := range requests {
		m.must(p.NodePublishVolume(m.ctx, req))
		entries, err := os.ReadDir(m.shownAt(req))
		m.must(nil, err)
		if len(entries) > 0 {
			t.Errorf("%s begins with %v", req.GetTargetPath(), entries)
		}
		m.must(nil, os.WriteFile(filepath.Join(m.shownAt(req), "file"), []byte(req.GetVolumeId()), 0o600))
	}
	for i, req := range requests {
		m.unpublishInline(p, req)
		for _, other := range requests[i+1:] {
			content, err := os.ReadFile(filepath.Join(m.shownAt(other), "file"))
			if err != nil || string(content) != other.GetVolumeId() {
				t.Errorf("%s has %q, %v", other.GetTargetPath(), content, err)
			}
		}
	}
	m.checkClean()
}

// TestInlineLeavesNoPath: neither the target nor anything of the driver is left
// once the pod is gone; what the kubelet made is the kubelet's.
func TestInlineLeavesNoPath(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeNode, "n1"))
	req := m.inline("u1", "scratch", nil)
	m.must(p.NodePublishVolume(m.ctx, req))
	m.must(nil, os.MkdirAll(filepath.Join(m.shownAt(req), "a/b/c"), 0o700))
	m.unpublishInline(p, req)
	if _, err := os.Lstat(req.GetTargetPath()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("target: %v, want it gone", err)
	}
	m.must(os.Stat(filepath.Dir(req.GetTargetPath())))
	m.checkClean()
}

// TestInlineIsNoOther: what the design leaves out is refused, and a key that
// means nothing is not ignored.
func TestInlineIsNoOther(t *testing.T) {
	device := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}, AccessMode: mountCapability().GetAccessMode(),
	}
	cases := map[string]struct {
		reason string
		change func(r *csi.NodePublishVolumeRequest)
	}{
		"Block":      {reason: "raw block is no goal", change: func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = device }},
		"UnknownKey": {reason: "a misspelt size would be 100 MiB", change: func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["sizze"] = "1Gi" }},
		"FSType":     {reason: "nothing makes it", change: func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().FsType = "ntfs" }},
		"Pool": {reason: "two names", change: func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext["pool"], r.VolumeContext["kind"] = "a", "b"
		}},
	}
	m := newMachine(t)
	p := m.start(m.options(ModeNode, "n1"))
	for name, c := range cases {
		req := m.inline("u1", name, nil)
		c.change(req)
		_, err := p.NodePublishVolume(m.ctx, req)
		wantCode(t, name+": "+c.reason, err, codes.InvalidArgument)
	}
	m.checkClean()
}

// TestPodInformationOnPersistentVolumes: tokens and pods may change with every
// call; the volume is the same, and nothing is written to it.
func TestPodInformationOnPersistentVolumes(t *testing.T) {
	m := newMachine(t)
	p := m.start(m.options(ModeAll, "n1"))
	id := m.create(p, "pvc-1", "").GetVolumeId()
	m.publish(p, id)
	req := m.inline("u1", "data", nil)
	req.VolumeId, req.StagingTargetPath, req.TargetPath = id, m.path("staging"), m.path("target")
	req.VolumeContext["csi.storage.k8s.io/ephemeral"] = "false"
	req.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"] = "{}"
	m.must(p.NodePublishVolume(m.ctx, req))
	entries, err := os.ReadDir(m.path("state/volumes/" + id))
	if err != nil || len(entries) > 0 {
		t.Errorf("the volume has %v, %v", entries, err)
	}
	m.unpublish(p, id)
}
