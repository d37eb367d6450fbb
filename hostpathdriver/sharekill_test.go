package hostpathdriver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikittest/seeds"
)

// TestKillOneOfTwo runs two controllers as processes on one state directory,
// and kills one of them with SIGKILL in the middle of calls, several times.
// The other one goes on: the killed one is started again only after more
// volumes have lived and died. Clients ask now this one, now that one.
func TestKillOneOfTwo(t *testing.T) { seeds.Each(t, killOneOfTwo) }

func killOneOfTwo(t *testing.T, seed uint64) {
	m := newMachine(t)
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	p := &pairOfChildren{machine: m, ctx: ctx, steps: make(chan struct{})}
	for i, name := range []string{"a", "b"} {
		fastRetry := backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1.5, MaxDelay: 20 * time.Millisecond}
		conn, err := grpc.NewClient("unix://"+m.path(name+".sock"), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: fastRetry, MinConnectTimeout: time.Minute}))
		m.must(nil, err)
		defer conn.Close() // test
		p.clients[i] = csi.NewControllerClient(conn)
		p.children[i] = m.child(name)
		m.must(nil, p.children[i].Start())
		_, err = csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
		m.must(nil, err)
	}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)+1))
			for round := 0; ; round++ {
				if err := p.life(r, fmt.Sprintf("client-%d-%d", i, round)); err != nil {
					t.Errorf("client %d, round %d: %v", i, round, err)
					cancel()
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	err := p.killInTurns(rand.New(rand.NewPCG(seed, 0)))
	close(stop)
	clients.Wait()
	m.must(nil, err)
	for i, c := range p.clients {
		left, err := c.GetCapacity(ctx, &csi.GetCapacityRequest{}, grpc.WaitForReady(true))
		if err != nil || left.GetAvailableCapacity() != 1<<40 {
			t.Errorf("left in the pool: %v, %v, want %d", left, err, int64(1)<<40)
		}
		m.must(nil, terminate(p.children[i]))
	}
	m.checkClean()
}

// pairOfChildren are two controllers as processes of their own.
type pairOfChildren struct {
	*machine

	ctx      context.Context // fixture of one test
	children [2]*exec.Cmd
	clients  [2]csi.ControllerClient
	// steps gets an entry for each call that was answered while somebody waits
	// for one.
	steps chan struct{}
}

// wait returns when n more calls have been answered.
func (p *pairOfChildren) wait(n int) error {
	for range n {
		select {
		case <-p.steps:
		case <-p.ctx.Done():
			return p.ctx.Err()
		}
	}
	return nil
}

func (p *pairOfChildren) killInTurns(r *rand.Rand) error {
	const kills = 8
	for k := range kills {
		if err := p.wait(5 + r.IntN(30)); err != nil {
			return err
		}
		i := k % 2
		if err := kill(p.children[i]); err != nil {
			return err
		}
		if err := p.wait(20); err != nil {
			return fmt.Errorf("while only one controller is there: %w", err)
		}
		p.children[i] = p.child([]string{"a", "b"}[i])
		if err := p.children[i].Start(); err != nil {
			return err
		}
	}
	return nil
}

// ask makes a call until its outcome is known, each time at the other
// controller.
func (p *pairOfChildren) ask(r *rand.Rand, call func(c csi.ControllerClient) error) error {
	for i := r.IntN(2); ; i = 1 - i {
		err := call(p.clients[i])
		if status.Code(err) == codes.Unavailable && p.ctx.Err() == nil {
			continue
		}
		select {
		case p.steps <- struct{}{}:
		default:
		}
		return err
	}
}

// life makes every call twice.
func (p *pairOfChildren) life(r *rand.Rand, name string) error {
	var id string
	calls := []func(c csi.ControllerClient) error{
		func(c csi.ControllerClient) error {
			created, err := c.CreateVolume(p.ctx, &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}})
			if err != nil {
				return err
			}
			before := id
			if id = created.GetVolume().GetVolumeId(); before != "" && before != id {
				return fmt.Errorf("volume %s, then volume %s", before, id)
			}
			return nil
		},
		func(c csi.ControllerClient) error {
			_, err := c.ControllerPublishVolume(p.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: "n1", VolumeCapability: mountCapability()})
			return err
		},
		func(c csi.ControllerClient) error {
			_, err := c.ControllerUnpublishVolume(p.ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "n1"})
			return err
		},
		func(c csi.ControllerClient) error {
			_, err := c.DeleteVolume(p.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
			return err
		},
	}
	for i, call := range calls {
		for range 2 {
			if err := p.ask(r, call); err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
		}
	}
	return nil
}
