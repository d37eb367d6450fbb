package recovery

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// leftovers make what an earlier process has left of the i-th volume of a node, ten in each pod, and return what is mounted.
var leftovers = map[string]func(tr tree, i int) []volume.MountPoint{
	"Published": func(tr tree, i int) []volume.MountPoint { return tr.leave(i) },
	"LostTargets": func(tr tree, i int) []volume.MountPoint {
		mounts := tr.leave(i)
		tr.spoil(filepath.Dir(mounts[1].Point))
		return mounts
	},
	"UnusedDevices": func(tr tree, i int) []volume.MountPoint {
		tr.must(os.MkdirAll(tr.disk.Root.DeviceRecordDir(fmt.Sprintf("pv-%d", i)), 0o750))
		return tr.leave(i)
	},
}

// leave makes a staged and published volume. Its records are not synced to disk, which takes most of the time where there are thousands.
func (tr tree) leave(i int) []volume.MountPoint {
	tr.t.Helper()
	root, handle, spec, pod := tr.disk.Root, fmt.Sprintf("vol-%d", i), fmt.Sprintf("pv-%d", i), types.UID(fmt.Sprintf("uid-%d", i/10))
	text := fmt.Appendf(nil, `{"driverName":%q,"volumeHandle":%q}`, driver, handle)
	for _, dir := range []string{root.StagingDir(driver, handle), root.TargetDir(pod, spec)} {
		tr.must(os.MkdirAll(dir, 0o750))
		tr.must(os.WriteFile(filepath.Join(dir, layout.RecordFile), text, 0o600))
	}
	source := fmt.Sprintf("8:1/%d", i)
	return []volume.MountPoint{{Point: root.Staging(driver, handle), Source: source}, {Point: root.Target(pod, spec), Source: source}}
}

// scanOf makes what is left of n volumes, and returns a scan of it.
func scanOf(t testing.TB, n int, left func(tr tree, i int) []volume.MountPoint) func() {
	t.Helper()
	tr := newTree(t)
	var mounts []volume.MountPoint
	for i := range n {
		mounts = append(mounts, left(tr, i)...)
	}
	return func() {
		found, err := Scan(tr.disk.Root, func(string) ([]volume.MountPoint, error) { return mounts, nil })
		if err != nil || len(found.Volumes) != n || len(found.Lost)+len(found.Foreign) > 0 {
			t.Fatalf("found %+v, %v, want %d volumes and nothing else", found, err, n)
		}
	}
}

// TestScanIsLinear counts allocations, of which each comparison of paths takes some: ten times the volumes take about ten times as many.
func TestScanIsLinear(t *testing.T) {
	for name, left := range leftovers {
		t.Run(name, func(t *testing.T) {
			few, many := testing.AllocsPerRun(1, scanOf(t, 30, left)), testing.AllocsPerRun(1, scanOf(t, 300, left))
			t.Logf("%.0f allocations for 30 volumes, %.0f for 300: ratio %.1f", few, many, many/few)
			if many > 12*few {
				t.Errorf("%.0f allocations for 30 volumes, %.0f for 300: more than 12 times as many", few, many)
			}
		})
	}
}

// BenchmarkScan scans what is left of 500 and of 5,000 volumes. The ratio is that of the processor time of both, which other work on the
// machine changes less than the time.
func BenchmarkScan(b *testing.B) {
	for name, left := range leftovers {
		b.Run(name, func(b *testing.B) {
			few, many := scanOf(b, 500, left), scanOf(b, 5000, left)
			var times [2]time.Duration
			for b.Loop() {
				for i, scan := range []func(){few, many} {
					before := processorTime(b)
					scan()
					times[i] += processorTime(b) - before
				}
			}
			b.ReportMetric(float64(times[0].Milliseconds())/float64(b.N), "ms/500")
			b.ReportMetric(float64(times[1].Milliseconds())/float64(b.N), "ms/5000")
			b.ReportMetric(float64(times[1])/float64(times[0]), "ratio")
		})
	}
}

// processorTime is what this process has used until now.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
