package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/drivertest"
)

// TestDriver runs all tests on a btrfs of their own.
func TestDriver(t *testing.T) {
	root := mountBtrfs(t)
	storage := func(dir string) string { return filepath.Join(root, driverkit.IDFromName(dir)) }
	drivertest.Run(t, func(_ testing.TB, dir string) (driverkit.Options, driverkit.Driver, error) {
		o := newOptions()
		o.Topology = driverkit.Segments{nodeKey: "a"}
		s, err := openStore(storage(dir), o.Topology)
		if err != nil {
			return o.Options, driverkit.Driver{}, err
		}
		return o.Options, s.driver(), nil
	}, drivertest.Inline(map[string]string{sizeAttribute: "2097152"}), drivertest.Leaks(func(dir string) ([]string, error) {
		return filepath.Glob(filepath.Join(storage(dir), removing, "*"))
	}))
}

// TestQuota: a volume takes no more than its size, and an expanded one more.
func TestQuota(t *testing.T) {
	s, err := openStore(mountBtrfs(t), driverkit.Segments{nodeKey: "a"})
	if err != nil {
		t.Fatal(err)
	}
	v, err := s.Create(t.Context(), &driverkit.CreateRequest{Name: "pvc-1", Size: driverkit.Range{Required: 8 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	write := func(megabytes int) error {
		path := filepath.Join(s.data(volumes, v.ID), fmt.Sprint(megabytes))
		return exec.CommandContext(t.Context(), "dd", "if=/dev/urandom", "of="+path, "bs=1M", "count="+fmt.Sprint(megabytes), "conv=fsync").Run()
	}
	if err := write(16); err == nil {
		t.Error("16 MiB fit into a volume of 8 MiB")
	}
	_, err = s.ExpandOnNode(t.Context(), &driverkit.NodeExpandRequest{ID: v.ID, Size: driverkit.Range{Required: 64 << 20}})
	if err := errors.Join(err, write(20)); err != nil {
		t.Errorf("20 MiB after an expansion to 64 MiB: %v", err)
	}
	usage, err := s.Usage(t.Context(), &driverkit.UsageRequest{ID: v.ID})
	if err != nil || usage.Bytes.Total != 64<<20 || usage.Bytes.Used < 20<<20 {
		t.Errorf("usage: %+v, %v", usage, err)
	}
}

// mountBtrfs mounts a btrfs with quotas until the test ends.
func mountBtrfs(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
		t.Skipf("`make test` installs it: %v", err)
	}
	image, root := filepath.Join(t.TempDir(), "image"), t.TempDir()
	for _, args := range [][]string{{"truncate", "-s", "4G", image}, {"mkfs.btrfs", "-q", image}, {"mount", "-o", "loop", image, root}, {"btrfs", "quota", "enable", root}} {
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		if strings.Contains(string(out), "unknown filesystem type") {
			t.Skipf("this kernel has no btrfs: %s", out)
		}
		if err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
		if args[0] == "mount" {
			t.Cleanup(func() {
				if out, err := exec.CommandContext(context.Background(), "umount", root).CombinedOutput(); err != nil {
					t.Errorf("umount: %v: %s", err, out)
				}
			})
		}
	}
	return root
}
