package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/drivertest"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

// parameters are those of a StorageClass.
func parameters() map[string]string {
	return map[string]string{serverKey: "server.example.com", shareKey: "/export"}
}

// binds takes the place of mount.nfs: the server's directories are below root on this machine.
type binds struct {
	root   string
	mounts mount.Mounter
	// flags are those of the last mount.
	flags []string
}

func (b *binds) mount(ctx context.Context, source, target string, flags []string) error {
	b.flags = flags
	path, ok := strings.CutPrefix(source, parameters()[serverKey]+":")
	if !ok {
		return errors.New("there is no such server")
	}
	known := slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return !slices.Contains(mount.Flags(), f) })
	return b.mounts.Bind(ctx, filepath.Join(b.root, path), target, mount.Options{Flags: known})
}

// newShares returns a driver whose server has an export below dir.
func newShares(dir string, mounts mount.Mounter) (*shares, error) {
	server := filepath.Join(dir, "server")
	b := &shares{exports: filepath.Join(dir, "exports"), mounts: mounts, mounter: &binds{root: server, mounts: mounts}}
	return b, os.MkdirAll(filepath.Join(server, parameters()[shareKey]), 0o700)
}

// TestDriver runs all tests with bind mounts of the kernel.
func TestDriver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("bind mounts need root")
	}
	drivertest.Run(t, func(_ testing.TB, dir string) (driverkit.Options, driverkit.Driver, error) {
		s, err := newShares(dir, mount.Kernel{})
		return newOptions().Options, driverkit.Driver{Provisioner: s, Stager: s}, err
	}, drivertest.Parameters(parameters()))
}

// fakeShares have directories that the fake does not show at the export: the server's own directory is what is mounted.
func fakeShares(t *testing.T) *shares {
	t.Helper()
	b, err := newShares(t.TempDir(), &mount.Fake{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestStage mounts with the flags of the request, once.
func TestStage(t *testing.T) {
	s := fakeShares(t)
	if err := os.Mkdir(filepath.Join(s.mounter.(*binds).root, "export", "by-hand"), 0o700); err != nil {
		t.Fatal(err)
	}
	context := parameters()
	context[directoryKey] = "by-hand"
	req := &driverkit.StageRequest{
		ID: "any", Path: t.TempDir(), ReadOnly: true, VolumeContext: context,
		Capability: driverkit.Capability{Mode: driverkit.MultiNodeMultiWriter, MountFlags: []string{"nfsvers=4.2", "noatime"}},
	}
	for range 2 {
		staged, err := s.Stage(t.Context(), req)
		if err != nil || !staged.Mounted {
			t.Fatalf("stage: %+v, %v", staged, err)
		}
	}
	if got, want := s.mounter.(*binds).flags, []string{"ro", "nfsvers=4.2", "noatime"}; !slices.Equal(got, want) {
		t.Errorf("mount flags %q, want %q", got, want)
	}
	if calls := s.mounts.(*mount.Fake).Calls(); len(calls) != 1 {
		t.Errorf("mounts: %q, want one", calls)
	}
	req.Capability.MountFlags = []string{"vers=3,suid"}
	if _, err := s.Stage(t.Context(), req); !errors.Is(err, driverkit.ErrInvalid) {
		t.Errorf("stage with two flags in one: %v, want driverkit.ErrInvalid", err)
	}
}

// TestParameters refuses exports that cannot be meant.
func TestParameters(t *testing.T) {
	s := fakeShares(t)
	for name, test := range map[string]struct{ reason, key, value string }{
		"NoServer":     {"a server is required", serverKey, ""},
		"PathInServer": {"it would be another path", serverKey, "a:/b"},
		"Relative":     {"a share is absolute", shareKey, "export"},
		"Parent":       {"a share is a clean path", shareKey, "/export/../etc"},
		"Separator":    {"ids are split there", shareKey, "/a#b"},
		"Long":         {"an id has a limit", shareKey, "/" + strings.Repeat("a", longestExport)},
		"Unknown":      {"it may be misspelt", "sever", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := parameters()
			changed[test.key] = test.value
			if _, err := s.Create(t.Context(), &driverkit.CreateRequest{Name: "pvc-1", Parameters: changed}); !errors.Is(err, driverkit.ErrInvalid) {
				t.Errorf("%s: %v, want driverkit.ErrInvalid", test.reason, err)
			}
		})
	}
}

// TestForeignIDs deletes by ids that lead out of the export: nothing happens.
func TestForeignIDs(t *testing.T) {
	s := fakeShares(t)
	made := strings.Repeat("0", 32) + "-1"
	for _, id := range []string{
		"", "x", "server.example.com#/../etc#" + made, "server.example.com#export#" + made, "#/export#" + made, "server.example.com#/export#../" + made,
		"server.example.com#/export#", "server.example.com#/export#.", "server.example.com#/export#..", "server.example.com#/export#by-hand",
	} {
		if err := s.Delete(t.Context(), &driverkit.DeleteRequest{ID: id}); !errors.Is(err, driverkit.ErrNotFound) {
			t.Errorf("delete %q: %v, want driverkit.ErrNotFound", id, err)
		}
	}
	if calls := s.mounts.(*mount.Fake).Calls(); len(calls) != 0 {
		t.Errorf("mounts: %q, want none", calls)
	}
}
