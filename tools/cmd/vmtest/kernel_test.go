package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPackageOf(t *testing.T) {
	tests := map[string]struct {
		reason, shown, name, version string
	}{
		"Meta": {
			reason:  "the package that one asks for depends on that of the newest kernel",
			shown:   "Package: linux-image-cloud-amd64\nVersion: 6.1.192-2\nDepends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-3)\n",
			name:    "linux-image-6.1.0-56-cloud-amd64",
			version: "6.1.192-3",
		},
		"Kernel": {
			reason:  "a kernel depends on other things",
			shown:   "Package: linux-image-6.1.0-56-cloud-amd64\nVersion: 6.1.192-2\nDepends: kmod, linux-base (>= 4.3~), initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool\n",
			name:    "asked-for",
			version: "6.1.192-2",
		},
		"Neither": {reason: "apt-cache shows nothing", shown: "\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, version, err := packageOf("asked-for", tc.shown)
			if got != tc.name || version != tc.version || (err != nil) != (tc.name == "") {
				t.Errorf("%s: got %q, %q, %v", tc.reason, got, version, err)
			}
		})
	}
}

func TestModuleName(t *testing.T) {
	for path, want := range map[string]string{
		"kernel/fs/xfs/xfs.ko": "xfs", "kernel/fs/quota/quota-v2.ko.xz": "quota_v2", "a/b.ko.zst": "b",
		"kernel/fs/xfs": "", "a/b.ko.sig": "", "a.ko/b": "", "a.ko.d/b": "",
	} {
		if got := moduleName(path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

func TestNeedsOf(t *testing.T) {
	names, useful := needsOf([]byte("license=GPL\x00softdep=pre: crc32c zstd-x post: later\x00depends=quota-tree,libcrc32c\x00depends=\x00name=xfs\x00"))
	if want := []string{"quota_tree", "libcrc32c"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
	if want := []string{"crc32c", "zstd_x"}; !slices.Equal(useful, want) {
		t.Errorf("useful: got %q, want %q", useful, want)
	}
}

func TestInOrder(t *testing.T) {
	k := kernel{builtin: map[string]bool{"ext4": true, "crc": true}}
	needs := func(name string) ([]string, error) {
		all := map[string][]string{"xfs": {"lib", "crc"}, "quota": {"tree", "lib"}, "lib": {"crc"}, "tree": nil}
		list, ok := all[name]
		if !ok {
			return nil, errors.New("is not there")
		}
		return list, nil
	}
	got, err := k.inOrder([]string{"ext4", "xfs", "quota", "xfs"}, needs)
	if want := []string{"lib", "xfs", "tree", "quota"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if _, err := k.inOrder([]string{"nfs"}, needs); err == nil || !strings.Contains(err.Error(), "nfs") {
		t.Errorf("got %v for a module that is not there", err)
	}
}

// TestOpenKernel looks into a package as it is unpacked.
func TestOpenKernel(t *testing.T) {
	dir := t.TempDir()
	for name, contents := range map[string]string{
		"boot/vmlinuz-1": "", "boot/config-1": "",
		"lib/modules/1/modules.builtin":         "kernel/fs/ext4/ext4.ko\nkernel/crypto/crc32c-intel.ko\n",
		"lib/modules/1/kernel/fs/xfs/xfs.ko":    "module",
		"lib/modules/1/kernel/fs/quota-v2.ko":   "module",
		"lib/modules/1/kernel/fs/Documentation": "",
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(contents), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	k, err := openKernel(dir)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Base(k.image) != "vmlinuz-1" || len(k.modules) != 2 || !k.builtin["ext4"] || !k.builtin["crc32c_intel"] {
		t.Errorf("got %+v", k)
	}
	if data, err := k.readModule(t.Context(), "quota_v2"); err != nil || string(data) != "module" {
		t.Errorf("got %q, %v", data, err)
	}
	if _, err := k.readModule(t.Context(), "ext4"); err == nil {
		t.Error("no error for a module that is not there")
	}
	if err := os.WriteFile(filepath.Join(dir, "boot/vmlinuz-2"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openKernel(dir); err == nil {
		t.Error("no error for two kernels")
	}
}
