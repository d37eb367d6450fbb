package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// kernel is what is used of the package of a kernel.
type kernel struct {
	// image is what is booted.
	image string
	// modules are files by the names of modules.
	modules map[string]string
	// builtin are modules that are in the image.
	builtin map[string]bool
}

// unknownPackageError says that this machine's distribution is another one.
type unknownPackageError struct {
	name string
	why  error
}

func (u unknownPackageError) Error() string {
	return fmt.Sprintf("needs the package %s of Debian on amd64, as `apt-get update` knows it: %v", u.name, u.why)
}

// fetchKernel downloads a package, unless it is in the cache.
func fetchKernel(ctx context.Context, name string) (kernel, error) {
	shown, err := output(ctx, "apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return kernel{}, unknownPackageError{name: name, why: err}
	}
	name, version, err := packageOf(name, string(shown))
	if err != nil {
		return kernel{}, err
	}
	cache, err := os.UserCacheDir() // XDG_CACHE_HOME, or $HOME/.cache
	if err != nil {
		return kernel{}, err
	}
	dir := filepath.Join(cache, "longshore", "vmtest", name+"_"+version)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := download(ctx, name+"="+version, dir); err != nil {
			return kernel{}, fmt.Errorf("download the package %s %s: %w", name, version, err)
		}
	}
	return openKernel(dir)
}

// packageOf returns name and version of a kernel's package, given what apt-cache shows of it, or of one that depends on it.
func packageOf(name, shown string) (string, string, error) {
	if depends := regexp.MustCompile(`(?m)^Depends: .*?\b(linux-image-\S+) \(= ([^)]+)\)`).FindStringSubmatch(shown); depends != nil {
		return depends[1], depends[2], nil
	}
	version := regexp.MustCompile(`(?m)^Version: (.+)$`).FindStringSubmatch(shown)
	if version == nil {
		return "", "", fmt.Errorf("package %s has no version", name)
	}
	return name, version[1], nil
}

// download unpacks a package into dir, which there is only when it is complete.
func download(ctx context.Context, pkg, dir string) (err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	scratch, err := os.MkdirTemp(filepath.Dir(dir), ".download-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	get := exec.CommandContext(ctx, "apt-get", "-qq", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "download", pkg)
	get.Dir = scratch
	if out, err := get.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	debs, err := filepath.Glob(filepath.Join(scratch, "*.deb"))
	if err != nil || len(debs) != 1 {
		return errors.Join(err, fmt.Errorf("apt-get has made %q, want one package", debs))
	}
	root := filepath.Join(scratch, "root")
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "--extract", debs[0], root).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	// Whoever was faster has unpacked the same.
	if err := os.Rename(root, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// openKernel finds what is in a package.
func openKernel(dir string) (kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return kernel{}, errors.Join(err, fmt.Errorf("%s has the kernels %q, want one", dir, images))
	}
	k := kernel{image: images[0], modules: map[string]string{}, builtin: map[string]bool{}}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch name := moduleName(path); {
		case err != nil:
			return err
		case entry.Name() == "modules.builtin":
			return k.readBuiltin(path)
		case name != "":
			k.modules[name] = path
		}
		return nil
	})
	return k, err
}

func (k kernel) readBuiltin(path string) error {
	data, err := os.ReadFile(path)
	for line := range strings.Lines(string(data)) {
		k.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	return err
}

// moduleName returns the name of the module in a file, if there is one.
func moduleName(path string) string {
	name, compressed, found := strings.Cut(filepath.Base(path), ".ko")
	if !found || !slices.Contains([]string{"", ".xz", ".zst"}, compressed) {
		return ""
	}
	return strings.ReplaceAll(name, "-", "_")
}

// readModule returns a module, uncompressed.
func (k kernel) readModule(ctx context.Context, name string) ([]byte, error) {
	path, ok := k.modules[name]
	switch {
	case !ok:
		return nil, fmt.Errorf("the kernel %s has no module %q", filepath.Base(k.image), name)
	case strings.HasSuffix(path, ".xz"):
		return output(ctx, "xz", "-dc", path)
	case strings.HasSuffix(path, ".zst"):
		return output(ctx, "zstd", "-dc", path)
	}
	return os.ReadFile(path)
}

// needs returns the modules that have to be loaded before one. What is only of use, if it is there, may be known by another name
// (modprobe.d(5), softdep): only modules are returned.
func (k kernel) needs(module []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, errors.New("it has no section .modinfo")
	}
	info, err := section.Data()
	names, useful := needsOf(info)
	for _, name := range useful {
		if k.modules[name] != "" {
			names = append(names, name)
		}
	}
	return names, err
}

// needsOf reads the lines "depends=a,b" and "softdep=pre: a b post: c", which end in zeros.
func needsOf(info []byte) (names, useful []string) {
	for line := range strings.SplitSeq(string(info), "\x00") {
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "depends":
			names = append(names, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })...)
		case "softdep":
			value, _, _ = strings.Cut(value, "post:")
			useful = append(useful, strings.Fields(strings.ReplaceAll(value, "pre:", " "))...)
		}
	}
	for _, list := range [][]string{names, useful} {
		for i, name := range list {
			list[i] = strings.ReplaceAll(name, "-", "_")
		}
	}
	return names, useful
}

// inOrder returns modules in the order in which they can be loaded, with what they need and without what the kernel has built in.
func (k kernel) inOrder(wanted []string, needs func(name string) ([]string, error)) ([]string, error) {
	var order []string
	var add func(name string) error
	add = func(name string) error {
		if k.builtin[name] || slices.Contains(order, name) {
			return nil
		}
		before, err := needs(name)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, name := range before {
			if err := add(name); err != nil {
				return err
			}
		}
		order = append(order, name)
		return nil
	}
	for _, name := range wanted {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// output runs a program, and says in the error what it has to say.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(exit.Stderr))
	}
	return out, err
}
