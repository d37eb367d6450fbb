package csiserver

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseEndpoint(t *testing.T) {
	cases := map[string]struct {
		reason string
		text   string
		want   endpoint
		err    string
	}{
		"URL":           {reason: "the usual form", text: "unix:///csi/csi.sock", want: endpoint{"unix", "/csi/csi.sock"}},
		"TwoSlashes":    {reason: "a wide-spread form of the same", text: "unix://csi/csi.sock", want: endpoint{"unix", "/csi/csi.sock"}},
		"Path":          {reason: "a bare path", text: "/csi/csi.sock", want: endpoint{"unix", "/csi/csi.sock"}},
		"UpperCase":     {reason: "schemes have no case", text: "UNIX:///csi.sock", want: endpoint{"unix", "/csi.sock"}},
		"TCP":           {reason: "a port", text: "tcp://127.0.0.1:10000", want: endpoint{"tcp", "127.0.0.1:10000"}},
		"TCPAllHosts":   {reason: "a port on all addresses", text: "tcp://:10000", want: endpoint{"tcp", ":10000"}},
		"TCPWithout":    {reason: "a port is required", text: "tcp://localhost", err: "must be tcp://host:port"},
		"Empty":         {reason: "nothing", err: "must be the path"},
		"EmptyURL":      {reason: "a scheme only", text: "unix://", err: "must be the path"},
		"Relative":      {reason: "depends on the working directory", text: "csi.sock", err: "must be absolute"},
		"UnknownScheme": {reason: "not supported", text: "http://x", err: "the scheme must be"},
		"TooLong":       {reason: "the kernel would refuse it with a riddle", text: "/" + strings.Repeat("x", 107), err: "must not exceed 107 bytes"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseEndpoint(c.text)
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("%s: error %v, want %q", c.reason, err, c.err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(endpoint{})); diff != "" {
				t.Errorf("%s: endpoint (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func FuzzParseEndpoint(f *testing.F) {
	for _, seed := range []string{"", "unix:///a", "unix://", "tcp://:1", "http://x", "/a", "unix:///../../a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		e, err := parseEndpoint(text)
		if err == nil && e.network == "unix" && (!filepath.IsAbs(e.address) || len(e.address) > maxSocketPath) {
			t.Errorf("parseEndpoint(%q) = %v", text, e)
		}
	})
}

// shortDir is a directory whose path is short enough for the path of a socket below it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "csiserver")
	if err != nil {
		t.Fatalf("make a directory: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// abandon leaves a stale socket file, as a crash does.
func abandon(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func TestListenOnExistingFile(t *testing.T) {
	cases := map[string]struct {
		reason string
		before func(t *testing.T, path string)
		err    string
	}{
		"Nothing": {reason: "the usual start", before: func(*testing.T, string) {}},
		"Stale":   {reason: "a crash left its socket", before: abandon},
		"Busy": {reason: "another process serves there", err: "another process listens on it", before: func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatalf("listen: %v", err)
			}
			t.Cleanup(func() { _ = l.Close() })
		}},
		"File": {reason: "a file of another program must not be removed", err: "not a socket", before: func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
				t.Fatalf("write: %v", err)
			}
		}},
		"Link": {reason: "nor must a link", err: "not a socket", before: func(t *testing.T, path string) {
			if err := os.Symlink("elsewhere", path); err != nil {
				t.Fatalf("link: %v", err)
			}
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(shortDir(t), "csi.sock")
			c.before(t, path)
			l, err := listen(endpoint{"unix", path}, 0)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), path) {
					t.Errorf("%s: error %v, want %q with the path", c.reason, err, c.err)
				}
				if _, err := os.Lstat(path); err != nil {
					t.Errorf("%s: the existing file is gone: %v", c.reason, err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", c.reason, err)
			}
			if err := l.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: the socket file is left: %v", c.reason, err)
			}
		})
	}
}

func TestListenErrors(t *testing.T) {
	file := filepath.Join(shortDir(t), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatalf("write: %v", err)
	}
	cases := map[string]struct {
		reason string
		e      endpoint
	}{
		"NoDirectory":  {reason: "the directory does not exist", e: endpoint{"unix", file + "-none/csi.sock"}},
		"NotDirectory": {reason: "the directory is a file", e: endpoint{"unix", file + "/csi.sock"}},
		"BadPort":      {reason: "no such port", e: endpoint{"tcp", "127.0.0.1:99999"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l, err := listen(c.e, 0)
			if err == nil {
				_ = l.Close()
				t.Fatalf("%s: listen succeeded", c.reason)
			}
			if !strings.Contains(err.Error(), c.e.address) {
				t.Errorf("%s: error %q does not name %q", c.reason, err, c.e.address)
			}
		})
	}
}

func TestSocketMode(t *testing.T) {
	for name, mode := range map[string]os.FileMode{"OwnerOnly": 0o600, "Group": 0o660, "Everybody": 0o666} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(shortDir(t), "csi.sock")
			l, err := listen(endpoint{"unix", path}, mode)
			if err != nil {
				t.Fatalf("listen: %v", err)
			}
			defer func() { _ = l.Close() }()
			info, err := os.Lstat(path)
			if err != nil || info.Mode().Perm() != mode {
				t.Errorf("mode is %v, %v; want %v", info.Mode(), err, mode)
			}
		})
	}
}

// TestBind: a listener without a server has the forms of endpoints, the rules for stale sockets and the modes of one with a server.
func TestBind(t *testing.T) {
	if l, err := Bind("http://x", 0); err == nil || !strings.Contains(err.Error(), "the scheme must be") {
		t.Errorf("an unknown scheme: listener %v, error %v", l, err)
	}
	path := filepath.Join(shortDir(t), "csi.sock")
	abandon(t, path)
	l, err := Bind("unix://"+path, 0o660)
	if err != nil {
		t.Fatalf("bind: %v", err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("mode is %v, %v; want 0660", info.Mode(), err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket file is left: %v", err)
	}
}

// Between bind and chmod, no other user may connect, with any umask.
func TestSocketModeFromTheStart(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux binds a socket with permissions")
	}
	path := filepath.Join(shortDir(t), "csi.sock")
	l, err := listenOn(endpoint{"unix", path}, 0o600)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	defer func() { _ = l.Close() }()
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm()&^0o600 != 0 {
		t.Errorf("before chmod the mode is %v, %v; want at most 0600", info.Mode(), err)
	}
}

// A driver that ends slowly must not remove the socket of its successor.
func TestSocketOfSuccessorStays(t *testing.T) {
	path := filepath.Join(shortDir(t), "csi.sock")
	old, err := listen(endpoint{"unix", path}, 0)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	// The successor's socket is another file under the same path.
	fresh := path + ".new"
	successor, err := net.Listen("unix", fresh)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	defer func() { _ = successor.Close() }()
	if err := os.Rename(fresh, path); err != nil {
		t.Fatalf("rename: %v", err)
	}
	if err := old.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the successor is not reached: %v", err)
	}
	_ = conn.Close()
}

// A second Close meets a file that may be the successor's although its number is that of ours, which is free again.
// A hard link stands for such a file.
func TestSecondCloseLeavesTheSuccessor(t *testing.T) {
	path := filepath.Join(shortDir(t), "csi.sock")
	l, err := listen(endpoint{"unix", path}, 0)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	if err := os.Link(path, path+".same"); err != nil {
		t.Fatalf("link: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	if err := os.Rename(path+".same", path); err != nil {
		t.Fatalf("rename: %v", err)
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second close: %v, want net.ErrClosed", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the successor's socket is gone: %v", err)
	}
}
