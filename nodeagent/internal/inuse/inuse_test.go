package inuse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server stands for node.status.volumesInUse.
type server struct {
	mu     sync.Mutex
	writes []string
	delay  time.Duration
	err    error
	lost   bool // the write is done but its answer is err
}

func (s *server) write(ctx context.Context, names []string) error {
	s.mu.Lock()
	delay, err, lost := s.delay, s.err, s.lost
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(delay):
	}
	if err != nil && !lost {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes = append(s.writes, strings.Join(names, ","))
	return err
}

func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *server) expect(t *testing.T, reason string, want ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.writes, want) {
		t.Errorf("%s: writes are %q, want %q", reason, s.writes, want)
	}
	s.writes = nil
}

func scenario(t *testing.T, f func(t *testing.T, s *server, p *Publisher)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		p, err := New(Config{Write: s.write})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = p.Run(ctx) })
		f(t, s, p)
		cancel()
		wg.Wait()
	})
}

func TestNew(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("a publisher that cannot write must be refused")
	}
}

func TestRaiseWaitsForTheAnswer(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		s.delay = time.Second
		begin := time.Now()
		if err := p.Raise(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited != time.Second {
			t.Errorf("returned after %v, want when the server has answered", waited)
		}
		s.expect(t, "one write", "b")
		begin = time.Now()
		if err := p.Raise(t.Context(), "b"); err != nil || time.Since(begin) > 0 {
			t.Errorf("a confirmed name is confirmed at once: %v after %v", err, time.Since(begin))
		}
		s.expect(t, "and not written again")
	})
}

// TestGroupCommit: what comes during a write goes out with the next one.
func TestGroupCommit(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		s.delay = time.Second
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				if err := p.Raise(t.Context(), fmt.Sprintf("v%02d", i)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		if len(s.writes) != 2 {
			t.Errorf("100 volumes took %d writes, want 2", len(s.writes))
		}
	})
}

func TestDrop(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		p.Seed("old", "kept")
		s.expect(t, "names of an earlier process are written at once", "kept,old")
		p.Drop("old")
		s.expect(t, "a dropped name goes at once", "kept")
		p.Drop("old")
		s.expect(t, "dropping again changes nothing")
		if got := p.Names(); len(got) != 1 || got[0] != "kept" {
			t.Errorf("names are %v, want kept", got)
		}
	})
}

// TestHold: a held name stays when it is dropped, and can be dropped afterwards.
func TestHold(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		p.Hold("held")
		s.expect(t, "names of an earlier process are written at once", "held")
		p.Drop("held")
		s.expect(t, "a held name stays")
		p.Unhold()
		s.expect(t, "the end of that changes nothing by itself")
		p.Drop("held")
		s.expect(t, "but the name can go now", "")
	})
}

// TestLostAnswer: after an error nobody knows what the server has, so it is written again even if
// the names are those of the last success.
func TestLostAnswer(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		p.Seed("a")
		s.expect(t, "first", "a")
		s.set(func() { s.err, s.lost = errors.New("connection lost"), true })
		p.Drop("a")
		synctest.Wait()
		s.set(func() { s.err, s.lost = nil, false })
		if err := p.Raise(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		s.expect(t, "the write whose answer was lost, then the right one", "", "a")
	})
}

func TestRaiseGivesUp(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		s.set(func() { s.err = errors.New("server is away") })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.Raise(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the end of the context", err)
		}
		s.set(func() { s.err = nil })
		time.Sleep(time.Minute)
		s.expect(t, "a raised name stays wanted until it is dropped", "a")
	})
}

func TestHungWriteEnds(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		s.set(func() { s.delay = time.Hour })
		p.Seed("a")
		time.Sleep(5 * time.Second)
		s.set(func() { s.delay = 0 })
		time.Sleep(time.Minute)
		s.expect(t, "a write that hangs has a deadline", "a")
	})
}

func TestObserve(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		p.Observe([]string{"early"})
		s.expect(t, "before the first write nothing is compared")
		p.Seed("a")
		s.expect(t, "first", "a")
		p.Observe([]string{"a"})
		s.expect(t, "what is right stays")
		p.Observe(nil)
		s.expect(t, "what somebody else has written is undone", "a")
	})
}

// TestLongListsAreWrittenSeldom: changes of a long list that come one after the other are collected. The first of them is written at once.
func TestLongListsAreWrittenSeldom(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		for i := range 1000 {
			p.Seed(fmt.Sprint("seed-", i))
		}
		synctest.Wait()
		time.Sleep(time.Second)
		began := time.Now()
		if err := p.Raise(t.Context(), "first"); err != nil || time.Since(began) > 0 {
			t.Errorf("the first change took %s: %v", time.Since(began), err)
		}
		s.set(func() { s.writes = nil })
		var raised sync.WaitGroup
		for i := range 100 {
			time.Sleep(10 * time.Millisecond)
			raised.Go(func() {
				if err := p.Raise(t.Context(), fmt.Sprint("v", i)); err != nil {
					t.Error(err)
				}
			})
		}
		raised.Wait()
		s.set(func() {
			if n := len(s.writes); n < 3 || n > 5 {
				t.Errorf("100 changes within a second took %d writes, want one in a quarter of a second", n)
			}
		})
	})
}
