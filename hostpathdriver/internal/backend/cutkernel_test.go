package backend

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/loop"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/copier"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/needs"
	"github.com/longshore-csi/longshore/hostpathdriver/internal/volume"
)

// useKernel replaces the fakes, and needs root.
func (w *world) useKernel() {
	w.t.Helper()
	w.mounter, w.devices, w.systems = mount.Kernel{}, loop.Kernel{}, filesystem.NewKernel()
}

// page is aligned memory, as direct I/O needs it.
func page(t *testing.T) []byte {
	t.Helper()
	memory, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(memory); err != nil {
			t.Error(err)
		}
	})
	return memory
}

// workload is how somebody uses two volumes.
type workload struct {
	name string
	// fsType is the type of an image's file system.
	fsType string
	// flags are those of the files that it writes to.
	flags int
	// directIO makes the devices go past the page cache of their files.
	directIO bool
	// groups is how many are taken.
	groups int
	// make makes a volume and stages it, and returns the file to write to.
	make func(s *system, name string) (id volume.ID, file string)
	// read reads from a snapshot what was written to that file.
	read func(s *system, snapshot volume.ID) []byte
}

func workloads() []workload {
	device := workload{name: "Device", groups: 12, make: deviceToWrite, read: func(s *system, snapshot volume.ID) []byte {
		return s.first(filepath.Join(s.snapshotContents(snapshot), diskName))
	}}
	direct, past := device, device
	direct.name, direct.flags = "DirectIO", unix.O_DIRECT
	past.name, past.flags, past.directIO = "DirectIOBelow", unix.O_DIRECT, true
	return []workload{device, direct, past, imageWorkload("ext4", 32<<20), imageWorkload("xfs", 300<<20), {
		name: "Directory", groups: 8,
		make: func(s *system, name string) (volume.ID, string) {
			v := s.create(name)
			s.stageForReal(v.ID, s.stageRequest(v.ID))
			return v.ID, filepath.Join(s.staging(v.ID), "counter")
		},
		read: func(s *system, snapshot volume.ID) []byte {
			return s.first(filepath.Join(s.snapshotContents(snapshot), "counter"))
		},
	}}
}

func deviceToWrite(s *system, name string) (volume.ID, string) {
	v := s.createBlock(name)
	s.stageForReal(v.ID, s.stageBlock(v.ID))
	device, err := s.devices.Device(s.ctx, filepath.Join(s.contents(v.ID), diskName), false)
	s.must(err)
	return v.ID, device
}

// imageWorkload reads from volumes that are made of the snapshots, where the
// file system brings itself in order.
func imageWorkload(fsType string, size int64) workload {
	request := func(name string) *volume.CreateRequest {
		req := imageRequest(name, fsType)
		req.Range.Required = size
		return req
	}
	return workload{
		name: "Image" + fsType, fsType: fsType, groups: 3,
		make: func(s *system, name string) (volume.ID, string) {
			v, err := s.volumes.Create(s.ctx, request(name))
			s.must(err)
			s.stageForReal(v.ID, s.stageImage(v.ID, ""))
			return v.ID, filepath.Join(s.staging(v.ID), "counter")
		},
		read: func(s *system, snapshot volume.ID) []byte {
			req := request("restored-" + string(snapshot))
			req.Source = &volume.Source{Snapshot: snapshot}
			v := s.restore(req)
			s.stageForReal(v.ID, s.stageImage(v.ID, ""))
			read := s.first(filepath.Join(s.staging(v.ID), "counter"))
			s.must(s.node.Unstage(s.ctx, v.ID, s.staging(v.ID)), s.volumes.Delete(s.ctx, v.ID))
			return read
		},
	}
}

// stageForReal leaves nothing when the test fails.
func (s *system) stageForReal(id volume.ID, req *volume.StageRequest) {
	s.t.Helper()
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), time.Minute)
		defer cancel()
		unix.Unmount(s.staging(id), unix.MNT_DETACH)
		s.devices.Detach(ctx, filepath.Join(s.contents(id), diskName), false)
	})
	s.must(s.node.Stage(s.ctx, req))
}

// first reads the counter at the beginning of a file.
func (w *world) first(path string) []byte {
	w.t.Helper()
	file, err := os.Open(path)
	w.must(err)
	defer file.Close()
	data := make([]byte, 8)
	_, err = file.ReadAt(data, 0)
	w.must(err)
	return data
}

