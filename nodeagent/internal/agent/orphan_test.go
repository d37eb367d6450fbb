package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
)

// TestOrphanedPodDirectories: an agent that is killed while it removes the directories of a pod leaves some of them; the
// pod is gone from the API, so only a scan finds them. Files are never removed: they are not the agent's.
func TestOrphanedPodDirectories(t *testing.T) {
	cases := map[string]struct {
		reason string
		late   bool
	}{
		"AtStart":  {reason: "left by an earlier process"},
		"Periodic": {reason: "found by the periodic sweep", late: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, csitest.Options{})
			c.cfg.SweepInterval = 10 * time.Millisecond
			kept := filepath.Join(c.root.Pod("uid-kept"), "etc-hosts")
			leave := func() {
				c.leave("uid-half", func(root layout.Root) error { // the CSI directory is gone already
					return os.MkdirAll(filepath.Dir(root.PodVolumes("uid-half")), 0o750)
				})
				c.leave("uid-whole", func(root layout.Root) error { // a volume directory without a record
					return os.MkdirAll(root.TargetDir("uid-whole", "pv-1"), 0o750)
				})
				c.leave("uid-kept", func(root layout.Root) error {
					return errors.Join(os.MkdirAll(root.Pod("uid-kept"), 0o750), os.WriteFile(filepath.Join(root.Pod("uid-kept"), "etc-hosts"), nil, 0o600))
				})
			}
			if !tc.late {
				leave()
			}
			c.start()
			c.eventually("the node to be ready", c.ready)
			if tc.late {
				leave()
			}
			for _, uid := range []string{"uid-half", "uid-whole"} {
				c.eventually("the directory of pod "+uid+" to be removed: "+tc.reason, func() bool {
					_, err := os.Lstat(c.root.Pod(types.UID(uid)))
					return errors.Is(err, fs.ErrNotExist)
				})
			}
			if _, err := os.Lstat(kept); err != nil {
				t.Errorf("a file of somebody else was removed: %v", err)
			}
		})
	}
}

// leave lets the directory of a pod appear at once: a sweep meanwhile would remove what is empty yet.
func (c *cluster) leave(uid types.UID, build func(root layout.Root) error) {
	c.t.Helper()
	made := layout.Root(filepath.Join(string(c.root), "made"))
	if err := errors.Join(build(made), os.MkdirAll(c.root.Pods(), 0o750), os.Rename(made.Pod(uid), c.root.Pod(uid))); err != nil {
		c.t.Fatal(err)
	}
}
