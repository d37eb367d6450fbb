// Package build makes the binaries of the control plane from pinned Go modules, once, into a cache.
//
// The cache is keyed by the content of go.mod and go.sum, the Go version and the platform, so another pin or another
// toolchain builds anew and two checkouts with the same pins share one build.
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

// Binaries of the control plane, in the order in which they are built: the quick one first.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kubectl           = "kubectl"
)

const kubernetes = "k8s.io/kubernetes"

// expected is how long a build with empty caches takes on two cores; it is only shown to the user.
var expected = map[string]time.Duration{
	Etcd: 30 * time.Second, APIServer: 150 * time.Second, ControllerManager: 60 * time.Second, Scheduler: 30 * time.Second, Kubectl: 30 * time.Second,
}

func order() []string { return []string{Etcd, APIServer, ControllerManager, Scheduler, Kubectl} }

func packagePath(binary string) string {
	if binary == Etcd {
		return "go.etcd.io/etcd/server/v3"
	}
	return kubernetes + "/cmd/" + binary
}

// Config says what to build and where to.
type Config struct {
	// Module is the directory with the go.mod that pins the control plane.
	Module string
	// Cache is the directory below which binaries are kept.
	Cache string
	// Progress gets a line for each binary, before and after it is built. Nil: no lines.
	Progress io.Writer
	// Go is the go command; "go" by default.
	Go string
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

// ControlPlane returns the binaries, building those that are missing. Several processes may call it at the same time: one
// builds, the others wait. A build that was cut off leaves nothing behind that a later one would take for finished.
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
	b := Binaries{Dir: filepath.Join(c.Cache, "controlplane", version+"-"+key), Version: version}
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
	return b, buildAll(ctx, c, b)
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

func buildAll(ctx context.Context, c Config, b Binaries) error {
	names := missing(b)
	start := time.Now()
	for i, name := range names {
		fmt.Fprintf(c.Progress, "building %s (%d of %d, up to %s when nothing is cached)\n", name, i+1, len(names), expected[name])
		if err := buildOne(ctx, c, b, name); err != nil {
			return err
		}
	}
	if len(names) > 0 {
		fmt.Fprintf(c.Progress, "control plane %s built in %s into %s\n", b.Version, time.Since(start).Round(time.Second), b.Dir)
	}
	return nil
}

func buildOne(ctx context.Context, c Config, b Binaries, name string) error {
	partial := b.Path("." + name + ".partial")
	cmd := exec.CommandContext(ctx, c.Go, "build", "-trimpath", "-ldflags", ldflags(b.Version), "-o", partial, packagePath(name))
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
	if err := os.Rename(partial, b.Path(name)); err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
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

// pinned reads the Kubernetes version from the module's go.mod.
func pinned(module string) (string, error) {
	path := filepath.Join(module, "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the pins of the control plane: %w (run devcluster inside a checkout, or name the directory by --controlplane)", err)
	}
	file, err := modfile.ParseLax(path, data, nil)
	if err != nil {
		return "", fmt.Errorf("read the pins of the control plane: %w", err)
	}
	for _, r := range file.Require {
		if r.Mod.Path == kubernetes {
			return r.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("%s requires no %s: not the module of the control plane", path, kubernetes)
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
	for told := false; ; told = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %q: %w", f.Name(), err), f.Close())
		}
		if !told {
			fmt.Fprintf(c.Progress, "waiting for another process that builds the control plane into %s\n", b.Dir)
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for the build of another process into %q: %w", b.Dir, ctx.Err()), f.Close())
		}
	}
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
