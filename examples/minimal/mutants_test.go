package main

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/drivertest"
)

// The mutants are the driver with one mistake each.
type (
	randomIDs       struct{ *memory }
	mountsTwice     struct{ *memory }
	tooSmall        struct{ *memory }
	findsEverything struct{ *memory }
)

func (m randomIDs) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	other := *req
	other.Name += rand.Text()
	return m.memory.Create(ctx, &other)
}

// Create mounts what exists again, on top.
func (m mountsTwice) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	path := m.path(driverkit.IDFromName(req.Name))
	if err := errors.Join(os.MkdirAll(path, 0o700), unix.Mount(driverName, path, "tmpfs", 0, "size=4m,mode=0777")); err != nil {
		return nil, err
	}
	return m.memory.Create(ctx, req)
}

func (m tooSmall) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	other := *req
	other.Size.Required /= 2
	return m.memory.Create(ctx, &other)
}

func (m findsEverything) Get(_ context.Context, req *driverkit.GetRequest) (*driverkit.Volume, error) {
	return &driverkit.Volume{ID: req.ID}, nil
}

// mutant is one of them, and what the tests print about it.
type mutant struct {
	of     func(*memory) driverkit.Provisioner
	prints string
}

func mutants() map[string]mutant {
	return map[string]mutant{
		"RandomIDs":       {func(m *memory) driverkit.Provisioner { return randomIDs{m} }, "create the same name again"},
		"MountsTwice":     {func(m *memory) driverkit.Provisioner { return mountsTwice{m} }, "after its deletion"},
		"TooSmall":        {func(m *memory) driverkit.Provisioner { return tooSmall{m} }, "at least 4 MiB"},
		"FindsEverything": {func(m *memory) driverkit.Provisioner { return findsEverything{m} }, "want driverkit.NotFound"},
	}
}

// mutantEnv is set in the processes of TestMutants, and names their mutant.
const mutantEnv = "MINIMAL_MUTANT"

// TestMutants has the tests find mistakes that an author can make when he changes this driver: each runs in a process of its own, must fail, and print why.
func TestMutants(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a tmpfs needs root")
	}
	if name := os.Getenv(mutantEnv); name != "" {
		drivertest.Run(t, func(t testing.TB, dir string) (driverkit.Options, driverkit.Driver, error) {
			o, d, err := newDriver(t, dir)
			if m, ok := d.Provisioner.(*memory); ok {
				d.Provisioner = mutants()[name].of(m)
			}
			return o, d, err
		}, drivertest.Volatile(), drivertest.NoSanity())
		return
	}
	for name, m := range mutants() {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMutants$/^Contract$", "-test.failfast")
			cmd.Env = append(os.Environ(), mutantEnv+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), m.prints) {
				t.Errorf("ended with %v; want a failure that prints %q:\n%s", err, m.prints, out)
			}
		})
	}
}
