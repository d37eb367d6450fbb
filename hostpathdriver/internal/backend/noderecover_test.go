package backend

import (
	"os"
	"path/filepath"
	"testing"
)

// TestInlineVolumesStayWithoutTheDirectoryOfTheirTargets: the kubelet's directory
// may be mounted later than the driver starts.
func TestInlineVolumesStayWithoutTheDirectoryOfTheirTargets(t *testing.T) {
	w := newWorld(t)
	s := w.boot()
	request := w.inlineRequest("csi-1", nil)
	request.Target.Path = filepath.Join(w.pods, "uid", "mount")
	w.must(os.Mkdir(filepath.Dir(request.Target.Path), 0o700), s.node.Publish(s.ctx, request))
	w.writeFile(filepath.Join(w.inlineContents("csi-1"), "file"), "precious")
	w.reboot()
	away := filepath.Join(t.TempDir(), "pods")
	w.must(os.Rename(w.pods, away))
	s = w.boot()
	w.wantFile(filepath.Join(w.inlineContents("csi-1"), "file"), "precious")
	w.must(os.Rename(away, w.pods), s.node.Publish(s.ctx, request))
	w.reboot()
	w.must(os.Remove(request.Target.Path))
	s = w.boot()
	if s.node.get("csi-1") != nil {
		t.Error("the target is gone from its directory, and the volume is still there")
	}
}
