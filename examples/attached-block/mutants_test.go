package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/drivertest"
)

// mutant is the driver with a mistake in one part, and what the tests print about it.
type mutant struct {
	change func(d *disks, driver *driverkit.Driver)
	prints string
}

// provisioner has functions in the place of those of a driver.
type provisioner struct {
	driverkit.Provisioner

	create func(context.Context, *driverkit.CreateRequest) (*driverkit.Volume, error)
	delete func(context.Context, *driverkit.DeleteRequest) error
	get    func(context.Context, *driverkit.GetRequest) (*driverkit.Volume, error)
}

func (p provisioner) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	if p.create != nil {
		return p.create(ctx, req)
	}
	return p.Provisioner.Create(ctx, req)
}

func (p provisioner) Delete(ctx context.Context, req *driverkit.DeleteRequest) error {
	if p.delete != nil {
		return p.delete(ctx, req)
	}
	return p.Provisioner.Delete(ctx, req)
}

func (p provisioner) Get(ctx context.Context, req *driverkit.GetRequest) (*driverkit.Volume, error) {
	if p.get != nil {
		return p.get(ctx, req)
	}
	return p.Provisioner.Get(ctx, req)
}

// keepsAttachments does not detach.
type keepsAttachments struct{ driverkit.Attacher }

func (keepsAttachments) Detach(context.Context, *driverkit.DetachRequest) error { return nil }

// keepsSnapshots does not delete snapshots.
type keepsSnapshots struct{ driverkit.Snapshotter }

func (keepsSnapshots) DeleteSnapshot(context.Context, *driverkit.DeleteSnapshotRequest) error {
	return nil
}

func mutants() map[string]mutant {
	return map[string]mutant{
		"IgnoresNames": {func(d *disks, driver *driverkit.Driver) {
			made := 0
			driver.Provisioner = provisioner{Provisioner: d, create: func(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
				made++
				other := *req
				other.Name += strings.Repeat("x", made)
				return d.Create(ctx, &other)
			}}
		}, "create the same name again"},
		"KeepsVolumes": {func(d *disks, driver *driverkit.Driver) {
			driver.Provisioner = provisioner{Provisioner: d, delete: func(context.Context, *driverkit.DeleteRequest) error { return nil }}
		}, "after its deletion"},
		"HidesNotFound": {func(d *disks, driver *driverkit.Driver) {
			driver.Provisioner = provisioner{Provisioner: d, get: func(ctx context.Context, req *driverkit.GetRequest) (*driverkit.Volume, error) {
				v, err := d.Get(ctx, req)
				if err != nil {
					return nil, errors.New("404")
				}
				return v, nil
			}}
		}, "want driverkit.NotFound"},
		"IgnoresSources": {func(d *disks, driver *driverkit.Driver) {
			driver.Provisioner = provisioner{Provisioner: d, create: func(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
				other := *req
				other.Source = nil
				return d.Create(ctx, &other)
			}}
		}, "a volume restored from a snapshot has"},
		"IgnoresAfter": {func(d *disks, driver *driverkit.Driver) {
			driver.List = func(ctx context.Context, req *driverkit.ListRequest) (*driverkit.Page[*driverkit.Volume], error) {
				return d.List(ctx, &driverkit.ListRequest{Limit: req.Limit})
			}
		}, "in pages of one"},
		"KeepsSize": {func(_ *disks, driver *driverkit.Driver) {
			driver.Expand = func(_ context.Context, req *driverkit.ExpandRequest) (*driverkit.Expanded, error) {
				return &driverkit.Expanded{Size: req.Size.Required, OnNode: true}, nil
			}
		}, "after its expansion"},
		"KeepsAttachments": {func(d *disks, driver *driverkit.Driver) { driver.Attacher = keepsAttachments{d} }, "when it is detached"},
		"KeepsSnapshots":   {func(d *disks, driver *driverkit.Driver) { driver.Snapshotter = keepsSnapshots{d} }, "get snapshot"},
	}
}

// mutantEnv is set in the processes of TestMutants, and names their mutant.
const mutantEnv = "ATTACHED_BLOCK_MUTANT"

// TestMutants has the tests find mistakes that a vendor can make when he changes this driver: each runs in a process of its own, must fail, and print why.
func TestMutants(t *testing.T) {
	if name := os.Getenv(mutantEnv); name != "" {
		r := newRig(t, true)
		drivertest.Run(t, func(_ testing.TB, dir string) (driverkit.Options, driverkit.Driver, error) {
			o, d, err := r.disks(dir)
			if err != nil {
				return o, driverkit.Driver{}, err
			}
			driver := d.driver()
			mutants()[name].change(d, &driver)
			return o, driver, nil
		}, drivertest.Secrets(credentials()), drivertest.NoSanity(), drivertest.OtherNode(otherNode), drivertest.Leaks(r.luns))
		return
	}
	for name, m := range mutants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMutants$/^(Contract|Contents)$", "-test.failfast")
			cmd.Env = append(os.Environ(), mutantEnv+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), m.prints) {
				t.Errorf("ended with %v; want a failure that prints %q:\n%s", err, m.prints, out)
			}
		})
	}
}
