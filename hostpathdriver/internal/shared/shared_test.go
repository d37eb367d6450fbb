package shared

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/hostpathdriver/internal/baton"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// disk is what several processes share.
type disk struct {
	t    *testing.T
	ctx  context.Context // fixture of one test
	path string
	// inside counts the processes that have their turn.
	mu     sync.Mutex
	inside map[*process]int
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	return &disk{t: t, ctx: klog.NewContext(t.Context(), klog.Logger{}), path: filepath.Join(t.TempDir(), "controller.lock"), inside: map[*process]int{}}
}

// process is one driver. It stands for a service and its store, and keeps a
// log of both.
type process struct {
	*Directory

	disk *disk
	// work is what a call does.
	work func(ctx context.Context) error
	// fail is the answer of the store.
	fail error

	mu  sync.Mutex
	log []string
}

func (d *disk) start(turn time.Duration) *process {
	d.t.Helper()
	p := &process{disk: d}
	var err error
	p.Directory, err = Open(d.ctx, Config{LockPath: d.path, Turn: turn, Open: func(context.Context) (volume.Services, Store, error) {
		p.note("open")
		return calls{process: p}, p, nil
	}})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			d.t.Error(err)
		}
	})
	return p
}

func (p *process) note(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, what)
}

func (p *process) Refresh(context.Context) error { p.note("refresh"); return p.fail }
func (p *process) Recover(context.Context) error { p.note("recover"); return p.fail }

// wantLog compares the log since the last time.
func (p *process) wantLog(want ...string) {
	p.disk.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if diff := cmp.Diff(want, p.log); diff != "" {
		p.disk.t.Errorf("log (-want +got):\n%s", diff)
	}
	p.log = nil
}

// calls is the service below the decorator.
type calls struct {
	volume.Services
	process *process
}

func (c calls) call(ctx context.Context, name string) error {
	p, d := c.process, c.process.disk
	d.mu.Lock()
	d.inside[p]++
	if len(d.inside) > 1 {
		d.t.Error("two processes at the same time")
	}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.inside[p]--; d.inside[p] == 0 {
			delete(d.inside, p)
		}
	}()
	p.note(name)
	if p.work != nil {
		return p.work(ctx)
	}
	return nil
}

func (c calls) Create(ctx context.Context, req *volume.CreateRequest) (*volume.Volume, error) {
	return &volume.Volume{Name: req.Name}, c.call(ctx, "create")
}

func (c calls) Delete(ctx context.Context, _ volume.ID) error { return c.call(ctx, "delete") }

func (c calls) Get(ctx context.Context, id volume.ID) (*volume.Volume, error) {
	return &volume.Volume{ID: id}, c.call(ctx, "get")
}

func (c calls) Find(ctx context.Context, name string) (*volume.Volume, error) {
	return &volume.Volume{Name: name}, c.call(ctx, "find")
}

func (c calls) List(ctx context.Context, _ volume.ListRequest) (*volume.Page, error) {
	return &volume.Page{}, c.call(ctx, "list")
}

func (c calls) Capacity(ctx context.Context, _ *volume.CapacityRequest) (volume.Capacity, error) {
	return volume.Capacity{}, c.call(ctx, "capacity")
}

func (c calls) Publish(ctx context.Context, req *volume.PublishRequest) (*volume.Volume, error) {
	return &volume.Volume{ID: req.ID}, c.call(ctx, "publish")
}

func (c calls) Unpublish(ctx context.Context, _ volume.ID, _ string) error {
	return c.call(ctx, "unpublish")
}

func (c calls) Expand(ctx context.Context, req *volume.ExpandRequest) (*volume.Volume, error) {
	return &volume.Volume{ID: req.ID}, c.call(ctx, "expand")
}

func (c calls) Modify(ctx context.Context, _ volume.ID, _ map[string]string) error {
	return c.call(ctx, "modify")
}

func (c calls) Health(ctx context.Context, id volume.ID) (volume.Health, error) {
	return volume.Health{ID: id}, c.call(ctx, "health")
}

func (c calls) ListHealth(ctx context.Context, _ volume.ListRequest) (*volume.HealthPage, error) {
	return &volume.HealthPage{}, c.call(ctx, "list health")
}

func (c calls) Support() volume.Support { return volume.Support{MountFlags: []string{"ro"}} }

func (d *disk) must(errs ...error) {
	d.t.Helper()
	if err := errors.Join(errs...); err != nil {
		d.t.Fatal(err)
	}
}

