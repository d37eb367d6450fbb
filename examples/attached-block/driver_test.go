package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"sync"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/drivertest"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
	"github.com/longshore-csi/longshore/examples/attached-block/array"
)

// credentials are what the driver's Secrets have.
func credentials() map[string]string {
	return map[string]string{userSecret: "csi", passwordSecret: "swordfish"}
}

// otherNode is a host of the array on which no driver runs.
const otherNode = "other-node"

// rig has the arrays, which outlive the drivers, by directory.
type rig struct {
	t *testing.T
	// fake has plain files as devices and mounts in a table; otherwise the kernel makes both.
	fake bool

	mu     sync.Mutex
	arrays map[string]*machine
}

// machine is an array that serves, and the node beside it.
type machine struct {
	client      *array.Client
	rescan      func(context.Context, string) error
	mounter     mount.Mounter
	filesystems filesystem.Filesystems
}

func newRig(t *testing.T, fake bool) *rig {
	t.Helper()
	if !fake && os.Geteuid() != 0 {
		t.Skip("devices and mounts of the kernel need root")
	}
	return &rig{t: t, fake: fake, arrays: map[string]*machine{}}
}

// driver is a drivertest.New.
func (r *rig) driver(_ testing.TB, dir string) (driverkit.Options, driverkit.Driver, error) {
	o, d, err := r.disks(dir)
	if err != nil {
		return o, driverkit.Driver{}, err
	}
	return o, d.driver(), nil
}

// disks makes what a driver is made of.
func (r *rig) disks(dir string) (driverkit.Options, *disks, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.arrays[dir]
	if m == nil {
		var err error
		if m, err = r.start(dir); err != nil {
			return driverkit.Options{}, nil, err
		}
		r.arrays[dir] = m
	}
	o := newOptions()
	o.Topology = driverkit.Segments{zoneKey: "a", rackKey: "2"}
	o.Mounter, o.Filesystems = m.mounter, m.filesystems
	return o.Options, &disks{array: m.client, rescan: m.rescan}, nil
}

// start switches an array on, until the test ends.
func (r *rig) start(dir string) (*machine, error) {
	m := &machine{rescan: rescan, mounter: mount.Kernel{}, filesystems: filesystem.NewKernel()}
	if r.fake {
		mounts := &mount.Fake{}
		m.rescan = func(context.Context, string) error { return nil } // A file has its size at once.
		m.mounter, m.filesystems = mounts, &filesystem.Fake{Mounts: mounts}
	}
	const poolSize = 1 << 30
	a, err := array.Open(context.Background(), array.Config{
		Dir: dir, Hosts: []string{drivertest.NodeID, otherNode}, HostLimit: 3, Loop: !r.fake, Passwords: map[string]string{"csi": "swordfish"},
		Pools: []array.Pool{
			{Place: array.Place{Pool: "a1", Zone: "a", Rack: "1"}, Size: poolSize},
			{Place: array.Place{Pool: "a2", Zone: "a", Rack: "2"}, Size: poolSize},
			{Place: array.Place{Pool: "b1", Zone: "b", Rack: "1"}, Size: 2 * poolSize},
		},
	})
	if err != nil {
		return nil, err
	}
	server := httptest.NewServer(a)
	r.t.Cleanup(server.Close)
	m.client = &array.Client{Address: server.URL, User: "csi", Password: "swordfish"}
	if r.fake { // the walk loses requests and answers of the array, too
		m.client.HTTP.Transport = drivertest.Transport{}
	}
	return m, nil
}

// luns are what an array still has.
func (r *rig) luns(dir string) (left []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, kind := range []array.Kind{array.Volumes, array.Snapshots} {
		all, err := r.arrays[dir].client.List(context.Background(), kind, "")
		if err != nil {
			return nil, err
		}
		for _, l := range all {
			left = append(left, fmt.Sprintf("%s %q of the array", kind, l.Name))
		}
	}
	return left, nil
}

// TestKernel runs everything with devices and file systems of the kernel.
func TestKernel(t *testing.T) {
	r := newRig(t, false)
	drivertest.Run(t, r.driver, drivertest.Secrets(credentials()), sanityOnce(r), drivertest.OtherNode(otherNode))
}

// TestFake is TestKernel without root.
func TestFake(t *testing.T) {
	r := newRig(t, true)
	drivertest.Run(t, r.driver, drivertest.Secrets(credentials()), sanityOnce(r), drivertest.OtherNode(otherNode), drivertest.Leaks(r.luns))
}

// TestKernelBlock and TestFakeBlock use raw block volumes.
func TestKernelBlock(t *testing.T) {
	drivertest.Run(t, newRig(t, false).driver, drivertest.Block(), drivertest.NoSanity(), drivertest.Parameters(map[string]string{poolParameter: "a2"}))
}

func TestFakeBlock(t *testing.T) {
	drivertest.Run(t, newRig(t, true).driver, drivertest.Block(), drivertest.NoSanity(), drivertest.Parameters(map[string]string{poolParameter: "a2"}))
}

// sanityOnce leaves csi-sanity to one of the tests: the one with the kernel, as root.
func sanityOnce(r *rig) drivertest.Setting {
	if r.fake == (os.Geteuid() == 0) {
		return drivertest.NoSanity()
	}
	return drivertest.Secrets(credentials())
}
