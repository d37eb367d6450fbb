package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikit/csitest"
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
			half := filepath.Dir(c.root.PodVolumes("uid-half")) // the CSI directory is gone already
			whole := c.root.TargetDir("uid-whole", "pv-1")      // a volume directory without a record
			kept := filepath.Join(c.root.Pod("uid-kept"), "etc-hosts")
			leave := func() {
				err := errors.Join(os.MkdirAll(half, 0o750), os.MkdirAll(whole, 0o750), os.MkdirAll(filepath.Dir(kept), 0o750),
					os.WriteFile(kept, nil, 0o600))
				if err != nil {
					t.Fatal(err)
				}
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
