// Package build fills a cache with the programs of the control plane: it downloads what is published, checks it against the published
// checksum, and builds from pinned Go modules what cannot be downloaded.
//
// The cache is keyed by the content of go.mod and go.sum, the Go version and the platform, so another pin or another toolchain has
// programs of its own, and two checkouts with the same pins share one cache.
package build

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/sys/unix"
)

// Programs of the control plane, in the order in which they are fetched or built: the quick one first.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kubectl           = "kubectl"
)

const (
	kubernetes = "k8s.io/kubernetes"
	etcdServer = "go.etcd.io/etcd/server/v3"
)

// expected is how long a build with empty caches takes on two cores; it is only shown to the user.
var expected = map[string]time.Duration{
	Etcd: 30 * time.Second, APIServer: 5 * time.Minute, ControllerManager: 150 * time.Second, Scheduler: 30 * time.Second, Kubectl: 90 * time.Second,
}

func order() []string { return []string{Etcd, APIServer, ControllerManager, Scheduler, Kubectl} }

func packagePath(binary string) string {
	if binary == Etcd {
		return etcdServer
	}
	return kubernetes + "/cmd/" + binary
}

// Config says which programs are wanted, and where they come from.
type Config struct {
	// Module is the directory with the go.mod that pins the control plane.
	Module string
	// Cache is the directory below which programs are kept.
	Cache string
	// Servers have published programs. What they do not have is built; the zero value downloads nothing.
	Servers Servers
	// Progress gets a line for each program, before it is downloaded or built. Nil: no lines.
	Progress io.Writer
	// Go is the go command; "go" by default.
	Go string

	// connect and stall shorten the timeouts of downloads in tests.
	connect, stall time.Duration
}

// Binaries is a finished build.
type Binaries struct {
	// Dir holds all binaries under their own names.
	Dir string
	// Version is the Kubernetes version, such as v1.36.3.
	Version string
}

// Path is where a binary lies.
func (b Binaries) Path(name string) string { return filepath.Join(b.Dir, name) }

// ControlPlane returns the programs, after it has downloaded or built those that are missing. Several processes may call it at the
// same time: one works, the others wait. Nothing is left of a download or build that was cut off that a later one would take for finished.
func ControlPlane(ctx context.Context, c Config) (Binaries, error) {
	if c.Go == "" {
		c.Go = "go"
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	version, err := pinned(c.Module)
	if err != nil {
		return Binaries{}, err
	}
	key, err := cacheKey(ctx, c)
	if err != nil {
		return Binaries{}, err
	}
	b := Binaries{Dir: filepath.Join(c.Cache, "controlplane", version.kubernetes+"-"+key), Version: version.kubernetes}
	if len(missing(b)) == 0 {
		return b, nil
	}
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return Binaries{}, fmt.Errorf("make the cache of the control plane: %w", err)
	}
	unlock, err := lock(ctx, c, b)
	if err != nil {
		return Binaries{}, err
	}
	defer unlock()
	return b, provideAll(ctx, c, version, b)
}

func missing(b Binaries) []string {
	var names []string
	for _, name := range order() {
		if _, err := os.Stat(b.Path(name)); err != nil {
			names = append(names, name)
		}
	}
	return names
}

func provideAll(ctx context.Context, c Config, v versions, b Binaries) error {
	names := missing(b)
	start := time.Now()
	f := newFetcher(c.Servers, c.connect, c.stall)
	defer f.close()
	for i, name := range names {
		if err := provide(ctx, c, f, v, b, name, fmt.Sprintf("%d of %d", i+1, len(names))); err != nil {
			return err
		}
	}
	if len(names) > 0 {
		fmt.Fprintf(c.Progress, "control plane %s is ready after %s in %s\n", b.Version, time.Since(start).Round(time.Second), b.Dir)
	}
	return nil
}

