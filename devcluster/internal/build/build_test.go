package build

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeGo is a go command that answers `env GOVERSION` and "builds" by writing its arguments, so tests need no network and
// no minutes. It appends each build to $BUILDS and fails for the package named in $FAIL.
const fakeGo = `#!/bin/sh
case "$1" in
env) echo go1.26.8 ;;
build)
	for last; do :; done
	case "$last" in *"$FAIL") [ -n "$FAIL" ] && { echo "cannot build $last" >&2; exit 1; } ;; esac
	echo "$last" >> "$BUILDS"
	while [ "$1" != -o ]; do shift; done
	echo "$last" > "$2"
	;;
esac
`

func setup(t *testing.T) (c Config, builds string) {
	t.Helper()
	dir := t.TempDir()
	module := filepath.Join(dir, "module")
	write(t, filepath.Join(module, "go.mod"), "module m\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v1.36.3\n", 0o644)
	write(t, filepath.Join(module, "go.sum"), "k8s.io/kubernetes v1.36.3 h1:x\n", 0o644)
	goCmd := filepath.Join(dir, "go")
	write(t, goCmd, fakeGo, 0o755)
	builds = filepath.Join(dir, "builds")
	t.Setenv("BUILDS", builds)
	return Config{Module: module, Cache: filepath.Join(dir, "cache"), Go: goCmd}, builds
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func countLines(t *testing.T, path string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	return strings.Count(string(data), "\n")
}

func TestBuildsOnceAndTellsProgress(t *testing.T) {
	c, builds := setup(t)
	var progress bytes.Buffer
	c.Progress = &progress
	b, err := ControlPlane(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	if b.Version != "v1.36.3" || !strings.HasPrefix(filepath.Base(b.Dir), "v1.36.3-") {
		t.Errorf("got %+v", b)
	}
	for _, name := range order() {
		if !strings.Contains(progress.String(), "building "+name+" (") {
			t.Errorf("progress does not name %s:\n%s", name, &progress)
		}
		if data, err := os.ReadFile(b.Path(name)); err != nil || strings.TrimSpace(string(data)) != packagePath(name) {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if again, err := ControlPlane(context.Background(), c); err != nil || again != b {
		t.Fatalf("second call: %+v, %v", again, err)
	}
	if got := countLines(t, builds); got != len(order()) {
		t.Errorf("%d builds, want %d", got, len(order()))
	}
}

func TestConcurrentCallersBuildOnce(t *testing.T) {
	c, builds := setup(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := ControlPlane(context.Background(), c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := countLines(t, builds); got != len(order()) {
		t.Errorf("%d builds, want %d", got, len(order()))
	}
}

func TestFailedBuildIsNotTakenForFinished(t *testing.T) {
	c, _ := setup(t)
	t.Setenv("FAIL", "kube-scheduler")
	_, err := ControlPlane(context.Background(), c)
	if err == nil || !strings.Contains(err.Error(), "build kube-scheduler") || !strings.Contains(err.Error(), "cannot build") {
		t.Fatalf("got %v", err)
	}
	t.Setenv("FAIL", "")
	b, err := ControlPlane(context.Background(), c)
	if err != nil || len(missing(b)) != 0 {
		t.Fatalf("after the repair: %v, missing %v", err, missing(b))
	}
}

func TestAnotherPinBuildsAnew(t *testing.T) {
	c, _ := setup(t)
	first, err := ControlPlane(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(c.Module, "go.sum"), "k8s.io/kubernetes v1.36.3 h1:y\n", 0o644)
	second, err := ControlPlane(context.Background(), c)
	if err != nil || second.Dir == first.Dir {
		t.Fatalf("got %q again, %v", second.Dir, err)
	}
}

func TestBadInput(t *testing.T) {
	tests := map[string]struct {
		reason string
		change func(t *testing.T, c *Config)
		want   string
	}{
		"NoModule": {
			reason: "outside of a checkout the user is told which flag helps",
			change: func(_ *testing.T, c *Config) { c.Module = "/nonexistent" },
			want:   "--controlplane",
		},
		"OtherModule": {
			reason: "a go.mod without Kubernetes is not a control plane",
			change: func(t *testing.T, c *Config) {
				write(t, filepath.Join(c.Module, "go.mod"), "module m\n", 0o644)
			},
			want: "requires no k8s.io/kubernetes",
		},
		"NoGo": {
			reason: "without Go nothing can be built",
			change: func(_ *testing.T, c *Config) { c.Go = "/nonexistent/go" },
			want:   "Go is needed",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, _ := setup(t)
			tc.change(t, &c)
			if _, err := ControlPlane(context.Background(), c); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("%s: got %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

func TestLDFlags(t *testing.T) {
	got := ldflags("v1.36.3")
	for _, want := range []string{"gitVersion=v1.36.3", "gitMajor=1", "gitMinor=36"} {
		if !strings.Contains(got, want) {
			t.Errorf("ldflags lacks %s: %s", want, got)
		}
	}
}

// TestInterruptedBuildLeavesNothingThatLooksFinished cuts a build off in the middle, as Ctrl-C does.
func TestInterruptedBuildLeavesNothingThatLooksFinished(t *testing.T) {
	c, builds := setup(t)
	started := filepath.Join(t.TempDir(), "started")
	slow := strings.Replace(fakeGo, "\tfor last;", "\t[ -n \"$SLOW\" ] && { sleep 1000 & echo $! > "+started+".pid; touch "+started+"; wait; }\n\tfor last;", 1)
	write(t, c.Go, slow, 0o755)
	t.Setenv("SLOW", "yes")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := ControlPlane(ctx, c)
		done <- err
	}()
	for {
		if _, err := os.Stat(started); err == nil {
			break
		}
		select {
		case err := <-done:
			t.Fatalf("ended early: %v", err)
		default:
		}
	}
	cancelled := time.Now()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "build etcd") {
		t.Errorf("got %v", err)
	}
	// Nobody waits for the compiler, which is no child of ours: the kernel may take a moment to end it.
	pid, err := os.ReadFile(started + ".pid")
	if err != nil {
		t.Fatal(err)
	}
	for state := running(string(pid)); state != ""; state = running(string(pid)) {
		if time.Since(cancelled) > time.Minute {
			t.Fatalf("the compiler goes on: %s", state)
		}
		time.Sleep(time.Millisecond)
	}
	t.Setenv("SLOW", "")
	b, err := ControlPlane(t.Context(), c)
	if err != nil || len(missing(b)) != 0 || countLines(t, builds) != len(order()) {
		t.Errorf("the next build: %v, missing %v, %d builds", err, missing(b), countLines(t, builds))
	}
}

// running is the state of a process, empty when it has ended.
func running(pid string) string {
	stat, err := os.ReadFile("/proc/" + strings.TrimSpace(pid) + "/stat")
	if err != nil || strings.Contains(string(stat), ") Z ") {
		return ""
	}
	return string(stat)
}

// TestWaitForAnotherBuildIsToldAndCanBeCutOff: two clusters start from one cache, and the user of the second loses patience.
func TestWaitForAnotherBuildIsToldAndCanBeCutOff(t *testing.T) {
	c, builds := setup(t)
	other, err := ControlPlane(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(other.Path(Kubectl)); err != nil {
		t.Fatal(err)
	}
	unlock, err := lock(t.Context(), Config{Progress: io.Discard}, other)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var told []string
	c.Progress = lineFunc(func(line string) {
		told = append(told, line)
		cancel()
	})
	want := "waiting for another process that builds the control plane in " + other.Dir + "\n"
	if _, err := ControlPlane(ctx, c); !errors.Is(err, context.Canceled) || !slices.Equal(told, []string{want}) {
		t.Errorf("got %v, told %q, want %q", err, told, want)
	}
	unlock()
	if _, err := ControlPlane(t.Context(), c); err != nil || countLines(t, builds) != len(order())+1 {
		t.Errorf("after the other has ended: %v, %d builds, want %d", err, countLines(t, builds), len(order())+1)
	}
}

// TestProgressComesBeforeTheWait: a line that comes when the work is done helps nobody.
func TestProgressComesBeforeTheWait(t *testing.T) {
	c, builds := setup(t)
	at := map[string]int{}
	c.Progress = lineFunc(func(line string) {
		if name, found := strings.CutPrefix(line, "building "); found {
			name, _, _ = strings.Cut(name, " ")
			at[name] = countLines(t, builds)
			if !strings.Contains(line, expected[name].String()) {
				t.Errorf("no word of how long it may take: %q", line)
			}
		}
	})
	if _, err := ControlPlane(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for i, name := range order() {
		if built, told := at[name]; !told || built != i {
			t.Errorf("%s was told after %d builds, want %d", name, built, i)
		}
	}
}

// lineFunc is a writer that gets one line with each call.
type lineFunc func(string)

// Write passes the line on.
func (f lineFunc) Write(p []byte) (int, error) {
	f(string(p))
	return len(p), nil
}

func TestTail(t *testing.T) {
	for text, want := range map[string]string{"": "", "a\n": "a", "a\nb\n": "a\nb", "a\nb\nc\nd\n\n": "c\nd"} {
		if got := tail(text, 2); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
