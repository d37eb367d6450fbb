package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/outcome"
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
	const workers = 500
	synctest.Test(t, func(t *testing.T) {
		driver := &narrowDriver{ControllerClient: csi.NewControllerClient(csitest.New(csitest.Options{}).Conn())}
		driver.stands.Store(20)
		b := New(driver, 2*workers, 10*time.Second)
		createAll := func() (took time.Duration) {
			began := time.Now()
			var work sync.WaitGroup
			for n := range workers {
				work.Go(func() {
					for {
						if _, err := b.Create(t.Context(), &csi.CreateVolumeRequest{Name: fmt.Sprintf("pvc-%d", n)}, nil); err == nil {
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
		if n := b.Bound(); n > 40 {
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
		if n := b.Bound(); n < 60 {
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
	synctest.Test(t, func(t *testing.T) {
		driver := &serialDriver{ControllerClient: csi.NewControllerClient(csitest.New(csitest.Options{}).Conn()), turn: make(chan struct{}, 1)}
		b := New(driver, 100, 10*time.Second)
		create := func(source *csi.VolumeContentSource) {
			_, _ = b.Create(t.Context(), &csi.CreateVolumeRequest{Name: "pvc", VolumeContentSource: source}, nil)
		}
		create(nil)
		driver.turn <- struct{}{}
		time.AfterFunc(9*time.Second, func() { <-driver.turn })
		create(&csi.VolumeContentSource{})
		if n := b.Bound(); n != 100 {
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
		if n := b.Bound(); n > 20 {
			t.Errorf("%d calls may run at a time, of which 20 are served in time", n)
		}
	})
}

// TestFullPool has a pool that is full: claims fail after a while, and the deletions that make room for them do not wait for these.
func TestFullPool(t *testing.T) {
	const workers = 100
	synctest.Test(t, func(t *testing.T) {
		driver := csitest.New(csitest.Options{})
		b := New(csi.NewControllerClient(driver.Conn()), 2*workers, 10*time.Second)
		driver.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.ResourceExhausted, Delay: 8 * time.Second})
		var creations, deletions sync.WaitGroup
		for n := range workers {
			creations.Go(func() {
				for range 30 {
					if _, err := b.Create(t.Context(), &csi.CreateVolumeRequest{Name: fmt.Sprintf("pvc-%d", n)}, nil); status.Code(err) == codes.OK {
						t.Errorf("a full pool made a volume")
					}
				}
			})
		}
		time.Sleep(3 * time.Minute)
		began := time.Now()
		for n := range 200 {
			deletions.Go(func() {
				if err := b.Delete(t.Context(), fmt.Sprintf("vol-%d", n), nil); err != nil {
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

// TestWithSecretsLosesNothing fills every field that CreateVolumeRequest has, also those that a later
// version of the specification may add: none may get lost on the way to the driver.
func TestWithSecretsLosesNothing(t *testing.T) {
	request := &csi.CreateVolumeRequest{
		Name:                      "n",
		CapacityRange:             &csi.CapacityRange{RequiredBytes: 1},
		VolumeCapabilities:        []*csi.VolumeCapability{{}},
		Parameters:                map[string]string{"a": "b"},
		Secrets:                   map[string]string{"replaced": "by the call"},
		VolumeContentSource:       &csi.VolumeContentSource{},
		AccessibilityRequirements: &csi.TopologyRequirement{},
		MutableParameters:         map[string]string{"c": "d"},
	}
	fields := request.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if field := fields.Get(i); !request.ProtoReflect().Has(field) {
			t.Errorf("this test does not know the field %s of CreateVolumeRequest", field.Name())
		}
	}
	got := WithSecrets(request, map[string]string{"user": "ann"})
	request.Secrets = map[string]string{"user": "ann"}
	if diff := cmp.Diff(request, got, protocmp.Transform()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

func TestError(t *testing.T) {
	err := error(Error{What: `create volume "v"`, Err: status.Error(codes.Aborted, "two\nlines")})
	if got, want := err.Error(), `create volume "v": Aborted: two; lines`; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	if got := outcome.Of(err); got != outcome.Uncertain {
		t.Errorf("class %s, want %s: the wrapping must not hide the status", got, outcome.Uncertain)
	}
	if got := Describe(errors.Join(errors.New("one"), errors.New("two"))); got != "one two" {
		t.Errorf("an error of two lines is described as %q", got)
	}
}

// largeVolumes answers what GetCapacity is to answer.
type largeVolumes struct {
	csi.ControllerClient

	answer *csi.GetCapacityResponse
}

// GetCapacity implements csi.ControllerClient.
func (d largeVolumes) GetCapacity(context.Context, *csi.GetCapacityRequest, ...grpc.CallOption) (*csi.GetCapacityResponse, error) {
	return d.answer, nil
}

// TestCapacity compares what drivers answer with what is asked for.
func TestCapacity(t *testing.T) {
	cases := map[string]struct {
		reason string
		answer *csi.GetCapacityResponse
		want   int64
	}{
		"Available":      {reason: "The available capacity, if there is no maximum volume size.", answer: &csi.GetCapacityResponse{AvailableCapacity: 7}, want: 7},
		"Maximum":        {reason: "The maximum volume size counts, if the driver reports it.", answer: &csi.GetCapacityResponse{AvailableCapacity: 7, MaximumVolumeSize: wrapperspb.Int64(3)}, want: 3},
		"MaximumNothing": {reason: "Also if there is none.", answer: &csi.GetCapacityResponse{AvailableCapacity: 7, MaximumVolumeSize: wrapperspb.Int64(0)}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b := New(largeVolumes{answer: tc.answer}, 1, time.Second)
			if got, err := b.Capacity(t.Context(), &csi.GetCapacityRequest{}); err != nil || got != tc.want {
				t.Errorf("%s\ngot %d, %v, want %d", tc.reason, got, err, tc.want)
			}
		})
	}
}

// TestUnsentRequestCountedAsUncertain calls a driver that nobody serves: the request was not sent, so that there is no volume,
// and nothing to find out. It calls one that is served and fails, too, for whom the opposite holds.
func TestUnsentRequestCountedAsUncertain(t *testing.T) {
	cases := map[string]struct {
		reason string
		serve  func(t *testing.T) string
		ended  bool // the process ends before the call
		unsent bool
	}{
		"Ended": {
			reason: "A request that is not sent any more makes no volume.",
			serve:  func(t *testing.T) string { t.Helper(); return csitest.New(csitest.Options{}).Serve(t) }, ended: true, unsent: true,
		},
		"NobodyServes": {
			reason: "A request that cannot be sent makes no volume.",
			serve:  func(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "none.sock") }, unsent: true,
		},
		"NobodyAnswers": {
			reason: "A request may have been read before the connection ended.",
			serve:  servesNothing,
		},
		"Fails": {
			reason: "A request was sent that was answered.",
			serve: func(t *testing.T) string {
				t.Helper()
				d := csitest.New(csitest.Options{})
				d.Inject(csitest.Fault{Method: "CreateVolume", Code: codes.Unavailable})
				return d.Serve(t)
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			conn, err := csiclient.Dial(tc.serve(t), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tc.ended {
				cancel()
			}
			_, err = New(csi.NewControllerClient(conn), 1, time.Minute).Create(ctx, &csi.CreateVolumeRequest{Name: "pvc-u1"}, nil)
			var call Error
			if !errors.As(err, &call) || call.Unsent != tc.unsent {
				t.Errorf("%s\nerror %v, unsent: %v, want %v", tc.reason, err, call.Unsent, tc.unsent)
			}
		})
	}
}

// servesNothing returns the address of a server that ends each connection once it has read something from it.
func servesNothing(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "csi.sock")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) // an empty frame of settings, which makes the connection work
			_, err = io.ReadFull(conn, make([]byte, 24))         // the preface of HTTP/2
			for frame := make([]byte, 9); err == nil && frame[3] != 1; {
				// The frame of type 1 begins the request.
				if _, err = io.ReadFull(conn, frame); err == nil {
					_, err = io.CopyN(io.Discard, conn, int64(frame[0])<<16+int64(frame[1])<<8+int64(frame[2]))
				}
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { listener.Close(); <-done })
	return path
}
