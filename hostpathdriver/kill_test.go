package hostpathdriver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikittest/seeds"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

const (
	// childEnv makes the test program a driver: its value is the directory of
	// the machine.
	childEnv = "HOSTPATHDRIVER_TEST_CHILD"
	// childNameEnv makes it one of several controllers.
	childNameEnv = "HOSTPATHDRIVER_TEST_CHILD_NAME"
)

// runChild is the driver that tests kill. Its mount table dies with it, as
// with a machine.
func runChild(dir string) int {
	ctx, stop := signal.NotifyContext(klog.NewContext(context.Background(), klog.Logger{}), syscall.SIGTERM)
	defer stop()
	o := NewOptions()
	o.NodeID, o.StateDir, o.Endpoint, o.Mounter = "n1", filepath.Join(dir, "state"), "unix://"+filepath.Join(dir, "csi.sock"), &mount.Fake{}
	o.Capacity = map[string]int64{"pool": 1 << 40}
	if spec := os.Getenv(killAtEnv); spec != "" {
		var err error
		if ctx, o, err = doomed(ctx, dir, spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if name := os.Getenv(childNameEnv); name != "" {
		o.Mode, o.NodeID, o.Attach, o.Endpoint = ModeController, "", true, "unix://"+filepath.Join(dir, name+".sock")
	}
	if err := Run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// TestKill kills the driver with SIGKILL at random moments while calls are
// under way, several times, and repeats each call until its outcome is known,
// as a CO does. At the end every volume is deleted: nothing may be left, and
// the pool must have all its space.
func TestKill(t *testing.T) { seeds.Each(t, killAtRandom) }

func killAtRandom(t *testing.T, seed uint64) {
	m := newMachine(t)
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	fastRetry := backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1.5, MaxDelay: 20 * time.Millisecond}
	conn, err := grpc.NewClient("unix://"+m.path("csi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: fastRetry, MinConnectTimeout: time.Minute}))
	m.must(nil, err)
	defer conn.Close() // test

	killed := make(chan error, 1)
	enough, clientsDone := make(chan struct{}), make(chan struct{})
	go func() {
		defer cancel() // clients do not wait for a driver that cannot be started
		killed <- m.killRepeatedly(rand.New(rand.NewPCG(seed, 0)), enough, clientsDone)
	}()

	var clients sync.WaitGroup
	for i := range 6 {
		clients.Go(func() {
			c := client{machine: m, ctx: ctx, controller: csi.NewControllerClient(conn), node: csi.NewNodeClient(conn), name: fmt.Sprintf("client-%d", i)}
			for round := 0; ; round++ {
				if err := c.liveAndDie(round); err != nil {
					t.Errorf("%s, round %d: %v", c.name, round, err)
					return
				}
				select {
				case <-enough:
					t.Logf("%s used %d volumes", c.name, round+1)
					return
				default:
				}
			}
		})
	}
	clients.Wait()
	left, err := csi.NewControllerClient(conn).GetCapacity(ctx, &csi.GetCapacityRequest{}, grpc.WaitForReady(true))
	if err != nil || left.GetAvailableCapacity() != 1<<40 {
		t.Errorf("left in the pool: %v, %v, want %d", left, err, int64(1)<<40)
	}
	close(clientsDone)
	if err := <-killed; err != nil {
		t.Error(err)
	}
	m.checkClean()
}

// killRepeatedly starts the driver and kills it, again and again. Then it
// closes enough, and ends the last one in order when the clients are done.
func (m *machine) killRepeatedly(random *rand.Rand, enough chan<- struct{}, clientsDone <-chan struct{}) error {
	const most = 8
	for kills := 0; ; kills++ {
		child := m.child("")
		if err := child.Start(); err != nil {
			return err
		}
		var life <-chan time.Time
		if kills < most {
			life = time.After(time.Duration(100+random.IntN(150)) * time.Millisecond)
		} else {
			close(enough)
		}
		select {
		case <-life:
			if err := kill(child); err != nil {
				return err
			}
		case <-clientsDone:
			if err := m.serves(); err != nil {
				return err
			}
			return terminate(child)
		}
	}
}

// child is a driver as a process of its own. With a name it is one of several
// controllers, which serves the socket of that name.
func (m *machine) child(name string) *exec.Cmd {
	child := exec.CommandContext(m.ctx, os.Args[0])
	child.Env = append(os.Environ(), childEnv+"="+m.dir, childNameEnv+"="+name)
	child.Stderr = &strings.Builder{}
	return child
}

// serves returns when the driver does: a process that has just been started would die of the signal that ends it in order.
func (m *machine) serves() error {
	ctx, cancel := context.WithTimeout(m.ctx, 2*time.Minute)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", m.path("csi.sock"))
		if err == nil {
			return conn.Close()
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the driver does not serve after two minutes: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func kill(child *exec.Cmd) error {
	if err := child.Process.Kill(); err != nil {
		return err
	}
	var exit *exec.ExitError
	if err := child.Wait(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		return fmt.Errorf("driver ended by itself: %w\n%s", err, child.Stderr)
	}
	return nil
}

func terminate(child *exec.Cmd) error {
	if err := child.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	if err := child.Wait(); err != nil {
		return fmt.Errorf("end of the driver: %w\n%s", err, child.Stderr)
	}
	return nil
}

// client is a CO that uses one volume after the other.
type client struct {
	*machine

	ctx        context.Context // fixture of one test
	controller csi.ControllerClient
	node       csi.NodeClient
	name       string
}

// until repeats a call while its outcome is unknown.
func (c *client) until(call func(o grpc.CallOption) error) error {
	for {
		err := call(grpc.WaitForReady(true))
		if status.Code(err) != codes.Unavailable || c.ctx.Err() != nil {
			return err
		}
	}
}

func (c *client) liveAndDie(round int) error {
	name := fmt.Sprintf("%s-%d", c.name, round)
	var id string
	err := c.until(func(o grpc.CallOption) error {
		created, err := c.controller.CreateVolume(c.ctx, &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}}, o)
		id = created.GetVolume().GetVolumeId()
		return err
	})
	if err != nil {
		return err
	}
	staging, target, inline := c.path(name+"-staging"), c.path(name+"-target"), c.path(name+"-inline")
	calls := []func(o grpc.CallOption) error{
		func(o grpc.CallOption) error {
			_, err := c.node.NodeStageVolume(c.ctx, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: mountCapability()}, o)
			return err
		},
		func(o grpc.CallOption) error {
			_, err := c.node.NodePublishVolume(c.ctx, &csi.NodePublishVolumeRequest{
				VolumeId: "csi-" + name, TargetPath: inline, VolumeCapability: mountCapability(),
				VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true"},
			}, o)
			return err
		},
		func(o grpc.CallOption) error {
			_, err := c.node.NodeUnpublishVolume(c.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}, o)
			return err
		},
		func(o grpc.CallOption) error {
			_, err := c.node.NodeUnpublishVolume(c.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "csi-" + name, TargetPath: inline}, o)
			return err
		},
		func(o grpc.CallOption) error {
			_, err := c.node.NodeUnstageVolume(c.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging}, o)
			return err
		},
		func(o grpc.CallOption) error {
			_, err := c.controller.DeleteVolume(c.ctx, &csi.DeleteVolumeRequest{VolumeId: id}, o)
			return err
		},
	}
	for i, call := range calls {
		if err := c.until(call); err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
	}
	return nil
}
