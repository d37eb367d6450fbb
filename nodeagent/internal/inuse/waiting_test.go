package inuse

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// waiters is how many the publisher remembers.
func (p *Publisher) waiters() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}

// TestWaiterThatGaveUpIsForgotten: a server that is away for long must not fill the memory.
func TestWaiterThatGaveUpIsForgotten(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		s.set(func() { s.err = errors.New("server is away") })
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := p.Raise(ctx, "a"); err == nil {
				t.Error("raised without a server")
			}
			cancel()
		}
		if n := p.waiters(); n > 0 {
			t.Errorf("%d waiters are remembered, and nobody waits", n)
		}
	})
}

// TestOthersStillWait: one that gives up takes nobody with it.
func TestOthersStillWait(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		s.set(func() { s.delay = 2 * time.Second })
		var wg sync.WaitGroup
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := p.Raise(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the impatient one: %v", err)
			}
		})
		wg.Go(func() {
			if err := p.Raise(t.Context(), "a"); err != nil {
				t.Errorf("the patient one: %v", err)
			}
		})
		wg.Wait()
		s.expect(t, "one write for both", "a")
	})
}

// TestDropDuringAWrite: the write that is under way has the name; the next one does not.
func TestDropDuringAWrite(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		s.set(func() { s.delay = time.Second })
		p.Seed("a")
		synctest.Wait()
		p.Drop("a")
		time.Sleep(3 * time.Second)
		s.expect(t, "both are written, in order", "a", "")
	})
}

// TestRaiseDuringTheWriteOfADrop: the answer to a write without the name confirms nothing.
func TestRaiseDuringTheWriteOfADrop(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		p.Seed("a")
		s.expect(t, "there", "a")
		s.set(func() { s.delay = time.Second })
		p.Drop("a")
		time.Sleep(500 * time.Millisecond)
		begin := time.Now()
		if err := p.Raise(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited != 1500*time.Millisecond {
			t.Errorf("confirmed after %v, want at the answer to the second write", waited)
		}
		s.expect(t, "gone, then there again", "", "a")
	})
}

// TestDropAndRaiseAtOnce needs no write: the server has had the name all the time.
func TestDropAndRaiseAtOnce(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		p.Seed("a")
		s.expect(t, "there", "a")
		p.Drop("a")
		if err := p.Raise(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		s.expect(t, "nothing to write")
	})
}

// TestPauses: a server that is away is not asked more and more, nor forgotten.
func TestPauses(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		s.set(func() { s.err, s.lost = errors.New("away"), true })
		p.Seed("a")
		time.Sleep(time.Minute)
		synctest.Wait()
		s.set(func() {
			if n := len(s.writes); n < 12 || n > 20 {
				t.Errorf("%d writes in a minute, want one every 5 seconds after the first few", n)
			}
			s.err, s.writes = nil, nil
		})
		time.Sleep(5 * time.Second)
		s.expect(t, "within the longest pause", "a")
		p.Seed("b")
		s.expect(t, "and at once afterwards", "a,b")
	})
}

// TestObserveDuringAWrite: what is seen then may be older than the answer.
func TestObserveDuringAWrite(t *testing.T) {
	scenario(t, func(t *testing.T, s *server, p *Publisher) {
		s.set(func() { s.delay = time.Second })
		p.Seed("a")
		time.Sleep(500 * time.Millisecond)
		p.Observe(nil)
		time.Sleep(5 * time.Second)
		s.expect(t, "one write is enough", "a")
	})
}