// everyCall makes each call of the service once, in the order of its log.
func (p *process) everyCall() error {
	ctx := p.disk.ctx
	_, err1 := p.Create(ctx, &volume.CreateRequest{Name: "pvc-1"})
	err2 := p.Delete(ctx, "1")
	_, err3 := p.Get(ctx, "1")
	_, err4 := p.Find(ctx, "pvc-1")
	_, err5 := p.List(ctx, volume.ListRequest{})
	_, err6 := p.Capacity(ctx, &volume.CapacityRequest{})
	_, err7 := p.Publish(ctx, &volume.PublishRequest{ID: "1"})
	_, err8 := p.Expand(ctx, &volume.ExpandRequest{ID: "1"})
	_, err9 := p.Health(ctx, "1")
	_, err10 := p.ListHealth(ctx, volume.ListRequest{})
	return errors.Join(err9, err10, err1, err2, err3, err4, err5, err6, err7, err8, p.Modify(ctx, "1", nil), p.Unpublish(ctx, "1", "n1"))
}

func TestEveryCallNeedsATurn(t *testing.T) {
	d := newDisk(t)
	p := d.start(DefaultTurn)
	d.must(p.everyCall())
	p.wantLog("open", "create", "delete", "get", "find", "list", "capacity", "publish", "expand", "health", "list health", "modify", "unpublish")
	if diff := cmp.Diff(volume.Support{MountFlags: []string{"ro"}}, p.Support()); diff != "" {
		t.Errorf("Support (-want +got):\n%s", diff)
	}

	other := d.start(DefaultTurn)
	if _, err := other.gate.baton.Take(d.ctx); err != nil {
		t.Fatal(err)
	}
	p.wantLog()
	ctx, cancel := context.WithCancel(d.ctx)
	cancel()
	if _, err := p.Get(ctx, "1"); !errors.Is(err, volume.ErrBusy) || !errors.Is(err, context.Canceled) {
		t.Errorf("while another process has its turn: %v, want an ErrBusy", err)
	}
	p.wantLog()
	d.must(other.gate.baton.Give())
}

// TestStoreIsReadAgain: once for each time that another process has changed
// something, and never otherwise.
func TestStoreIsReadAgain(t *testing.T) {
	d := newDisk(t)
	first := d.start(DefaultTurn)
	second := d.start(DefaultTurn)
	get := func(p *process) {
		t.Helper()
		_, err := p.Get(d.ctx, "1")
		d.must(err)
	}
	second.wantLog("open")
	get(first)
	first.wantLog("open", "refresh", "get") // opening may change something
	get(second)
	get(first)
	get(second)
	first.wantLog("get")
	second.wantLog("get", "get")
	d.must(first.Delete(d.ctx, "1"))
	get(first)
	first.wantLog("delete", "get")
	get(second)
	get(second)
	second.wantLog("refresh", "get", "get")
	d.must(second.Delete(d.ctx, "1"), second.Delete(d.ctx, "1"), first.Delete(d.ctx, "1"))
	get(second)
	first.wantLog("refresh", "delete")
	second.wantLog("delete", "delete", "refresh", "get")
}

// TestKilledInTheMiddle: the kernel takes the baton from who is killed, and
// the next one looks after what was left.
func TestKilledInTheMiddle(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		call   purpose
		want   []string
	}{
		"Changing": {"something may be half done", changes, []string{"recover", "delete", "delete"}},
		"Reading":  {"nothing was being changed", reads, []string{"delete", "delete"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			killed, other := d.start(DefaultTurn), d.start(DefaultTurn)
			d.must(killed.gate.enter(d.ctx, reads))
			killed.gate.leave(d.ctx)
			other.wantLog("open")
			d.must(killed.gate.enter(d.ctx, tc.call))
			d.must(killed.gate.baton.Close())
			killed.gate.baton = other.gate.baton // for the end of the test
			d.must(other.Delete(d.ctx, "1"), other.Delete(d.ctx, "1"))
			other.wantLog(tc.want...)
			third := d.start(DefaultTurn)
			d.must(third.Delete(d.ctx, "1"))
			third.wantLog("open", "delete")
		})
	}
}

// TestStoreFails: a call is not let through, and the next one tries again.
func TestStoreFails(t *testing.T) {
	for name, end := range map[string]func(p *process) error{
		"Refresh": func(p *process) error { return p.Delete(p.disk.ctx, "1") },
		"Recover": func(p *process) error {
			_, err := p.gate.baton.Take(p.disk.ctx)
			p.gate.known = baton.Stamp{}
			return errors.Join(err, p.gate.change(), p.gate.baton.Give())
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			first, second := d.start(DefaultTurn), d.start(DefaultTurn)
			d.must(end(second), first.Delete(d.ctx, "1"), end(second))
			first.wantLog(map[string][]string{"Refresh": {"open", "refresh", "delete"}, "Recover": {"open", "recover", "delete"}}[name]...)
			first.fail = errors.New("disk on fire")
			for range 2 {
				if err := first.Delete(d.ctx, "1"); !errors.Is(err, first.fail) {
					t.Errorf("Delete: %v, want %v", err, first.fail)
				}
			}
			first.fail = nil
			d.must(first.Delete(d.ctx, "1"), second.Delete(d.ctx, "1"), first.Delete(d.ctx, "1"))
		})
	}
}

