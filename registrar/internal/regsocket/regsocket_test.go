package regsocket

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listen makes a socket that is closed when the test ends.
func listen(t *testing.T, path string) *Socket {
	t.Helper()
	s, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// dead leaves a socket file that nobody listens on.
func dead(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestListen(t *testing.T) {
	cases := map[string]struct {
		reason string
		before func(t *testing.T, path string)
		want   string
	}{
		"Nothing": {reason: "a socket is made", before: func(*testing.T, string) {}},
		"Dead":    {reason: "what a killed process left is replaced", before: dead},
		"Alive": {
			reason: "a socket in use is replaced: this is how a registration is tried again",
			before: func(t *testing.T, path string) { listen(t, path) },
		},
		"File": {
			reason: "a file that is no socket was put there by somebody for something",
			before: func(t *testing.T, path string) {
				if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
					t.Fatal(err)
				}
			},
			want: "not a socket",
		},
		"NoDirectory": {
			reason: "the directory has to be there: it is the kubelet's",
			before: func(t *testing.T, path string) {
				if err := os.Remove(filepath.Dir(path)); err != nil {
					t.Fatal(err)
				}
			},
			want: "no such file",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "dir", "d-reg.sock")
			if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			tc.before(t, path)
			s, err := Listen(path)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
					t.Errorf("%s: got %v, want an error about %q that says %q", tc.reason, err, path, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			defer func() { _ = s.Close() }()
			check(t, s, path)
		})
	}
}

// check looks at a socket that was just made.
func check(t *testing.T, s *Socket, path string) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("mode is %v, want a socket with 0600", info.Mode())
	}
	if s.Path() != path || s.State(t.Context()) != Present || abandoned(t.Context(), path) {
		t.Errorf("path %q, state %v, abandoned %v", s.Path(), s.State(t.Context()), abandoned(t.Context(), path))
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v (%v), want the socket alone", entries, err)
	}
}

// A socket whose path is too long can be made by a rename, but not be dialled.
func TestListenRefusesALongPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("d", 100)+"-reg.sock")
	if s, err := Listen(path); err == nil || !strings.Contains(err.Error(), "must not exceed 107 bytes") {
		t.Errorf("got %v, %v, want an error that names the limit", s, err)
	}
}

func TestState(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(t *testing.T, path string)
		want   State
		stays  bool
	}{
		"Untouched": {reason: "it is there", change: func(*testing.T, string) {}, want: Present},
		"Removed": {
			reason: "somebody removed it",
			change: func(t *testing.T, path string) {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			},
			want: Gone,
		},
		"ReplacedByTheLiving": {
			reason: "another registrar has taken the path", change: func(t *testing.T, path string) { listen(t, path) },
			want: Replaced, stays: true,
		},
		"ReplacedByTheDead": {
			reason: "another registrar took the path and was killed",
			change: func(t *testing.T, path string) {
				dead(t, path+".x")
				if err := os.Rename(path+".x", path); err != nil {
					t.Fatal(err)
				}
			},
			want: Gone, stays: true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "d-reg.sock")
			s := listen(t, path)
			tc.change(t, path)
			if got := s.State(t.Context()); got != tc.want {
				t.Errorf("%s: state %v, want %v", tc.reason, got, tc.want)
			}
			if err := s.Remove(); err != nil {
				t.Errorf("%s: Remove: %v", tc.reason, err)
			}
			if _, err := os.Lstat(path); (err == nil) != tc.stays {
				t.Errorf("%s: after Remove: %v; the file of another must stay: %v", tc.reason, err, tc.stays)
			}
		})
	}
}

// A registrar that is ending must not take the living socket of its successor for a dead one: it would make its
// own in its place, and remove that a moment later.
func TestStateAtTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	s := listen(t, filepath.Join(dir, "d-reg.sock"))
	successor := listen(t, s.Path())
	if got := s.State(ctx); got != Replaced {
		t.Errorf("state %v, want %v", got, Replaced)
	}
	hidden := listen(t, filepath.Join(dir, hiddenPrefix+"1"))
	if err := Clean(ctx, dir); err != nil {
		t.Fatal(err)
	}
	for _, living := range []*Socket{successor, hidden} {
		if got := living.State(t.Context()); got != Present {
			t.Errorf("the socket in use at %q is %v", living.Path(), got)
		}
	}
}

// The hidden name must fit wherever the name of the socket does.
func TestHiddenNameIsShort(t *testing.T) {
	for range 100 {
		if name := hiddenName("/dir"); len(name) > len("/dir/d-reg.sock") || !strings.HasPrefix(name, "/dir/.") {
			t.Fatalf("got %q, want a hidden name that is not longer than d-reg.sock", name)
		}
	}
}

// TestReplacedSocketNeverDisappears looks at the path while sockets are made
// over and over: a kubelet must not see it go.
func TestReplacedSocketNeverDisappears(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d-reg.sock")
	listen(t, path)
	stop := make(chan struct{})
	missing := make(chan error, 1)
	go func() {
		defer close(missing)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := os.Lstat(path); err != nil {
				missing <- err
				return
			}
		}
	}()
	for range 100 {
		listen(t, path)
	}
	close(stop)
	if err := <-missing; err != nil {
		t.Errorf("the path was empty for a moment: %v", err)
	}
}

func TestClean(t *testing.T) {
	dir := t.TempDir()
	dead(t, filepath.Join(dir, ".reg1"))
	dead(t, filepath.Join(dir, "other-reg.sock"))
	alive := listen(t, filepath.Join(dir, ".reg2"))
	if err := os.WriteFile(filepath.Join(dir, ".reg3"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Clean(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{".reg1": false, "other-reg.sock": true, ".reg2": true, ".reg3": true} {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it to stay: %v", name, err, want)
		}
	}
	if got := alive.State(t.Context()); got != Present {
		t.Errorf("the socket in use is %v", got)
	}
	if err := Clean(t.Context(), filepath.Join(dir, "none")); err == nil {
		t.Error("a directory that is not there gave no error")
	}
}

func TestStateString(t *testing.T) {
	for state, want := range map[State]string{Present: "present", Gone: "gone", Replaced: "replaced", State(9): "state(9)"} {
		if got := state.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
