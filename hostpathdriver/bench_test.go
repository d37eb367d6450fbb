package hostpathdriver

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
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

// BenchmarkBesideACopy is 50 volumes made at once, while nothing else goes on
// and while a volume of 10 GiB with 100 MiB of data is cloned over and over.
// What a clone takes, and what it writes, is told beside: on a disk that
// shares blocks nothing is written. Set TMPDIR to choose the disk.
func BenchmarkBesideACopy(b *testing.B) {
	for _, copying := range []bool{false, true} {
		b.Run(fmt.Sprintf("Copying=%t", copying), func(b *testing.B) {
			m := newMachine(b)
			p := m.start(m.options(ModeController, ""))
			done := make(chan int, 1)
			stop := make(chan struct{})
			if copying {
				source := m.sparse(p)
				go func() { done <- m.cloneUntil(p, source, stop) }()
			}
			for round := 0; b.Loop(); round++ {
				var group errgroup.Group
				for i := range 50 {
					group.Go(func() error { return m.createDelete(p, fmt.Sprintf("%d-%d", round, i)) })
				}
				m.must(nil, group.Wait())
			}
			b.ReportMetric(50*float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
			close(stop)
			if copying {
				b.ReportMetric(b.Elapsed().Seconds()/float64(<-done), "s/clone")
			}
		})
	}
}

// sparse makes a device of 10 GiB with 100 MiB of data.
func (m *machine) sparse(p *process) string {
	m.t.Helper()
	made, err := p.CreateVolume(m.ctx, &csi.CreateVolumeRequest{
		Name: "sparse", VolumeCapabilities: []*csi.VolumeCapability{blockCapability()}, CapacityRange: &csi.CapacityRange{RequiredBytes: 10 << 30},
	})
	m.must(made, err)
	id, piece := made.GetVolume().GetVolumeId(), strings.Repeat("x", 1<<20)
	for i := range int64(100) {
		m.write(id, "disk", piece, i*(100<<20))
	}
	return id
}

// cloneUntil clones and deletes, and returns how often.
func (m *machine) cloneUntil(p *process, source string, stop <-chan struct{}) int {
	for clones := 1; ; clones++ {
		made, err := p.CreateVolume(m.ctx, &csi.CreateVolumeRequest{
			Name: fmt.Sprint("clone-", clones), VolumeCapabilities: []*csi.VolumeCapability{blockCapability()}, VolumeContentSource: ofVolume(source),
		})
		if err == nil {
			_, err = p.DeleteVolume(m.ctx, &csi.DeleteVolumeRequest{VolumeId: made.GetVolume().GetVolumeId()})
		}
		if err != nil {
			m.t.Error(err)
			return clones
		}
		select {
		case <-stop:
			return clones
		default:
		}
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
