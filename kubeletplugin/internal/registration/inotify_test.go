package registration

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// sharing makes two watchers of one inotify instance, each of a directory of its own.
func sharing(t *testing.T) (shared *Inotify, first, second *watcher, dirs [2]string) {
	t.Helper()
	shared, err := NewInotify()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.Close(); err != nil {
			t.Error(err)
		}
	})
	watchers := [2]*watcher{}
	for i := range watchers {
		dirs[i] = t.TempDir()
		if watchers[i], err = newWatcher(t.Context(), dirs[i:i+1], shared); err != nil {
			t.Fatal(err)
		}
		if _, err := watchers[i].look(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return shared, watchers[0], watchers[1], dirs
}

// expectEvent waits for an event about a path.
func expectEvent(t *testing.T, w *watcher, path string) {
	t.Helper()
	for late := time.After(2 * time.Minute); ; {
		select {
		case e := <-w.events():
			if filepath.Dir(e.Name) != filepath.Dir(path) {
				t.Errorf("an event of another watcher: %v", e)
			}
			if e.Name == path {
				return
			}
		case <-late:
			t.Fatalf("waited for an event about %s", path)
		}
	}
}

// TestSharedInotify gives each watcher the events of its own directories.
func TestSharedInotify(t *testing.T) {
	_, first, second, dirs := sharing(t)
	for i, w := range []*watcher{second, first} {
		dir := dirs[1-i]
		path := filepath.Join(dir, "a")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		expectEvent(t, w, path)
	}
	first.close()
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "b"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expectEvent(t, second, filepath.Join(dirs[1], "b"))
	select {
	case e := <-first.events():
		if filepath.Base(e.Name) == "b" {
			t.Errorf("an event after the end: %v", e)
		}
	default:
	}
	second.close()
}

// TestRemovedDirectory: a directory that is made again is watched again.
func TestRemovedDirectory(t *testing.T) {
	_, first, _, dirs := sharing(t)
	sub := filepath.Join(dirs[0], "sub")
	for range 2 {
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		expectEvent(t, first, sub)
		if _, err := first.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", filepath.Join(sub, "s"))
		if err != nil {
			t.Fatal(err)
		}
		expectEventBelow(t, first, filepath.Join(sub, "s"))
		if err := errors.Join(l.Close(), os.RemoveAll(sub)); err != nil {
			t.Fatal(err)
		}
		gone := map[string]bool{}
		for late := time.After(2 * time.Minute); !gone[sub]; {
			select {
			case e := <-first.events():
				first.note(e, gone)
			case <-late:
				t.Fatalf("waited for the removal of %s, noted is %v", sub, gone)
			}
		}
	}
}

// expectEventBelow waits for an event about a path, whatever else happens.
func expectEventBelow(t *testing.T, w *watcher, path string) {
	t.Helper()
	for late := time.After(2 * time.Minute); ; {
		select {
		case e := <-w.events():
			if e.Name == path {
				return
			}
		case <-late:
			t.Fatalf("waited for an event about %s", path)
		}
	}
}

// TestLostEvents tells a watcher that does not listen that it must look itself.
func TestLostEvents(t *testing.T) {
	shared, first, _, dirs := sharing(t)
	for i := range waitingEvents + 1 {
		shared.deliver(fsnotify.Event{Name: filepath.Join(dirs[0], fmt.Sprint(i)), Op: fsnotify.Create})
	}
	select {
	case err := <-first.errors():
		if !errors.Is(err, errEventsLost) {
			t.Errorf("got %v", err)
		}
	default:
		t.Error("nobody told")
	}
}