// goPastTheCache makes a device do direct I/O to its file.
func goPastTheCache(t *testing.T, device string) {
	t.Helper()
	file, err := os.OpenFile(device, os.O_RDWR, 0)
	if err == nil {
		err = errors.Join(unix.IoctlSetInt(int(file.Fd()), unix.LOOP_SET_DIRECT_IO, 1), file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// counter writes the same number to two files, always to the first one first,
// and makes each write durable before the next.
type counter struct {
	t      *testing.T
	files  [2]*os.File
	memory []byte
	random *rand.Rand

	mu    sync.Mutex // held while it writes
	ended bool
	last  [2]uint64
}

func newCounter(t *testing.T, flags int, paths ...string) *counter {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := &counter{t: t, memory: page(t), random: rand.New(rand.NewPCG(seed, 0))}
	for i, path := range paths {
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|flags, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		c.files[i] = file
		c.write(i, 0)
	}
	return c
}

// write reports whether it may go on.
func (c *counter) write(i int, number uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	binary.LittleEndian.PutUint64(c.memory, number)
	_, err := c.files[i].WriteAt(c.memory, 0)
	if err := errors.Join(err, c.files[i].Sync()); err != nil {
		c.t.Error(err)
		return false
	}
	c.last[i] = number
	return true
}

// run counts, in bursts and with pauses.
func (c *counter) run() {
	for number := uint64(1); ; number++ {
		for i := range c.files {
			if !c.write(i, number) {
				return
			}
			if c.random.IntN(4) == 0 {
				time.Sleep(time.Duration(c.random.IntN(40)) * time.Millisecond)
			}
		}
	}
}

func (c *counter) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}

// TestGroupsUnderAWriter takes groups of two volumes to which somebody counts.
// Whatever is answered is of one moment: the second volume has what the first
// has, or one less, and not less than it had before the group was asked for.
// The first volume is copied first, so that copies of two moments have more in
// the second one. After many refusals the writer has to rest, somewhere between
// two writes.
func TestGroupsUnderAWriter(t *testing.T) {
	needs.Time(t)
	if os.Geteuid() != 0 {
		t.Skip("devices and mounts need root")
	}
	for _, load := range workloads() {
		t.Run(load.name, func(t *testing.T) {
			eachDisk(t, func(t *testing.T, w *world) {
				w.useKernel()
				if load.fsType != "" {
					needType(t, w.systems, load.fsType)
				}
				load.run(t, w.boot())
			})
		})
	}
}

func (l workload) run(t *testing.T, s *system) {
	const tries = 8
	a, pathA := l.make(s, "a")
	b, pathB := l.make(s, "b")
	if l.directIO {
		goPastTheCache(t, pathA)
		goPastTheCache(t, pathB)
	}
	c := newCounter(t, l.flags, pathA, pathB)
	var writer sync.WaitGroup
	defer writer.Wait()
	defer c.stop()
	writer.Go(c.run)
	refused, rested := 0, 0
	for i := range l.groups {
		s.volumes.cfg.Step = nil
		if i%2 == 1 { // a machine on which sharing blocks takes longer
			s.volumes.cfg.Step = func(name string) {
				if name == "reflink" {
					time.Sleep(5 * time.Millisecond)
				}
			}
		}
		c.mu.Lock()
		before := c.last
		c.mu.Unlock()
		made, err := s.volumes.CreateGroup(s.ctx, &volume.GroupRequest{Name: fmt.Sprint(i), Sources: []volume.ID{a, b}})
		s.must(err)
		err = s.copy(made.ID)
		for range tries {
			if !errors.Is(err, volume.ErrConcurrentWrite) {
				break
			}
			refused++
			err = s.copy(made.ID)
		}
		if errors.Is(err, volume.ErrConcurrentWrite) {
			rested++
			err = c.resting(func() error { return s.untilStill(made.ID) })
		}
		s.must(err)
		gotA, gotB := binary.LittleEndian.Uint64(l.read(s, made.Members[0])), binary.LittleEndian.Uint64(l.read(s, made.Members[1]))
		if gotB > gotA || gotA > gotB+1 || gotA < before[0] || gotB < before[1] {
			t.Errorf("group %d has %d and %d, which no moment explains; before it was asked for there were %v", i, gotA, gotB, before)
		}
		s.must(s.volumes.DeleteGroup(s.ctx, made.ID, made.Members))
	}
	c.stop()
	writer.Wait()
	t.Logf("%d groups, %d attempts refused, the writer had to rest %d times, %d writes", l.groups, refused, rested, c.last[0]+c.last[1])
	for i, id := range []volume.ID{a, b} {
		s.must(c.files[i].Close(), s.node.Unstage(s.ctx, id, s.staging(id)), s.volumes.Delete(s.ctx, id))
	}
}

// resting calls while nobody writes.
func (c *counter) resting(call func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return call()
}

// untilStill repeats until a file system has written what it had in memory.
func (s *system) untilStill(group volume.ID) error {
	for {
		if err := s.copy(group); !errors.Is(err, volume.ErrConcurrentWrite) || s.ctx.Err() != nil {
			return err
		}
	}
}

// TestDevicesLeaveTraces: what is written to a loop device changes the stamp of
// its file, however it is written, and on whichever file system.
func TestDevicesLeaveTraces(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "tmpfs"} {
		for name, c := range map[string]struct {
			flags    int
			directIO bool
			write    func(file *os.File, memory []byte) error
		}{
			"Buffered":      {write: writeAndSync},
			"DirectIO":      {flags: unix.O_DIRECT, write: writeAndSync},
			"DirectIOBelow": {flags: unix.O_DIRECT, directIO: true, write: writeAndSync},
			"Discard": {write: func(file *os.File, _ []byte) error {
				return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096)
			}},
		} {
			t.Run(fsType+name, func(t *testing.T) {
				w := newWorld(t)
				w.moveTo(newFileSystem(t, fsType))
				w.useKernel()
				s := w.boot()
				id, device := deviceToWrite(s, "device")
				if c.directIO && fsType != "tmpfs" { // which has nothing but a cache
					goPastTheCache(t, device)
				}
				file, err := os.OpenFile(device, os.O_RDWR|c.flags, 0)
				w.must(err)
				memory, path := page(t), filepath.Join(w.contents(id), diskName)
				w.must(writeAndSync(file, memory))
				for i := range 20 {
					before, steady, err := copier.Mark(t.Context(), path)
					for w.must(err); !steady; w.must(err) {
						time.Sleep(copier.Tick())
						before, steady, err = copier.Mark(t.Context(), path)
					}
					memory[i]++
					w.must(c.write(file, memory))
					if after, err := copier.Look(t.Context(), path); err != nil || after == before {
						t.Fatalf("write %d left no trace: %v", i, err)
					}
				}
				w.must(file.Close(), s.node.Unstage(s.ctx, id, s.staging(id)))
			})
		}
	}
}

func writeAndSync(file *os.File, memory []byte) error {
	_, err := file.WriteAt(memory, 0)
	return errors.Join(err, file.Sync())
}
