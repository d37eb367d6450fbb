package clean

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// population are processes that are found for a moment after they were killed, and end another one later.
type population struct {
	alive  []int
	heir   map[int]int
	killed []int
	ended  int
}

func (p *population) find() ([]int, error) {
	found := slices.Clone(p.alive)
	p.alive = slices.DeleteFunc(p.alive, func(pid int) bool { return slices.Contains(p.killed, pid) })
	return found, nil
}

// kill makes a process leave its heir, which it had started before.
func (p *population) kill(pid int) (ended func() bool, err error) {
	if slices.Contains(p.killed, pid) {
		return nil, unix.ESRCH
	}
	p.killed = append(p.killed, pid)
	if heir := p.heir[pid]; heir != 0 {
		p.alive = append(p.alive, heir)
	}
	return p.endsLater(), nil
}

func (p *population) endsLater() func() bool {
	asked := 0
	return func() bool {
		if asked++; asked == 20 {
			p.ended++
		}
		return asked >= 20
	}
}

// TestProcessesThatAreStartedMeanwhileEndToo: a build that is cut off may have started one more compiler.
func TestProcessesThatAreStartedMeanwhileEndToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &population{alive: []int{7, 8}, heir: map[int]int{8: 9, 9: 10}}
		if n, err := end(p.find, p.kill); n != 4 || err != nil {
			t.Errorf("ended %d, %v, want 4", n, err)
		}
		if len(p.alive) > 0 {
			t.Errorf("alive: %v", p.alive)
		}
	})
}

// TestProcessesThatCannotBeFoundAnyMoreAreWaitedFor: they still hold their files, sockets and loop devices.
func TestProcessesThatCannotBeFoundAnyMoreAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &population{alive: []int{7}}
		kill := func(pid int) (func() bool, error) {
			p.alive = nil
			return p.kill(pid)
		}
		if n, err := end(p.find, kill); n != 1 || err != nil || p.ended != 1 {
			t.Errorf("killed %d, %d ended, %v", n, p.ended, err)
		}
	})
}

func TestProcessesThatDoNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		stuck := func() ([]int, error) { return []int{7}, nil }
		_, err := end(stuck, func(int) (func() bool, error) { return func() bool { return false }, nil })
		if err == nil || !strings.Contains(err.Error(), "[7] were killed and are still there") || time.Since(began) < endTimeout {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if _, err := end(stuck, func(int) (func() bool, error) { return nil, unix.EPERM }); !errors.Is(err, unix.EPERM) {
			t.Errorf("somebody else's: %v", err)
		}
	})
}

// fakeProcess is a directory as in /proc.
func fakeProcess(t *testing.T, envEnd string) string {
	t.Helper()
	dir := t.TempDir()
	fields := slices.Repeat([]string{"1"}, 50)
	fields[51-3] = envEnd
	for name, text := range map[string]string{"environ": "", "stat": "7 (a (b) c) " + strings.Join(fields, " ") + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/bin/sh", filepath.Join(dir, "exe")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestSlowExecutionIsWaitedFor: on a loaded machine a process may stay in the middle of its execution for seconds.
func TestSlowExecutionIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := fakeProcess(t, "0")
		go func() {
			<-time.After(5 * time.Second)
			if err := os.WriteFile(filepath.Join(dir, "environ"), []byte("A=b\x00"), 0o600); err != nil {
				t.Error(err)
			}
		}()
		if got := environment(dir); got != "A=b\x00" {
			t.Errorf("got %q", got)
		}
	})
}

// TestEmptyEnvironmentIsBelievedSoon: a process may have none, and must not delay everybody who looks for others.
func TestEmptyEnvironmentIsBelievedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if got := environment(fakeProcess(t, "140735000000000")); got != "" || time.Since(began) > time.Second {
			t.Errorf("got %q after %s", got, time.Since(began))
		}
		began = time.Now()
		if got := environment(fakeProcess(t, "0")); got != "" || time.Since(began) > 2*execPatience {
			t.Errorf("one that is stuck: got %q after %s", got, time.Since(began))
		}
	})
}

func TestExecuting(t *testing.T) {
	for name, dir := range map[string]string{"Self": "/proc/self", "Nobody": filepath.Join(t.TempDir(), "gone")} {
		if executing(dir) {
			t.Errorf("%s: executing", name)
		}
	}
}
