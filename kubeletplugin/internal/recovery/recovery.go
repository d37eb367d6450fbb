// Package recovery finds what an earlier process has left on disk: the records of volumes that may
// be staged or published, and everything else that may belong to a volume but has no usable record.
//
// It scans the pods' directories and the staging directories: a volume that was unpublished but
// not yet unstaged is known only from the latter (kubelet issue 121937). It changes nothing and
// calls no driver; package volume adopts what it finds.
package recovery

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// Scan looks below the root. It fails only if the directories or the mount table cannot be read;
// then nothing is known, and nothing must be touched.
func Scan(root layout.Root, mounts volume.MountTable) (*volume.Found, error) {
	s := &scan{root: root, volumes: map[string]*volume.Recovered{}, handles: map[string]string{}, source: map[string]string{}}
	mounted, err := mounts(string(root))
	if err != nil {
		return nil, fmt.Errorf("look for volumes of an earlier run: read mount table: %w", err)
	}
	for _, m := range mounted {
		s.source[filepath.Clean(m.Point)] = m.Source
	}
	s.points = sortedKeys(s.source)
	if err := errors.Join(s.targets(), s.stagings(), s.blocks()); err != nil {
		return nil, fmt.Errorf("look for volumes of an earlier run: %w", err)
	}
	return s.result(), nil
}

type scan struct {
	root    layout.Root
	volumes map[string]*volume.Recovered
	// handles finds the handle of a staging directory by driver and key.
	handles map[string]string
	// source is the mount table: the source of each mount point.
	source map[string]string
	// points are the mount points, sorted: a mount before those in it.
	points []string
	found  volume.Found
}

// Pods lists the pods that have a directory, sorted.
func Pods(root layout.Root) ([]types.UID, error) {
	dirs, err := subdirs(root.Pods())
	if err != nil {
		return nil, fmt.Errorf("list the directories of pods: %w", err)
	}
	uids := make([]types.UID, 0, len(dirs))
	for _, d := range dirs {
		uids = append(uids, types.UID(d))
	}
	return uids, nil
}

// targets reads the record of every volume of every pod.
func (s *scan) targets() error {
	pods, err := Pods(s.root)
	for _, uid := range pods {
		s.found.Pods = append(s.found.Pods, uid)
		dirs, podErr := subdirs(s.root.PodVolumes(uid))
		for _, dir := range dirs {
			podErr = errors.Join(podErr, s.target(uid, filepath.Join(s.root.PodVolumes(uid), dir)))
		}
		err = errors.Join(err, podErr)
	}
	return err
}

func (s *scan) target(pod types.UID, dir string) error {
	rec, err := records.ReadTarget(dir)
	if err == nil {
		v := s.volume(rec.Driver, rec.Handle, rec.Lifecycle == records.Ephemeral, pod, rec.SpecVolID)
		v.Volume.SELinuxContext = rec.SELinuxContext
		v.Targets = append(v.Targets, volume.Key{Pod: pod, SpecName: rec.SpecVolID})
		s.handles[rec.Driver+"/"+layout.StagingKey(rec.Handle)] = rec.Handle
		return nil
	}
	path := filepath.Join(dir, layout.TargetLeaf)
	used, usedErr := s.used(path)
	if used { // otherwise nothing was published there; it goes with the directory of the pod
		key := volume.Key{Pod: pod, SpecName: layout.Unescape(filepath.Base(dir))}
		s.found.Lost = append(s.found.Lost, volume.Lost{Key: key, Path: path, Err: err})
	}
	return usedErr
}

// used reports whether something is mounted or stored at a path.
func (s *scan) used(path string) (bool, error) {
	if _, mounted := s.source[path]; mounted {
		return true, nil
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case !info.IsDir():
		return true, nil
	}
	entries, err := os.ReadDir(path)
	return len(entries) > 0, err
}

