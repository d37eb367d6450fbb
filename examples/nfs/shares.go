package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
	"github.com/longshore-csi/longshore/driverkit/mount"
)

// mounter mounts SERVER:/path at a directory.
type mounter interface {
	mount(ctx context.Context, source, target string, flags []string) error
}

// shares is the driver.
type shares struct {
	// exports is where the controller mounts exports.
	exports string
	// mounts looks up what is mounted.
	mounts  mount.Mounter
	mounter mounter

	// mu lets one call at a time mount an export.
	mu sync.Mutex
}

// The keys of the parameters of a StorageClass, and of the volume context. A PersistentVolume that is written by hand has them in its volumeAttributes.
const (
	serverKey    = "server"
	shareKey     = "share"
	directoryKey = "directory"
)

// Create implements driverkit.Provisioner. The requested size is in the directory's name, as NFS has none that the driver could set: a request for the same
// name with another size must be refused.
func (s *shares) Create(ctx context.Context, req *driverkit.CreateRequest) (*driverkit.Volume, error) {
	of, err := exportOf(req.Parameters)
	if err != nil {
		return nil, err
	}
	root, err := s.export(ctx, of)
	if err != nil {
		return nil, err
	}
	prefix := driverkit.IDFromName(req.Name) + "-"
	found, err := filepath.Glob(filepath.Join(root, prefix+"*"))
	if err != nil {
		return nil, err
	}
	v := volume{export: of, directory: prefix + strconv.FormatInt(req.Size.Required, 10)}
	if len(found) > 0 {
		v.directory = filepath.Base(found[0])
	}
	path := filepath.Join(root, v.directory)
	// Users of the volume are not root, and the umask takes rights of new directories away. An earlier call may have been killed before Chmod.
	if err := errors.Join(os.MkdirAll(path, 0o777), os.Chmod(path, 0o777)); err != nil {
		return nil, fmt.Errorf("make the directory of volume %q: %w", req.Name, err)
	}
	return v.converted(), nil
}

// Delete implements driverkit.Provisioner.
func (s *shares) Delete(ctx context.Context, req *driverkit.DeleteRequest) error {
	v, root, err := s.find(ctx, req.ID)
	if err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(root, v.directory))
}

// Get implements driverkit.Provisioner.
func (s *shares) Get(ctx context.Context, req *driverkit.GetRequest) (*driverkit.Volume, error) {
	v, _, err := s.find(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	return v.converted(), nil
}

// find returns a volume that exists, and where its export is mounted.
func (s *shares) find(ctx context.Context, id string) (v volume, root string, err error) {
	if v, err = parseID(id); err != nil {
		return v, "", err
	}
	if root, err = s.export(ctx, v.export); err != nil {
		return v, "", err
	}
	_, err = os.Stat(filepath.Join(root, v.directory))
	if errors.Is(err, fs.ErrNotExist) {
		err = driverkit.NotFound("volume", id)
	}
	return v, root, err
}

// export returns the directory at which the controller has mounted an export; it stays mounted for the next call.
func (s *shares) export(ctx context.Context, of export) (dir string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir = filepath.Join(s.exports, driverkit.IDFromName(of.source("")))
	mounted, err := s.mounts.Mounted(ctx, dir)
	if err != nil || mounted {
		return dir, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return dir, s.mounter.mount(ctx, of.source(""), dir, nil)
}

// Stage implements driverkit.Stager. It knows the volume by its context alone, so that an administrator can make a PersistentVolume of any directory.
func (s *shares) Stage(ctx context.Context, req *driverkit.StageRequest) (*driverkit.Staged, error) {
	of, err := exportOf(map[string]string{serverKey: req.VolumeContext[serverKey], shareKey: req.VolumeContext[shareKey]})
	if err != nil {
		return nil, err
	}
	flags := req.Capability.MountFlags
	if err := filesystem.CheckFlags(flags); err != nil {
		return nil, fmt.Errorf("mount_flags: %w: %w", driverkit.ErrInvalid, err)
	}
	if req.ReadOnly {
		flags = append([]string{"ro"}, flags...)
	}
	mounted, err := s.mounts.Mounted(ctx, req.Path)
	if err == nil && !mounted { // An earlier call whose answer was lost may have mounted it.
		err = s.mounter.mount(ctx, of.source(req.VolumeContext[directoryKey]), req.Path, flags)
	}
	return &driverkit.Staged{Mounted: true}, err
}

// Unstage implements driverkit.Stager. The kit has unmounted the volume.
func (*shares) Unstage(context.Context, *driverkit.UnstageRequest) error { return nil }

// export is a directory that a server exports.
type export struct{ server, share string }

// longestExport is the greatest length of server and share in bytes, which are part of volume ids; CSI allows ids of 128 bytes.
const longestExport = 64

// exportOf reads the parameters of a StorageClass.
func exportOf(parameters map[string]string) (export, error) {
	for name := range parameters {
		if name != serverKey && name != shareKey {
			return export{}, fmt.Errorf("parameter %q: must be %q or %q: %w", name, serverKey, shareKey, driverkit.ErrInvalid)
		}
	}
	e := export{server: parameters[serverKey], share: parameters[shareKey]}
	return e, e.check()
}

func (e export) check() error {
	switch {
	case e.server == "" || strings.ContainsAny(e.server, "/# "):
		return fmt.Errorf("%s: %q must be the name or address of a server: %w", serverKey, e.server, driverkit.ErrInvalid)
	case !filepath.IsAbs(e.share) || filepath.Clean(e.share) != e.share || strings.Contains(e.share, "#"):
		return fmt.Errorf("%s: %q must be an absolute path without \"..\" and #: %w", shareKey, e.share, driverkit.ErrInvalid)
	case len(e.server)+len(e.share) > longestExport:
		return fmt.Errorf("%s %q, %s %q: must have at most %d bytes together: %w", serverKey, e.server, shareKey, e.share, longestExport, driverkit.ErrInvalid)
	}
	return nil
}

// source is what mount(8) takes for a directory of the export.
func (e export) source(directory string) string {
	return e.server + ":" + filepath.Join(e.share, filepath.Join("/", directory))
}

// directoryPattern is what directories of volumes are called: HASH-SIZE. Directories with other names are not the driver's to delete.
var directoryPattern = regexp.MustCompile(`^[0-9a-f]{32}-[0-9]+$`)

// volume is a directory of an export.
type volume struct {
	export

	directory string
}

// parseID is the inverse of id. An id that the driver cannot have made is ErrNotFound.
func parseID(id string) (volume, error) {
	parts := strings.Split(id, "#")
	if len(parts) != 3 || !directoryPattern.MatchString(parts[2]) {
		return volume{}, fmt.Errorf("%w: is not SERVER#SHARE#DIRECTORY", driverkit.NotFound("volume", id))
	}
	v := volume{export: export{server: parts[0], share: parts[1]}, directory: parts[2]}
	if err := v.check(); err != nil {
		return v, fmt.Errorf("%w: %v", driverkit.NotFound("volume", id), err) //nolint:errorlint // an id is not invalid, but unknown
	}
	return v, nil
}

func (v volume) id() string { return strings.Join([]string{v.server, v.share, v.directory}, "#") }

// converted returns the volume as the kit knows it.
func (v volume) converted() *driverkit.Volume {
	_, text, _ := strings.Cut(v.directory, "-")
	size, _ := strconv.ParseInt(text, 10, 64) // 0 means that the size is not known: no size was requested.
	return &driverkit.Volume{
		ID: v.id(), Size: size, Context: map[string]string{serverKey: v.server, shareKey: v.share, directoryKey: v.directory},
	}
}
