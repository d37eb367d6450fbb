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
	b.Run("Shared", func(b *testing.B) { benchmarkClone(b, xfs(b, 512<<20), false) })
	b.Run("Copy", func(b *testing.B) { benchmarkClone(b, b.TempDir(), false) })
	b.Run("Buffered", func(b *testing.B) { benchmarkClone(b, b.TempDir(), true) })
}

func benchmarkClone(b *testing.B, dir string, noShare bool) {
	const blocks, size, data = 100, 10 << 30, 1 << 20 // in pieces of 1 MiB, 100 MiB apart
	layout := make([]block, 0, blocks)
	for i := range int64(blocks) {
		layout = append(layout, block{i * 100 * data, data})
	}
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	writeSparse(b, from, size, layout...)
	var written int64
	for b.Loop() {
		j := newJob(to)
		j.noShare = noShare
		r, err := j.file(b.Context(), from)
		must(b, err)
		if j.written > blocks*data || !r.Shared && j.written < blocks*data {
			b.Fatalf("%d bytes written of %d", j.written, blocks*data)
		}
		written += j.written
		must(b, os.Remove(to))
	}
	b.ReportMetric(float64(written)/float64(b.N)/(1<<20), "MB-written")
}