// stagings reads the record of every staged volume.
func (s *scan) stagings() error {
	drivers, err := subdirs(s.root.Drivers())
	for _, driver := range drivers {
		if driver == layout.BlockDir {
			continue
		}
		keys, driverErr := subdirs(filepath.Join(s.root.Drivers(), driver))
		for _, key := range keys {
			dir := filepath.Join(s.root.Drivers(), driver, key)
			if isKey(key) {
				s.staging(dir, driver, key)
			} else {
				s.foreign(dir, "staging directory in a form that is not known")
			}
		}
		err = errors.Join(err, driverErr)
	}
	return err
}

// staging reads one staging record. If it cannot be used it is made up from a target record of the
// same volume, if there is one.
func (s *scan) staging(dir, driver, key string) {
	rec, err := records.ReadStaging(dir)
	if err == nil && (rec.Driver != driver || layout.StagingKey(rec.Handle) != key) {
		err = fmt.Errorf("%w: it is of volume %q of driver %q", records.ErrCorrupt, rec.Handle, rec.Driver)
	}
	if err != nil {
		handle, known := s.handles[driver+"/"+key]
		_, mounted := s.source[filepath.Join(dir, layout.StagingLeaf)]
		switch {
		case known:
			rec = records.Staging{Driver: driver, Handle: handle}
		case errors.Is(err, fs.ErrNotExist) && !mounted:
			s.found.Unused = append(s.found.Unused, dir)
			return
		default:
			s.foreign(dir, err.Error())
			return
		}
	}
	v := s.volume(rec.Driver, rec.Handle, false, "", "")
	v.Staged, v.StagedFor = true, rec.AttachmentUID
	v.Volume.SELinuxContext = cmp.Or(rec.SELinuxContext, v.Volume.SELinuxContext)
}

func (s *scan) foreign(path, problem string) {
	s.found.Foreign = append(s.found.Foreign, volume.Foreign{Path: path, Problem: problem})
}

func (s *scan) volume(driver, handle string, inline bool, pod types.UID, specName string) *volume.Recovered {
	name := layout.Unique(driver, handle)
	if inline {
		name = layout.UniqueInline(pod, specName)
	}
	v := s.volumes[name]
	if v == nil {
		v = &volume.Recovered{Volume: volume.Volume{
			Name: name, Driver: driver, Handle: handle, Ephemeral: inline, Attachable: !inline,
		}}
		s.volumes[name] = v
	}
	return v
}

// result explains the mounts by the volumes that were found.
func (s *scan) result() *volume.Found {
	r := &s.found
	r.Lost = s.adoptBySource(r.Lost)
	unexplained := s.mounts()
	for _, name := range sortedKeys(s.volumes) {
		v := *s.volumes[name]
		from, staged := s.source[s.stagingPath(&v.Volume)]
		v.Pinned = staged && unexplained.Has(from) || v.Orphan() && len(r.Lost) > 0
		r.Volumes = append(r.Volumes, v)
	}
	return r
}

// stagingPath is the staging path of a volume.
func (s *scan) stagingPath(v *volume.Volume) string {
	if v.Device != "" {
		return s.root.DeviceStaging(v.Device)
	}
	return s.root.Staging(v.Driver, v.Handle)
}

// adoptBySource gives each lost target to the staged volume that has the same mount source, if there is exactly one, and returns the others.
func (s *scan) adoptBySource(lost []volume.Lost) []volume.Lost {
	owners := map[string][]*volume.Recovered{}
	for _, v := range s.volumes {
		if source, ok := s.source[s.root.Staging(v.Volume.Driver, v.Volume.Handle)]; ok && v.Staged {
			owners[source] = append(owners[source], v)
		}
	}
	return slices.DeleteFunc(lost, func(l volume.Lost) bool {
		from, mounted := s.source[l.Path]
		if !mounted || len(owners[from]) != 1 {
			return false
		}
		v := owners[from][0]
		v.Targets = append(v.Targets, l.Key)
		return true
	})
}

// subdirs lists the directories in a directory, in order; nil if it does not exist.
func subdirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.IsDir() {
			all = append(all, e.Name())
		}
	}
	return all, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
