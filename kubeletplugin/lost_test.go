package kubeletplugin

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

const lostDriver = "d.example"

// lostRecords returns a Plugin that has found n targets without a record, ten in each pod, and something in the staging directory of each.
func lostRecords(n int) *Plugin {
	root, found := layout.Root("/var/lib/kubelet"), &volume.Found{}
	for i := range n {
		k := volume.Key{Pod: types.UID(fmt.Sprintf("uid-%d", i/10)), SpecName: fmt.Sprintf("pv-%d", i)}
		found.Lost = append(found.Lost, volume.Lost{Key: k, Path: root.Target(k.Pod, k.SpecName)})
		found.Foreign = append(found.Foreign, volume.Foreign{Path: root.Staging(lostDriver, k.SpecName)})
	}
	return &Plugin{root: root, unexplained: newUnexplained(root, found)}
}

// explain forgets all that lostRecords has made, pod by pod, and returns how much memory that takes, in bytes.
func explain(t *testing.T, n int) (bytes float64) {
	t.Helper()
	p := lostRecords(n)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	none := false
	for i := range n / 10 {
		for _, l := range p.lostOf(types.UID(fmt.Sprintf("uid-%d", i))) {
			none = p.forgetLost([]volume.Key{l.Key}, p.root.StagingDir(lostDriver, l.Key.SpecName))
		}
	}
	runtime.ReadMemStats(&after)
	if lost, foreign := p.Unexplained(); !none || len(lost)+len(foreign) > 0 {
		t.Fatalf("of %d lost records, %d and %d other paths are left", n, len(lost), len(foreign))
	}
	return float64(after.TotalAlloc - before.TotalAlloc)
}

// TestLostIsLinear counts memory, of which each copy of a list, and each comparison of paths, takes some: ten times the lost records take about ten times as much.
func TestLostIsLinear(t *testing.T) {
	few, many := explain(t, 300), explain(t, 3000)
	t.Logf("%.0f bytes for 300 lost records, %.0f for 3000: ratio %.1f", few, many, many/few)
	if many > 15*few {
		t.Errorf("%.0f bytes for 300 lost records, %.0f for 3000: more than 15 times as much", few, many)
	}
}

// TestForgetLost explains one path after the other.
func TestForgetLost(t *testing.T) {
	root := layout.Root("/var/lib/kubelet")
	staging, other := root.StagingDir(lostDriver, "h1"), root.StagingDir(lostDriver, "h2")
	paths := []string{staging, filepath.Join(staging, "globalmount"), staging + "-copy", filepath.Join(root.Drivers(), lostDriver), other + "/globalmount/file", "/elsewhere"}
	found := &volume.Found{}
	for _, path := range paths {
		found.Foreign = append(found.Foreign, volume.Foreign{Path: path})
	}
	for _, pod := range []types.UID{"a", "b"} {
		for _, spec := range []string{"1", "2"} {
			k := volume.Key{Pod: pod, SpecName: spec}
			found.Lost = append(found.Lost, volume.Lost{Key: k, Path: root.Target(pod, spec)})
		}
	}
	tests := map[string]struct {
		reason  string
		targets []volume.Key
		staging string
		lost    int
		foreign []string
	}{
		"Nothing": {reason: "nothing is known", lost: 4, foreign: []string{"/elsewhere", paths[3], staging, staging + "-copy", paths[1], paths[4]}},
		"Target":  {reason: "one target of one pod is known", targets: []volume.Key{{Pod: "b", SpecName: "1"}}, lost: 3, foreign: paths},
		"Pod":     {reason: "all targets of a pod are known", targets: []volume.Key{{Pod: "a", SpecName: "1"}, {Pod: "a", SpecName: "2"}}, lost: 2, foreign: paths},
		"Staging": {reason: "a staging directory is known, with what is in it", staging: staging, lost: 4, foreign: []string{staging + "-copy", paths[3], paths[4], paths[5]}},
		"Beneath": {reason: "what is deep in it is known, too", staging: other, lost: 4, foreign: []string{staging, paths[1], paths[2], paths[3], paths[5]}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := &Plugin{root: root, unexplained: newUnexplained(root, found)}
			if p.forgetLost(tt.targets, tt.staging) {
				t.Errorf("%s: nothing is left", tt.reason)
			}
			lost, foreign := p.Unexplained()
			left := map[string]bool{}
			for _, f := range foreign {
				left[f.Path] = true
			}
			want := map[string]bool{}
			for _, path := range tt.foreign {
				want[path] = true
			}
			if diff := cmp.Diff(want, left); len(lost) != tt.lost || diff != "" {
				t.Errorf("%s: %d targets are left, want %d; other paths (-want +got):\n%s", tt.reason, len(lost), tt.lost, diff)
			}
		})
	}
}
