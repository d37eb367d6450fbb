package build

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// release is a server of published programs.
type release struct {
	*httptest.Server
	mu    sync.Mutex
	files map[string][]byte
	asked []string
	// answer serves a path before the files do, if it returns true.
	answer func(w http.ResponseWriter, r *http.Request) bool
}

// ServeHTTP serves the files.
func (s *release) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.Path)
	data, found := s.files[r.URL.Path]
	s.mu.Unlock()
	switch {
	case s.answer != nil && s.answer(w, r):
	case found:
		_, _ = w.Write(data)
	default:
		http.NotFound(w, r)
	}
}

func (s *release) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

const releaseEtcd = "etcd-v3.6.8-" + runtime.GOOS + "-" + runtime.GOARCH

func programPath(name string) string {
	return "/k/v1.36.3/bin/" + runtime.GOOS + "/" + runtime.GOARCH + "/" + name
}

func sum(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

func program(name string) []byte { return []byte("published " + name) }

// publish serves everything as the projects do.
func publish(t *testing.T, c *Config) *release {
	t.Helper()
	archive := tarball(t, map[string][]byte{releaseEtcd + "/README.md": nil, releaseEtcd + "/etcd": program(Etcd), releaseEtcd + "/etcdctl": []byte("other")})
	s := &release{files: map[string][]byte{
		"/e/v3.6.8/" + releaseEtcd + ".tar.gz": archive,
		"/e/v3.6.8/SHA256SUMS":                 []byte(sum(nil) + "  etcd-v3.6.8-plan9-mips.tar.gz\n" + sum(archive) + "  " + releaseEtcd + ".tar.gz\n"),
	}}
	for _, name := range order()[1:] {
		s.files[programPath(name)] = program(name)
		s.files[programPath(name)+".sha256"] = []byte(sum(program(name))) // without an end of line
	}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	c.Servers = Servers{Kubernetes: s.URL + "/k", Etcd: s.URL + "/e/"}
	c.connect, c.stall = 5*time.Minute, 5*time.Minute // a loaded machine is no broken server
	return s
}

func tarball(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	w := tar.NewWriter(zip)
	for name, data := range files {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg})
		if _, writeErr := w.Write(data); errors.Join(err, writeErr) != nil {
			t.Fatal(err, writeErr)
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// pinEtcd adds the version of etcd to the pins.
func pinEtcd(t *testing.T, c Config) {
	t.Helper()
	write(t, filepath.Join(c.Module, "go.mod"), "module m\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/kubernetes v1.36.3\n\tgo.etcd.io/etcd/server/v3 v3.6.8\n)\n", 0o644)
}

func TestPublishedProgramsAreDownloaded(t *testing.T) {
	c, builds := setup(t)
	pinEtcd(t, c)
	s := publish(t, &c)
	var progress bytes.Buffer
	c.Progress = &progress
	b, err := ControlPlane(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range order() {
		data, err := os.ReadFile(b.Path(name))
		if err != nil || !bytes.Equal(data, program(name)) {
			t.Errorf("%s: %q, %v", name, data, err)
		}
		if info, err := os.Stat(b.Path(name)); err != nil || info.Mode().Perm()&0o111 == 0 {
			t.Errorf("%s cannot be executed: %v, %v", name, info.Mode(), err)
		}
		if line := fmt.Sprintf("downloading %s (%d of 5) from 127.0.0.1:", name, i+1); !strings.Contains(progress.String(), line) {
			t.Errorf("progress has no %q:\n%s", line, &progress)
		}
	}
	onlyPrograms(t, b)
	asked := s.requests()
	if _, err := ControlPlane(t.Context(), c); err != nil || s.requests() != asked || countLines(t, builds) != 0 {
		t.Errorf("with a full cache: %v, %d requests more, %d builds", err, s.requests()-asked, countLines(t, builds))
	}
}

// onlyPrograms sees that no partial file is left.
func onlyPrograms(t *testing.T, b Binaries) {
	t.Helper()
	entries, err := os.ReadDir(b.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != ".lock" && !slices.Contains(order(), e.Name()) {
			t.Errorf("left in the cache: %s", e.Name())
		}
	}
}

func TestWhatCannotBeDownloadedIsBuilt(t *testing.T) {
	apiServer := programPath(APIServer)
	archive := "/e/v3.6.8/" + releaseEtcd + ".tar.gz"
	hangUp := func(w http.ResponseWriter) {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	tests := map[string]struct {
		reason string
		change func(t *testing.T, s *release)
		built  []string
		says   string
	}{
		"WrongChecksum": {
			reason: "what is not what was published is never run", built: []string{APIServer}, says: "wrong checksum: SHA-256 is " + sum([]byte("evil")),
			change: func(_ *testing.T, s *release) { s.files[apiServer] = []byte("evil") },
		},
		"WrongChecksumOfArchive": {
			reason: "an archive is checked before it is unpacked", built: []string{Etcd}, says: "wrong checksum",
			change: func(t *testing.T, s *release) {
				s.files[archive] = tarball(t, map[string][]byte{releaseEtcd + "/etcd": []byte("evil")})
			},
		},
		"Cut": {
			reason: "a connection may end early", built: []string{APIServer}, says: "unexpected EOF",
			change: func(_ *testing.T, s *release) {
				s.answer = func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path == apiServer {
						w.Header().Set("Content-Length", "1000")
						_, _ = w.Write(program(APIServer)[:5])
						hangUp(w)
					}
					return false
				}
			},
		},
		"CutWithoutLength": {
			reason: "a server may not say how much there is", built: []string{APIServer}, says: "cannot download kube-apiserver",
			change: func(_ *testing.T, s *release) { s.files[apiServer] = program(APIServer)[:5] },
		},
		"CutArchive": {
			reason: "an archive that was published broken", built: []string{Etcd}, says: "unexpected EOF",
			change: func(_ *testing.T, s *release) {
				s.files[archive] = s.files[archive][:40]
				s.files["/e/v3.6.8/SHA256SUMS"] = []byte(sum(s.files[archive]) + " *" + releaseEtcd + ".tar.gz\n")
			},
		},
		"OtherArchive": {
			reason: "the archive has no such program", built: []string{Etcd}, says: "the archive has no " + releaseEtcd + "/etcd",
			change: func(t *testing.T, s *release) {
				s.files[archive] = tarball(t, nil)
				s.files["/e/v3.6.8/SHA256SUMS"] = []byte(sum(s.files[archive]) + "  " + releaseEtcd + ".tar.gz\n")
			},
		},
		"Absent": {
			reason: "not every platform is published", built: []string{Kubectl}, says: "the server answers 404",
			change: func(_ *testing.T, s *release) {
				delete(s.files, programPath(Kubectl))
			},
		},
		"NoChecksum": {
			reason: "a program without a checksum is not trusted", built: []string{Kubectl}, says: "no SHA-256 of kubectl",
			change: func(_ *testing.T, s *release) {
				s.files[programPath(Kubectl)+".sha256"] = []byte("<html>welcome</html>")
			},
		},
		"ServerError": {
			reason: "a server with an error of its own is asked for the next program", built: order(), says: "the server answers 503",
			change: func(_ *testing.T, s *release) {
				s.answer = func(w http.ResponseWriter, _ *http.Request) bool {
					w.WriteHeader(http.StatusServiceUnavailable)
					return true
				}
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, _ := setup(t)
			pinEtcd(t, c)
			tc.change(t, publish(t, &c))
			var progress bytes.Buffer
			c.Progress = &progress
			b, err := ControlPlane(t.Context(), c)
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			wantBuilt(t, b, tc.built)
			if !strings.Contains(progress.String(), tc.says) {
				t.Errorf("%s: progress has no %q:\n%s", tc.reason, tc.says, &progress)
			}
		})
	}
}

// wantBuilt sees which programs were built, and that all others are those that were published.
func wantBuilt(t *testing.T, b Binaries, built []string) {
	t.Helper()
	for _, name := range order() {
		want := string(program(name))
		if slices.Contains(built, name) {
			want = packagePath(name)
		}
		if data, err := os.ReadFile(b.Path(name)); err != nil || strings.TrimSpace(string(data)) != want {
			t.Errorf("%s is %q, %v, want %q", name, data, err, want)
		}
	}
	onlyPrograms(t, b)
}

// TestServersThatDoNotAnswer are asked once each: a machine without internet must not wait for every program.
func TestServersThatDoNotAnswer(t *testing.T) {
	tests := map[string]struct {
		reason string
		make   func(t *testing.T, c *Config) *release
	}{
		"Refused": {reason: "nobody listens", make: func(t *testing.T, c *Config) *release {
			s := publish(t, c)
			s.Close()
			return s
		}},
		"BlackHole": {reason: "a connection on which nothing ever comes", make: func(t *testing.T, c *Config) *release {
			s := publish(t, c)
			c.connect = 50 * time.Millisecond
			s.answer = func(_ http.ResponseWriter, r *http.Request) bool {
				<-r.Context().Done()
				return true
			}
			return s
		}},
		"Stalled": {reason: "a download that never ends", make: func(t *testing.T, c *Config) *release {
			s := publish(t, c)
			c.stall = 50 * time.Millisecond
			s.answer = func(w http.ResponseWriter, r *http.Request) bool {
				_, _ = io.WriteString(w, "0")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				return true
			}
			return s
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, _ := setup(t)
			pinEtcd(t, c)
			s := tc.make(t, &c)
			c.Servers.Kubernetes = strings.Replace(c.Servers.Kubernetes, "127.0.0.1", "localhost", 1) // two servers, as in life
			var progress bytes.Buffer
			c.Progress = &progress
			b, err := ControlPlane(t.Context(), c)
			if err != nil {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			wantBuilt(t, b, order())
			if n := strings.Count(progress.String(), "downloading "); n != 2 || s.requests() > 2 {
				t.Errorf("%s: %d downloads begun, %d requests; want one of each server\n%s", tc.reason, n, s.requests(), &progress)
			}
		})
	}
}

// TestInterruptedDownloadLeavesNothingThatLooksFinished: Ctrl-C during a download is no reason to build.
func TestInterruptedDownloadLeavesNothingThatLooksFinished(t *testing.T) {
	c, builds := setup(t)
	pinEtcd(t, c)
	s := publish(t, &c)
	ctx, cancel := context.WithCancel(t.Context())
	s.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != programPath(APIServer) {
			return false
		}
		_, _ = io.WriteString(w, "publ")
		_ = http.NewResponseController(w).Flush()
		cancel()
		<-r.Context().Done()
		return true
	}
	if _, err := ControlPlane(ctx, c); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "download kube-apiserver") {
		t.Errorf("got %v", err)
	}
	s.answer = nil
	b, err := ControlPlane(t.Context(), c)
	if err != nil || countLines(t, builds) != 0 {
		t.Errorf("the next call: %v, %d builds", err, countLines(t, builds))
	}
	wantBuilt(t, b, nil)
}

func TestDefaultServers(t *testing.T) {
	for _, name := range []string{"LONGSHORE_KUBERNETES_URL", "LONGSHORE_ETCD_URL"} {
		t.Setenv(name, "") // is put back after the test
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	if s := DefaultServers(); s.Kubernetes != "https://dl.k8s.io/release" || !strings.HasPrefix(s.Etcd, "https://github.com/etcd-io/") {
		t.Errorf("got %+v", s)
	}
	t.Setenv("LONGSHORE_KUBERNETES_URL", "https://mirror/k")
	t.Setenv("LONGSHORE_ETCD_URL", "")
	if s, want := DefaultServers(), (Servers{Kubernetes: "https://mirror/k"}); s != want {
		t.Errorf("got %+v, want %+v", s, want)
	}
}
