package baton

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func open(t *testing.T, path string) *Baton {
	t.Helper()
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return b
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantStamp(t *testing.T, b *Baton, want Stamp) {
	t.Helper()
	got, err := b.Take(t.Context())
	if err != nil || got != want {
		t.Fatalf("Take: %+v, %v; want %+v", got, err, want)
	}
}

func TestGoesFromHandToHand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "controller.lock")
	first, second := open(t, path), open(t, path)
	wantStamp(t, first, Stamp{})
	must(t, first.Note(Stamp{Version: "a"}))
	must(t, first.Note(Stamp{Version: "a", Complete: true}))
	must(t, first.Give())
	wantStamp(t, second, Stamp{Version: "a", Complete: true})
	must(t, second.Note(Stamp{Version: strings.Repeat("b", 26)}))
	must(t, second.Close()) // as when the process is killed
	wantStamp(t, first, Stamp{Version: strings.Repeat("b", 26)})
}

func TestStampsThatAreNone(t *testing.T) {
	for name, content := range map[string]string{
		"Empty":       "",
		"ProcessID":   "4711\n",
		"Torn":        "abcdefghijkl",
		"WrongWord":   "abcdefghijklmnopqrstuvwxyz whatever\n",
		"ThreeWords":  "abcdefghijklm opqrstuvwxyz complete\n",
		"WithoutName": "                           complete\n",
		"CutInWord":   "abcdefghijklmnopqrstuvwxyz complet",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "controller.lock")
			write(t, path, content)
			wantStamp(t, open(t, path), Stamp{})
		})
	}
}

// TestQueue: the holder sees who waits, and gets in line behind it.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "controller.lock")
		first, second := open(t, path), open(t, path)
		wanted := func(want bool) {
			t.Helper()
			if got, err := first.Wanted(); err != nil || got != want {
				t.Errorf("Wanted: %t, %v; want %t", got, err, want)
			}
		}
		wantStamp(t, first, Stamp{})
		wanted(false)
		order := make(chan string, 2)
		var group sync.WaitGroup
		group.Go(func() {
			_, err := second.Take(t.Context())
			order <- "second"
			if err = errors.Join(err, second.Give()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		wanted(true)
		must(t, first.Give())
		// At once, before the second one looks again.
		wantStamp(t, first, Stamp{})
		order <- "first"
		group.Wait()
		if got := <-order + " " + <-order; got != "second first" {
			t.Errorf("order: %s", got)
		}
	})
}

func TestWaitsAsLongAsItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "controller.lock")
		first, second := open(t, path), open(t, path)
		wantStamp(t, first, Stamp{})
		waitInVain := func(b *Baton, file string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := b.Take(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), file) {
				t.Errorf("Take: %v, want the deadline and %s", err, file)
			}
		}
		waitInVain(second, path)
		_, err := try(second.queue)
		must(t, err)
		waitInVain(open(t, path), "controller-queue.lock")
		must(t, unlock(second.queue))
		must(t, first.Give())
		wantStamp(t, second, Stamp{})
	})
}

func TestBelowAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	if _, err := Open(filepath.Join(file, "x.lock")); err == nil {
		t.Error("Open below a file must fail")
	}
	if _, err := Open(filepath.Dir(file)); err == nil {
		t.Error("Open of a directory must fail")
	}
	if err := os.Mkdir(file+"-queue.lock", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file + ".lock"); err == nil {
		t.Error("Open with a directory for its queue must fail")
	}
}

func TestClosed(t *testing.T) {
	b := open(t, filepath.Join(t.TempDir(), "controller.lock"))
	must(t, b.Close())
	_, takeErr := b.Take(t.Context())
	_, wantedErr := b.Wanted()
	for name, err := range map[string]error{"Take": takeErr, "Wanted": wantedErr, "Note": b.Note(Stamp{Version: "a"}), "Give": b.Give(), "Close": b.Close()} {
		if err == nil {
			t.Errorf("%s of a closed baton: no error", name)
		}
	}
}
