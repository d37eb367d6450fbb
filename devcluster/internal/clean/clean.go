// Package clean removes what a development cluster left on the machine: processes, mounts, loop devices and files.
//
// It works from what the kernel shows, not from a record, so it also serves after the supervisor was killed.
// Files go last and only when nothing is mounted below them: a volume's data must never be removed through a mount.
package clean

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

// A process whose environment is not complete is looked at so often, with so long a pause, before it is believed; one that is
// just being executed gets execPatience, as a loaded machine may leave it there for long.
const (
	execAttempts  = 20
	execPause     = time.Millisecond
	execLongPause = 50 * time.Millisecond
	execPatience  = 30 * time.Second
)

// endTimeout bounds the end of processes that were killed, which free much memory on a machine that may be loaded.
const endTimeout = time.Minute

// Report has the numbers of what was found and removed.
type Report struct {
	Processes, Mounts, Loops int
}

func (r Report) String() string {
	return fmt.Sprintf("%d processes ended, %d mounts removed, %d loop devices detached", r.Processes, r.Mounts, r.Loops)
}

// All ends the processes whose environment has the marker, removes mounts and loop devices below dir, and then dir itself,
// or everything in it but the paths to keep. It refuses a directory that is not a cluster's.
func All(dir, marker string, keep ...string) (Report, error) {
	var r Report
	err := Owned(dir)
	if err != nil {
		return r, err
	}
	if r.Processes, err = Processes(marker); err != nil {
		return r, err
	}
	if r.Mounts, err = Mounts(dir); err != nil {
		return r, err
	}
	if r.Loops, err = Loops(dir); err != nil {
		return r, err
	}
	return r, Files(dir, keep...)
}

// Processes kills every process but this one that was started with the marker ("NAME=value") in its environment, and
// returns their number when all are gone and hold nothing any more.
func Processes(marker string) (int, error) {
	return end(func() ([]int, error) { return Marked(marker) }, kill)
}

// kill kills a process and returns a function that reports whether it has ended: one that is ending loses the environment, by which it is
// found, before it lets go of its files.
func kill(pid int) (ended func() bool, err error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	process := os.NewFile(uintptr(fd), "process")
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return nil, errors.Join(err, process.Close())
	}
	return func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(process.Fd()), Events: unix.POLLIN}}, 0)
		return n > 0 && err == nil
	}, nil
}

// end kills what find finds until it finds nothing, for a process may have started another one before it was killed itself, and
// waits until all have ended.
func end(find func() ([]int, error), kill func(pid int) (ended func() bool, err error)) (int, error) {
	deadline := time.NewTimer(endTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	killed, dying := map[int]bool{}, map[int]func() bool{}
	for {
		found, err := find()
		if err != nil {
			return len(killed), err
		}
		for _, pid := range found {
			if dying[pid] != nil {
				continue
			}
			killed[pid] = true
			switch ended, err := kill(pid); {
			case err == nil:
				dying[pid] = ended
			case !errors.Is(err, unix.ESRCH):
				return len(killed), fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		maps.DeleteFunc(dying, func(_ int, ended func() bool) bool { return ended() })
		if len(found) == 0 && len(dying) == 0 {
			return len(killed), nil
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return len(killed), fmt.Errorf("processes %v were killed and are still there", slices.Sorted(maps.Keys(dying)))
		}
	}
}

// Marked lists the processes but this one that were started with the marker in their environment.
func Marked(marker string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if slices.Contains(strings.Split(environment(filepath.Join("/proc", e.Name())), "\x00"), marker) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// environment reads the environment of a process, given as its directory in /proc. A process that ended, a zombie, a kernel
// thread or a process of another user has none to read. A process that is just being executed shows none, or a part of it, for a
// moment, and is read again: it would otherwise be overlooked and keep running.
func environment(process string) string {
	began, pause := time.Now(), execPause
	for attempt := 0; ; attempt++ {
		env, err := readOnce(filepath.Join(process, "environ"))
		if err != nil || strings.HasSuffix(env, "\x00") {
			return env
		}
		if attempt >= execAttempts {
			if !executing(process) || time.Since(began) > execPatience {
				return env
			}
			pause = execLongPause
		}
		// Only what has a program can be in the middle of an execution.
		if _, err := os.Readlink(filepath.Join(process, "exe")); err != nil {
			return env
		}
		<-time.After(pause)
	}
}

// executing reports whether a process is just becoming another program: the kernel has given it a new memory already, and has
// not yet put an environment into it. That is no empty environment, which has an end as well.
func executing(process string) bool {
	stat, err := os.ReadFile(filepath.Join(process, "stat"))
	if err != nil {
		return false
	}
	// The name, in parentheses, may have spaces of its own; after it come the fields from the third on (proc_pid_stat(5)).
	const third, envEnd = 3, 51
	_, rest, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	fields := strings.Fields(rest)
	return len(fields) > envEnd-third && fields[envEnd-third] == "0"
}

// readOnce reads a file by a single call, unless it is huge: between two calls the process may have become another program, and
// the rest of its environment is gone.
func readOnce(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(bufio.NewReaderSize(f, 256<<10))
	return string(data), err
}

// FindMounts lists the mount points below dir, the deepest and latest first. The mount of dir itself is not the cluster's.
func FindMounts(dir string) ([]string, error) {
	dir, err := layout.Resolve(dir)
	if err != nil {
		return nil, err
	}
	infos, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !below(m.Mountpoint, dir), false })
	if err != nil {
		return nil, fmt.Errorf("list mounts below %q: %w", dir, err)
	}
	slices.SortFunc(infos, func(a, b *mountinfo.Info) int { return cmp.Compare(b.ID, a.ID) })
	paths := make([]string, 0, len(infos))
	for _, i := range infos {
		paths = append(paths, i.Mountpoint)
	}
	return paths, nil
}

// below reports whether a path, as the kernel shows it, lies below dir.
func below(path, dir string) bool {
	return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// Mounts removes all mounts below dir.
func Mounts(dir string) (int, error) {
	paths, err := FindMounts(dir)
	if err != nil {
		return 0, err
	}
	for _, path := range paths {
		// A busy mount is detached: its users keep it alive, and the tree below dir no longer shows it.
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return 0, fmt.Errorf("unmount %q: %w", path, err)
		}
	}
	return len(paths), nil
}

// FindLoops lists the loop devices whose backing file lies below dir.
func FindLoops(dir string) ([]string, error) {
	dir, err := layout.Resolve(dir)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}
	var devices []string
	for _, file := range files {
		backing, err := os.ReadFile(file)
		if err == nil && below(strings.TrimSpace(string(backing)), dir) {
			devices = append(devices, "/dev/"+strings.Split(file, "/")[3])
		}
	}
	return devices, nil
}

// Loops detaches the loop devices whose backing file lies below dir.
func Loops(dir string) (int, error) {
	devices, err := FindLoops(dir)
	if err != nil {
		return 0, err
	}
	for _, device := range devices {
		if err := detach(device, dir); err != nil {
			return 0, err
		}
	}
	return len(devices), nil
}

// detach ends a loop device whose backing file lies below dir. The device may have been detached since it was found, and show a file of somebody else: only
// an open device cannot be given to another.
func detach(device, dir string) error {
	f, err := os.Open(device)
	if err != nil {
		return fmt.Errorf("detach loop device: %w", err)
	}
	defer f.Close()
	now, err := FindLoops(dir)
	if err != nil || !slices.Contains(now, device) {
		return err
	}
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detach %q: %w", device, err)
	}
	return nil
}