// provide downloads a program, or builds it when that does not work.
func provide(ctx context.Context, c Config, f *fetcher, v versions, b Binaries, name, position string) error {
	partial := b.Path("." + name + ".partial")
	if a, ok := f.published(v, name); ok {
		fmt.Fprintf(c.Progress, "downloading %s (%s) from %s\n", name, position, host(a.url))
		err := f.fetch(ctx, a, partial)
		if err == nil {
			return keep(b, name, partial)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("download %s: %w", name, err)
		}
		fmt.Fprintf(c.Progress, "cannot download %s: %v; building it\n", name, err)
	}
	fmt.Fprintf(c.Progress, "building %s (%s, up to %s when nothing is cached)\n", name, position, expected[name])
	if err := buildOne(ctx, c, b, name, partial); err != nil {
		return err
	}
	return keep(b, name, partial)
}

// keep puts a finished program into the cache.
func keep(b Binaries, name, partial string) error {
	if err := os.Rename(partial, b.Path(name)); err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	return nil
}

func buildOne(ctx context.Context, c Config, b Binaries, name, to string) error {
	cmd := exec.CommandContext(ctx, c.Go, "build", "-trimpath", "-ldflags", ldflags(b.Version), "-o", to, packagePath(name))
	cmd.Dir = c.Module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// The compilers that go has started must not go on, nor be waited for, when the build is cut off.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return errors.Join(fmt.Errorf("build %s: %w\n%s", name, err, tail(out.String(), 20)), ctx.Err())
	}
	return nil
}

// ldflags gives the binaries the version that they report: kubectl and the API server compare it.
func ldflags(version string) string {
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	const prefix = "k8s.io/component-base/version."
	return fmt.Sprintf("-s -w -X %sgitVersion=%s -X %sgitMajor=%s -X %sgitMinor=%s", prefix, version, prefix, major, prefix, minor)
}

// versions that go.mod pins.
type versions struct{ kubernetes, etcd string }

// pinned reads the versions from the module's go.mod.
func pinned(module string) (versions, error) {
	path := filepath.Join(module, "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return versions{}, fmt.Errorf("read the pins of the control plane: %w (run devcluster inside a checkout, or name the directory by --controlplane)", err)
	}
	file, err := modfile.ParseLax(path, data, nil)
	if err != nil {
		return versions{}, fmt.Errorf("read the pins of the control plane: %w", err)
	}
	var v versions
	for _, r := range file.Require {
		switch r.Mod.Path {
		case kubernetes:
			v.kubernetes = r.Mod.Version
		case etcdServer:
			v.etcd = r.Mod.Version
		}
	}
	if v.kubernetes == "" {
		return versions{}, fmt.Errorf("%s requires no %s: not the module of the control plane", path, kubernetes)
	}
	return v, nil
}

func cacheKey(ctx context.Context, c Config) (string, error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(c.Module, name))
		if err != nil {
			return "", fmt.Errorf("read the pins of the control plane: %w", err)
		}
		h.Write(data)
	}
	out, err := exec.CommandContext(ctx, c.Go, "env", "GOVERSION").Output()
	if err != nil {
		return "", fmt.Errorf("ask %q for its version: %w (Go is needed to build the control plane)", c.Go, err)
	}
	fmt.Fprintf(h, "%s %s/%s", bytes.TrimSpace(out), runtime.GOOS, runtime.GOARCH)
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// lockPoll is the time between two tries to get the lock: a blocking flock(2) could not be cut off by ctx.
const lockPoll = 100 * time.Millisecond

// lock waits for the exclusive right to build into b; the kernel drops it when the process ends, however it ends.
func lock(ctx context.Context, c Config, b Binaries) (unlock func(), err error) {
	f, err := os.OpenFile(b.Path(".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache of the control plane: %w", err)
	}
	for announced := false; ; announced = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %q: %w", f.Name(), err), f.Close())
		}
		if !announced {
			fmt.Fprintf(c.Progress, "waiting for another process that builds the control plane in %s\n", b.Dir)
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another process that builds the control plane in %q: %w", b.Dir, ctx.Err()), f.Close())
		}
	}
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
