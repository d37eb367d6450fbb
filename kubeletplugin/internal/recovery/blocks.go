package recovery

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// device is what belongs to one raw block volume on disk.
type device struct {
	// paths exist, in the order in which they were found.
	paths []string
	// pods may have the volume: there is a link in the directory of the pod, a target path or a bind mount.
	pods sets.Set[types.UID]
}

// blocks reads the record of every raw block volume, and finds the pods that may have it.
func (s *scan) blocks() error {
	found := map[string]*device{}
	err := errors.Join(s.deviceDirs(found), s.deviceLinks(found))
	for _, name := range sortedKeys(found) {
		s.block(name, found[name])
	}
	slices.Sort(s.found.Pods)
	s.found.Pods = slices.Compact(s.found.Pods)
	return err
}

// deviceDirs finds the directories of block volumes, and the pods that are named there.
func (s *scan) deviceDirs(found map[string]*device) error {
	names, err := subdirs(s.root.Devices())
	for _, name := range names {
		if name == layout.DeviceStagingDir || name == layout.DevicePublishDir {
			continue
		}
		err = errors.Join(err, add(found, name, s.root.DeviceDir(name), s.root.DeviceMapDir(name)))
	}
	for _, dir := range []string{layout.DeviceStagingDir, layout.DevicePublishDir} {
		names, dirErr := subdirs(filepath.Join(s.root.Devices(), dir))
		for _, name := range names {
			path, pods := filepath.Join(s.root.Devices(), dir, name), ""
			if dir == layout.DevicePublishDir {
				pods = path
			}
			dirErr = errors.Join(dirErr, add(found, name, path, pods))
		}
		err = errors.Join(err, dirErr)
	}
	return err
}

// deviceLinks finds the links to block volumes in the directories of pods. Those of other plugins are foreign.
func (s *scan) deviceLinks(found map[string]*device) error {
	var err error
	for _, uid := range s.found.Pods {
		dir := filepath.Dir(s.root.PodDevices(uid))
		plugins, podErr := subdirs(dir)
		for _, plugin := range plugins {
			links, linksErr := entries(filepath.Join(dir, plugin))
			for _, name := range links {
				path := filepath.Join(dir, plugin, name)
				if plugin != layout.PluginDir {
					s.foreign(path, "block volume of another plugin")
					continue
				}
				d := deviceOf(found, name)
				d.paths = append(d.paths, path)
				d.pods.Insert(uid)
			}
			podErr = errors.Join(podErr, linksErr)
		}
		err = errors.Join(err, podErr)
	}
	return err
}

// add adds a path of a block volume, and the pods whose UIDs are the names in a directory, if there is one.
func add(found map[string]*device, name, path, pods string) error {
	d := deviceOf(found, name)
	d.paths = append(d.paths, path)
	if pods == "" {
		return nil
	}
	uids, err := entries(pods)
	for _, uid := range uids {
		d.pods.Insert(types.UID(uid))
	}
	return err
}

func deviceOf(found map[string]*device, name string) *device {
	if found[name] == nil {
		found[name] = &device{pods: sets.Set[types.UID]{}}
	}
	return found[name]
}

// block takes over one block volume, if its record can be used.
func (s *scan) block(name string, d *device) {
	rec, err := records.ReadDevice(s.root.DeviceRecordDir(name))
	if err == nil && s.volumes[layout.Unique(rec.Driver, rec.Handle)] != nil {
		err = fmt.Errorf("block volume with the record of volume %q of driver %q, which has another record", rec.Handle, rec.Driver)
	}
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist) && s.isEmptyDevice(name, d):
		s.found.Unused = append(s.found.Unused, s.root.DeviceDir(name))
		return
	default:
		for _, path := range d.paths {
			s.foreign(path, fmt.Sprintf("block volume: %v", err))
		}
		return
	}
	v := s.volume(rec.Driver, rec.Handle, false, "", "")
	v.Volume.Device, v.Staged, v.StagedFor = name, true, rec.AttachmentUID
	for _, uid := range sets.List(d.pods) {
		v.Targets = append(v.Targets, volume.Key{Pod: uid, SpecName: name, Block: true})
		s.found.Pods = append(s.found.Pods, uid)
	}
}

// isEmptyDevice reports whether there is no more than the directory of a record, which is made before all else and removed last, and
// an empty one for bind mounts, which a kubelet may remove later than the record.
func (s *scan) isEmptyDevice(name string, d *device) bool {
	dir := s.root.DeviceDir(name)
	in, err := entries(dir)
	if err != nil || len(d.paths) != 1 || d.paths[0] != dir || len(d.pods) > 0 {
		return false
	}
	if slices.ContainsFunc(in, func(e string) bool { return e != layout.DeviceRecordLeaf && e != layout.DeviceMapLeaf }) {
		return false
	}
	_, mounted := s.source[dir]
	return !mounted && !s.mountsBelow(dir)
}

// entries lists the names in a directory, in order, without those of temporary files; none if it does not exist.
func entries(dir string) ([]string, error) {
	found, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	all := make([]string, 0, len(found))
	for _, e := range found {
		if !strings.HasPrefix(e.Name(), ".") {
			all = append(all, e.Name())
		}
	}
	return all, nil
}