// TestOpenFails: whatever fails, the turn is given back.
func TestOpenFails(t *testing.T) {
	d := newDisk(t)
	failure := errors.New("disk on fire")
	_, err := Open(d.ctx, Config{LockPath: d.path, Open: func(context.Context) (volume.Services, Store, error) { return nil, nil, failure }})
	if !errors.Is(err, failure) {
		t.Errorf("Open: %v, want %v", err, failure)
	}
	p := d.start(0)
	d.must(p.gate.enter(d.ctx, reads))
	ctx, cancel := context.WithCancel(d.ctx)
	cancel()
	if _, err := Open(ctx, Config{LockPath: d.path}); !errors.Is(err, context.Canceled) {
		t.Errorf("Open while another has its turn: %v", err)
	}
	p.gate.leave(d.ctx)
	if _, err := Open(d.ctx, Config{LockPath: d.path + "/below"}); err == nil {
		t.Error("Open below a file: no error")
	}
}

// TestEnd: calls under way keep their turn, others are refused.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t)
		ended, other := d.start(0), d.start(0)
		release := make(chan struct{})
		ended.work = func(context.Context) error { <-release; return nil }
		var group sync.WaitGroup
		group.Go(func() { d.must(ended.Delete(d.ctx, "under way")) })
		synctest.Wait()
		group.Go(func() { d.must(other.Delete(d.ctx, "waits")) })
		synctest.Wait()
		group.Go(func() {
			if err := ended.Delete(d.ctx, "waits behind it"); !errors.Is(err, errEnded) {
				t.Errorf("waiting at the end: %v", err)
			}
		})
		synctest.Wait()
		d.must(ended.Close(), ended.Close())
		synctest.Wait()
		if err := ended.Delete(d.ctx, "too late"); !errors.Is(err, errEnded) {
			t.Errorf("after the end: %v", err)
		}
		other.wantLog("open")
		close(release)
		group.Wait()
		other.wantLog("refresh", "delete")
		if _, err := ended.gate.baton.Wanted(); err == nil {
			t.Error("the lock files are open after the end")
		}
	})
}

// TestNobodyStarves puts every process but one under constant load; all of it
// in virtual time. The turn of the waiting one comes when the others have had
// theirs, and what they began has ended.
func TestNobodyStarves(t *testing.T) {
	const load, long = 4, 10 * time.Millisecond
	for _, turn := range []time.Duration{0, DefaultTurn} {
		for _, loaded := range []int{1, 2} {
			t.Run(fmt.Sprintf("Turn=%v/Loaded=%d", turn, loaded), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d := newDisk(t)
					ctx, stop := context.WithCancel(d.ctx)
					var group sync.WaitGroup
					for range loaded {
						p := d.start(turn)
						p.work = func(context.Context) error { time.Sleep(long); return nil }
						for range load {
							group.Go(func() {
								for ctx.Err() == nil {
									d.must(p.Delete(d.ctx, "1"))
								}
							})
						}
					}
					waiting := d.start(turn)
					const times = 20
					begin := time.Now()
					for range times {
						d.must(waiting.Delete(d.ctx, "1"))
						time.Sleep(long)
					}
					const poll = 10 * time.Millisecond
					most := turn + long + 2*poll
					if took := time.Since(begin); loaded == 1 && took > times*(most+long) {
						t.Errorf("%d calls took %v, want at most %v each", times, took/times, most)
					}
					stop()
					group.Wait()
				})
			})
		}
	}
}

// TestTurnIsUsed: who waits does not cut a turn short, and who is alone goes
// on without end.
func TestTurnIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t)
		p, other := d.start(time.Second), d.start(time.Second)
		begin := time.Now()
		hold := func() { // so that the turn goes on between calls
			d.must(p.gate.enter(d.ctx, reads))
			time.Sleep(300 * time.Millisecond)
		}
		for range 10 {
			hold()
		}
		var entered time.Duration
		var group sync.WaitGroup
		group.Go(func() {
			d.must(other.Delete(d.ctx, "1"))
			entered = time.Since(begin)
		})
		synctest.Wait()
		if p.gate.phase != open {
			t.Errorf("alone for %v: phase %v, want the turn to go on", time.Since(begin), p.gate.phase)
		}
		group.Go(func() { d.must(p.Delete(d.ctx, "2")) })
		synctest.Wait()
		if p.gate.phase != draining {
			t.Errorf("phase %v, want new calls to wait for the next turn", p.gate.phase)
		}
		for range 10 {
			p.gate.leave(d.ctx)
		}
		group.Wait()
		if entered > 3*time.Second+100*time.Millisecond {
			t.Errorf("the other one came in after %v", entered)
		}
	})
}
