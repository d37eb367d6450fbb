package controller

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// narrowDriver stands so many calls beside each other, and refuses all others.
type narrowDriver struct {
	csi.ControllerClient

	stands, running, refused atomic.Int64
}

// CreateVolume takes a second.
func (d *narrowDriver) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest, opts ...grpc.CallOption) (*csi.CreateVolumeResponse, error) {
	_, _ = d.ControllerClient.CreateVolume(ctx, request, opts...) // for the peer of the call
	defer d.running.Add(-1)
	if d.running.Add(1) > d.stands.Load() {
		d.refused.Add(1)
		return nil, status.Error(codes.Unavailable, "too many requests")
	}
	time.Sleep(time.Second)
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: request.GetName()}}, nil
}

// TestOverloadedDriver has 500 workers and a driver that stands 20 calls: it gets about as many, and all that it can serve, and more as soon
// as it stands them.
func TestOverloadedDriver(t *testing.T) {
	settings := rigSettings()
	settings.Workers = 500
	onRigWith(t, csitest.Options{}, settings, func(t *testing.T, r *rig) {
		driver := &narrowDriver{ControllerClient: r.cfg.Driver}
		driver.stands.Store(20)
		r.cfg.Driver = driver
		createAll := func() (took time.Duration) {
			began := time.Now()
			var work sync.WaitGroup
			for n := range settings.Workers {
				work.Go(func() {
					for {
						if _, err := r.callCreate(quiet(t), &csi.CreateVolumeRequest{Name: fmt.Sprintf("pvc-%d", n)}, nil); err == nil {
							return
						}
						time.Sleep(time.Second) // the queue would wait longer each time
					}
				})
			}
			work.Wait()
			return time.Since(began)
		}
		if took := createAll(); took > time.Minute {
			t.Errorf("500 volumes took %v, of which 20 are made in a second", took)
		}
		if n := r.State().CallLimit; n > 40 {
			t.Errorf("%d calls may run at a time, the driver stands 20", n)
		}
		before := driver.refused.Load()
		createAll()
		if n := driver.refused.Load() - before; n > 150 {
			t.Errorf("%d calls were refused for 500 volumes", n)
		}
		driver.stands.Store(1000)
		for range 5 {
			createAll()
		}
		if n := r.State().CallLimit; n < 60 {
			t.Errorf("%d calls may run at a time after 2500 answers of a driver that stands 1000", n)
		}
	})
}

// serialDriver serves one call after the other, in half a second each.
type serialDriver struct {
	csi.ControllerClient

	turn chan struct{}
}

// CreateVolume waits for its turn.
func (d *serialDriver) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest, opts ...grpc.CallOption) (*csi.CreateVolumeResponse, error) {
	_, _ = d.ControllerClient.CreateVolume(ctx, request, opts...) // for the peer of the call
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	time.Sleep(500 * time.Millisecond)
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: request.GetName()}}, nil
}

// TestSlowDriver has a driver that refuses nothing, and can serve 20 calls before their deadline: it gets fewer and fewer of 100 at a time. A
// copy, which takes long as such, changes nothing.
func TestSlowDriver(t *testing.T) {
	settings := rigSettings()
	settings.Workers = 50
	onRigWith(t, csitest.Options{}, settings, func(t *testing.T, r *rig) {
		driver := &serialDriver{ControllerClient: r.cfg.Driver, turn: make(chan struct{}, 1)}
		r.cfg.Driver = driver
		create := func(source *csi.VolumeContentSource) {
			_, _ = r.callCreate(quiet(t), &csi.CreateVolumeRequest{Name: "pvc", VolumeContentSource: source}, nil)
		}
		create(nil)
		driver.turn <- struct{}{}
		time.AfterFunc(9*time.Second, func() { <-driver.turn })
		create(&csi.VolumeContentSource{})
		if n := r.State().CallLimit; n != 100 {
			t.Errorf("%d calls may run at a time after a copy that took its time, want 100", n)
		}
		var work sync.WaitGroup
		for range 100 {
			work.Go(func() {
				for range 10 {
					create(nil)
				}
			})
		}
		work.Wait()
		if n := r.State().CallLimit; n > 20 {
			t.Errorf("%d calls may run at a time, of which 20 are served in time", n)
		}
	})
}

// TestFullPool has a pool that is full: claims fail after a while, and the deletions that make room for them do not wait for these.
func TestFullPool(t *testing.T) {
	settings := rigSettings()
	settings.Workers = 100
	onRigWith(t, csitest.Options{}, settings, func(t *testing.T, r *rig) {
		r.driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.ResourceExhausted, Delay: 8 * time.Second})
		var creations, deletions sync.WaitGroup
		for n := range settings.Workers {
			creations.Go(func() {
				for range 30 {
					if _, err := r.callCreate(quiet(t), &csi.CreateVolumeRequest{Name: fmt.Sprintf("pvc-%d", n)}, nil); status.Code(err) == codes.OK {
						t.Errorf("a full pool made a volume")
					}
				}
			})
		}
		time.Sleep(3 * time.Minute)
		began := time.Now()
		for n := range 200 {
			deletions.Go(func() {
				if err := r.callDelete(quiet(t), fmt.Sprintf("vol-%d", n), nil); err != nil {
					t.Error(err)
				}
			})
		}
		deletions.Wait()
		if took := time.Since(began); took > time.Second {
			t.Errorf("200 deletions took %v beside creations in a full pool", took)
		}
		creations.Wait()
	})
}
