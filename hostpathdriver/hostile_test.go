package hostpathdriver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikittest/seeds"
)

const (
	// hostileMemory is what the driver may take at its peak, in bytes: the limit of its container.
	hostileMemory = 256 << 20
	// hostileDescriptors is how many files it may have open.
	hostileDescriptors = 200
	// hostileNames is how many names the pod has made when its volume is deleted.
	hostileNames = 300_000
	// hostilePatience is how long the call of another tenant may take: what a kubelet waits.
	hostilePatience = 2 * time.Minute
)

// hostileDuration is how long TestHostileTenant goes on: HOSTILE_SECONDS, or five minutes in `make exhaustive`, or ten seconds.
func hostileDuration(t *testing.T) time.Duration {
	t.Helper()
	if text := os.Getenv("HOSTILE_SECONDS"); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("HOSTILE_SECONDS=%q: must be a number of seconds", text)
		}
		return time.Duration(seconds) * time.Second
	}
	if os.Getenv("LONGSHORE_EXHAUSTIVE") != "" {
		return 5 * time.Minute
	}
	return 10 * time.Second
}

// TestHostileTenant has a pod make in its volume what is hard to measure and to remove, while the volume is measured, deleted and made again and the driver
// is restarted: the calls of other tenants succeed, and the driver takes little memory and few descriptors.
func TestHostileTenant(t *testing.T) {
	seed := seeds.One(t)
	m := newMachine(t)
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	defer cancel()
	m.ctx = ctx
	// A kubelet connects for each call. A pause between attempts that grows, as by default, lets the times pass in which the driver serves.
	pauses := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1, MaxDelay: 100 * time.Millisecond}, MinConnectTimeout: time.Second}
	conn, err := grpc.NewClient("unix://"+m.path("csi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(pauses))
	m.must(nil, err)
	defer conn.Close() // test
	newClient := func(name string) *client {
		return &client{machine: m, ctx: ctx, controller: csi.NewControllerClient(conn), node: csi.NewNodeClient(conn), name: name}
	}
	d := &watched{machine: m}
	d.start()
	enough := make(chan struct{})
	var tenants sync.WaitGroup
	for i := range 2 {
		tenants.Go(func() {
			c := newClient(fmt.Sprintf("tenant-%d", i))
			rounds := 0
			for ; !closed(enough); rounds++ {
				if err := c.within(hostilePatience, func(c *client) error { return c.liveAndDie(rounds) }); err != nil {
					t.Errorf("%s, round %d: %v", c.name, rounds, err)
					return
				}
			}
			t.Logf("%s used %d volumes", c.name, rounds)
		})
	}
	tenants.Go(func() {
		c := newClient("hostile")
		round := 0
		for ; !closed(enough); round++ {
			h := &hostile{Rand: rand.New(rand.NewPCG(seed, uint64(round)))} //nolint:gosec // a round is no negative number
			if err := c.hostileLife(round, h, enough); err != nil {
				t.Errorf("the volume of the hostile pod, round %d: %v", round, err)
				return
			}
		}
		t.Logf("the hostile pod filled %d volumes", round)
	})
	var longest time.Duration
	for end := time.Now().Add(hostileDuration(t)); time.Now().Before(end); {
		d.watch(time.After(5 * time.Second))
		ending := time.Now()
		d.end()
		d.start()
		longest = max(longest, time.Since(ending))
	}
	t.Logf("the driver did not serve for at most %v", longest)
	close(enough)
	gone := make(chan time.Time)
	go func() {
		tenants.Wait()
		close(gone)
	}()
	d.watch(gone)
	left, err := csi.NewControllerClient(conn).GetCapacity(ctx, &csi.GetCapacityRequest{}, grpc.WaitForReady(true))
	m.must(nil, err)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(hostilePatience); left.GetAvailableCapacity() != 1<<40 && time.Now().Before(end); <-tick.C { // until the trash is empty
		left, err = csi.NewControllerClient(conn).GetCapacity(ctx, &csi.GetCapacityRequest{})
		m.must(nil, err)
	}
	if got := left.GetAvailableCapacity(); got != 1<<40 {
		t.Errorf("%d bytes are left in the pool, want all: %d", got, int64(1)<<40)
	}
	d.end()
	m.checkClean()
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// watched is a driver as a process of its own, whose memory and descriptors are looked at.
type watched struct {
	*machine

	child *exec.Cmd
}

func (d *watched) start() {
	d.t.Helper()
	d.child = d.machine.child("")
	d.must(nil, d.child.Start())
	d.must(nil, d.serves())
}

func (d *watched) end() {
	d.t.Helper()
	d.must(nil, terminate(d.child))
}

// watch looks again and again, until something comes.
func (d *watched) watch(until <-chan time.Time) {
	d.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !d.t.Failed() {
		select {
		case <-until:
			return
		case <-tick.C:
			d.check()
		}
	}
	<-until
}

func (d *watched) check() {
	d.t.Helper()
	proc := filepath.Join("/proc", strconv.Itoa(d.child.Process.Pid))
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	d.must(nil, err)
	_, line, _ := strings.Cut(string(status), "VmHWM:")
	var peak int64
	if _, err := fmt.Sscanf(line, "%d kB", &peak); err != nil {
		d.t.Errorf("peak memory of the driver: %v in %q", err, status)
	}
	if peak <<= 10; peak > hostileMemory {
		d.t.Errorf("the driver took %d MiB of memory, and may take %d", peak>>20, hostileMemory>>20)
	}
	open, err := os.ReadDir(filepath.Join(proc, "fd"))
	d.must(nil, err)
	if len(open) > hostileDescriptors {
		d.t.Errorf("the driver has %d open files, and may have %d", len(open), hostileDescriptors)
	}
}

// within makes calls with a deadline.
func (c *client) within(patience time.Duration, call func(c *client) error) error {
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	timed := *c
	timed.ctx = ctx
	return call(&timed)
}

// hostileLife makes a volume, has the pod fill it while it is measured, and deletes it.
func (c *client) hostileLife(round int, h *hostile, enough <-chan struct{}) error {
	var id string
	err := c.within(hostilePatience, func(c *client) error {
		return c.until(func(o grpc.CallOption) error {
			created, err := c.controller.CreateVolume(c.ctx, &csi.CreateVolumeRequest{Name: fmt.Sprintf("hostile-%d", round), VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}}, o)
			id = created.GetVolume().GetVolumeId()
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	measured := make(chan struct{})
	ctx, cancel := context.WithCancel(c.ctx)
	go func() {
		defer close(measured)
		for ctx.Err() == nil { // the answer is not certain while the driver is restarted, and the pod moves what is being measured
			_, _ = c.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: c.path("hostile"), VolumeCapability: mountCapability()})
			_, _ = c.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: c.path("hostile")})
		}
	}()
	for h.names < hostileNames && !closed(enough) && err == nil {
		err = h.act(c.path("state/volumes/" + id))
	}
	cancel()
	<-measured
	if err != nil {
		return err
	}
	err = c.within(hostilePatience, func(c *client) error {
		return c.until(func(o grpc.CallOption) error {
			_, err := c.node.NodeUnstageVolume(c.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: c.path("hostile")}, o)
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("unstage: %w", err)
	}
	err = c.within(hostilePatience, func(c *client) error {
		return c.until(func(o grpc.CallOption) error {
			_, err := c.controller.DeleteVolume(c.ctx, &csi.DeleteVolumeRequest{VolumeId: id}, o)
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// hostile is what a pod does in its volume.
type hostile struct {
	*rand.Rand
	names int
}

// act makes some hundred names in the volume.
func (h *hostile) act(volume string) error {
	const some = 500
	h.names += some
	deep := h.IntN(5) == 0
	dir := filepath.Join(volume, fmt.Sprintf("%s-%d", strings.Repeat("n", 200), h.IntN(50)))
	if deep {
		dir = filepath.Join(volume, "deep")
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if deep {
		return h.deep(dir, some)
	}
	acts := []func(dir string, n int) error{h.wide, h.links, h.swaps, h.odd}
	return acts[h.IntN(len(acts))](dir, some)
}

func (h *hostile) wide(dir string, n int) error {
	for range n {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(h.Uint64())), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (h *hostile) links(dir string, n int) error {
	file := filepath.Join(dir, fmt.Sprint("file-", h.Uint64()))
	err := os.WriteFile(file, []byte("data"), 0o600)
	for i := 0; i < n && err == nil; i++ {
		err = os.Link(file, filepath.Join(dir, fmt.Sprint("link-", h.Uint64())))
	}
	return err
}

// deep makes directories in each other, deeper than a path can say.
func (h *hostile) deep(dir string, n int) error {
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for made := 0; made < n && err == nil; {
		if err = unix.Mkdirat(at, "d", 0o700); err == nil {
			made++
		} else if !errors.Is(err, unix.EEXIST) {
			break
		}
		var below int
		below, err = unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		_ = unix.Close(at)
		at = below
	}
	if at >= 0 {
		_ = unix.Close(at)
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) { // another act has made something else of it
		err = nil
	}
	return err
}

// swaps exchanges a directory for a link out of the volume, again and again.
func (h *hostile) swaps(dir string, n int) error {
	own, link := filepath.Join(dir, "own"), filepath.Join(dir, "link")
	for _, err := range []error{os.Mkdir(own, 0o700), os.Symlink("/", link)} {
		if err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	for range n {
		if err := unix.Renameat2(unix.AT_FDCWD, own, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); err != nil {
			return err
		}
	}
	return nil
}

// odd makes what is neither a file nor a directory, or cannot be read, or says that it is large.
func (h *hostile) odd(dir string, n int) error {
	for range n {
		path := filepath.Join(dir, fmt.Sprint("odd-", h.Uint64()))
		var err error
		switch h.IntN(3) {
		case 0:
			err = unix.Mkfifo(path, 0)
		case 1:
			err = os.Mkdir(path, 0)
		default:
			err = errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
