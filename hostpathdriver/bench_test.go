package hostpathdriver

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
)

// BenchmarkCreateDelete makes and deletes volumes over a socket: one caller
// after the other, many at once, and many at once at two controllers that
// share the state directory. Set TMPDIR to choose the disk.
func BenchmarkCreateDelete(b *testing.B) {
	b.Run("One", func(b *testing.B) {
		m := newMachine(b)
		p := m.start(m.options(ModeController, ""))
		for i := 0; b.Loop(); i++ {
			m.check("pair", m.createDelete(p, strconv.Itoa(i)))
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
	})
	many := func(controllers ...string) func(b *testing.B) {
		return func(b *testing.B) {
			m := newMachine(b)
			var started []*process
			for _, name := range controllers {
				o := m.options(ModeController, "")
				o.Endpoint = "unix://" + m.path(name+".sock")
				started = append(started, m.start(o))
			}
			var names atomic.Int64
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				p := started[int(names.Add(1))%len(started)]
				for pb.Next() {
					m.check("pair", m.createDelete(p, strconv.FormatInt(names.Add(1), 10)))
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
		}
	}
	b.Run("Many", many("a"))
	b.Run("Shared", many("a", "b"))
}

// BenchmarkAmongMany is CreateDelete/One beside volumes that exist already, and
// the restart of a driver that has as many: what a call costs must not depend
// on them.
func BenchmarkAmongMany(b *testing.B) {
	for _, existing := range []int{0, 1000, 10000} {
		m := newMachine(b)
		o := m.options(ModeController, "")
		p := m.start(o)
		m.fill(p, existing)
		b.Run(fmt.Sprintf("CreateDelete/%d", existing), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				m.check("pair", m.createDelete(p, strconv.Itoa(i)))
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
		})
		p.end()
		b.Run(fmt.Sprintf("Restart/%d", existing), func(b *testing.B) {
			for b.Loop() {
				m.start(o).end()
			}
		})
	}
}

// fill makes volumes, many at a time.
func (m *machine) fill(p *process, volumes int) {
	m.t.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for i := range volumes {
		group.Go(func() error {
			_, err := p.CreateVolume(m.ctx, smallRequest(fmt.Sprintf("existing-%d", i)))
			return err
		})
	}
	m.must(nil, group.Wait())
}
