package copier

import (
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkClone copies a volume of 10 GiB in which 100 MiB were written: with
// shared blocks on xfs, with the kernel's copy, and through memory. Set TMPDIR
// to choose the disk.
func BenchmarkClone(b *testing.B) {
	b.Run("Reflink", func(b *testing.B) { benchmarkClone(b, xfs(b, 512<<20), Options{}) })
	b.Run("Copy", func(b *testing.B) { benchmarkClone(b, b.TempDir(), Options{}) })
	b.Run("NoReflink", func(b *testing.B) { benchmarkClone(b, b.TempDir(), Options{NoReflink: true}) })
}

func benchmarkClone(b *testing.B, dir string, o Options) {
	const blocks, size, data = 100, 10 << 30, 1 << 20 // in pieces of 1 MiB, 100 MiB apart
	layout := make([]block, 0, blocks)
	for i := range int64(blocks) {
		layout = append(layout, block{i * 100 * data, data})
	}
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	writeSparse(b, from, size, layout...)
	o.Progress = to + ".progress"
	var written int64
	for b.Loop() {
		r, err := File(b.Context(), from, to, o)
		must(b, err)
		if r.Written > blocks*data || !r.Reflinked && r.Written < blocks*data {
			b.Fatalf("%d bytes written of %d", r.Written, blocks*data)
		}
		written += r.Written
		must(b, Forget(o.Progress), os.Remove(to))
	}
	b.ReportMetric(float64(written)/float64(b.N)/(1<<20), "MB-written")
}
