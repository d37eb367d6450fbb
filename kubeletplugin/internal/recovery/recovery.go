// Package recovery finds what an earlier process has left on disk: the records of volumes that may
// be staged or published, and mounts without a usable record.
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
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/longshore-csi/longshore/kubeletplugin/internal/names"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/records"
	"github.com/longshore-csi/longshore/kubeletplugin/internal/volume"
)

// Mount is a mount point.
type Mount struct {
	// Point is the path.
	Point string
	// Source is equal for two mounts of the same directory of the same file system.
	Source string
}

// Mounts lists the mounts below a directory.
type Mounts func(dir string) ([]Mount, error)

// Result is what was found.
type Result struct {
	// Volumes have at least one record, sorted by name.
	Volumes []volume.Recovered
	// Pods have a directory for CSI volumes, sorted.
	Pods []types.UID
	// Foreign are mounts below the root without a usable record, sorted. Nobody knows whose they
	// are, so they are kept.
	Foreign []string
	// Unused are staging directories without a record, sorted: nothing was ever staged there.
	Unused []string
	// Unreadable are records that could not be used, sorted by directory.
	Unreadable []Unreadable
}

// Unreadable is a directory whose record is missing or corrupt.
type Unreadable struct {
	// Dir is the directory.
	Dir string
	// Err is what is wrong with its record.
	Err error
}

// Scan looks below the root. It fails only if the directories or the mount table cannot be read;
// then nothing is known, and nothing must be touched.
func Scan(root names.Root, mounts Mounts) (*Result, error) {
	s := &scan{root: root, volumes: map[string]*volume.Recovered{}, handles: map[string]string{}}
	if err := errors.Join(s.targets(), s.stagings()); err != nil {
		return nil, fmt.Errorf("look for volumes of an earlier run: %w", err)
	}
	mounted, err := mounts(string(root))
	if err != nil {
		return nil, fmt.Errorf("look for volumes of an earlier run: read mount table: %w", err)
	}
	return s.result(mounted), nil
}

type scan struct {
	root    names.Root
	volumes map[string]*volume.Recovered
	// handles finds the handle of a staging directory by driver and key.
	handles    map[string]string
	unreadable []Unreadable
	pods       []types.UID
	unused     []string
}

// targets reads the record of every volume of every pod.
func (s *scan) targets() error {
	pods, err := subdirs(s.root.Pods())
	for _, pod := range pods {
		uid := types.UID(pod)
		dirs, podErr := subdirs(s.root.PodVolumes(uid))
		if dirs != nil {
			s.pods = append(s.pods, uid)
		}
		for _, dir := range dirs {
			s.target(uid, filepath.Join(s.root.PodVolumes(uid), dir))
		}
		err = errors.Join(err, podErr)
	}
	return err
}

func (s *scan) target(pod types.UID, dir string) {
	rec, err := records.ReadTarget(dir)
	if err != nil {
		s.unreadable = append(s.unreadable, Unreadable{Dir: dir, Err: err})
		return
	}
	v := s.volume(rec.Driver, rec.Handle, rec.Lifecycle == records.Ephemeral, pod, rec.SpecVolID)
	v.Targets = append(v.Targets, volume.Key{Pod: pod, SpecName: rec.SpecVolID})
	s.handles[rec.Driver+"/"+names.StagingKey(rec.Handle)] = rec.Handle
}

// stagings reads the record of every staged volume.
func (s *scan) stagings() error {
	drivers, err := subdirs(s.root.Drivers())
	for _, driver := range drivers {
		keys, driverErr := subdirs(filepath.Join(s.root.Drivers(), driver))
		for _, key := range keys {
			if isKey(key) { // others are of block volumes or of very old kubelets
				s.staging(driver, key)
			}
		}
		err = errors.Join(err, driverErr)
	}
	return err
}

// staging reads one staging record. If it cannot be used it is made up from a target record of the
// same volume, if there is one.
func (s *scan) staging(driver, key string) {
	dir := filepath.Join(s.root.Drivers(), driver, key)
	rec, err := records.ReadStaging(dir)
	if err == nil && (rec.Driver != driver || names.StagingKey(rec.Handle) != key) {
		err = fmt.Errorf("%w: it is of volume %q of driver %q", records.ErrCorrupt, rec.Handle, rec.Driver)
	}
	if err != nil {
		handle, known := s.handles[driver+"/"+key]
		if !known && errors.Is(err, fs.ErrNotExist) {
			s.unused = append(s.unused, dir)
		}
		if !known {
			s.unreadable = append(s.unreadable, Unreadable{Dir: dir, Err: err})
			return
		}
		rec = records.Staging{Driver: driver, Handle: handle}
	}
	s.volume(rec.Driver, rec.Handle, false, "", "").Staged = true
}

func (s *scan) volume(driver, handle string, inline bool, pod types.UID, specName string) *volume.Recovered {
	name := names.Unique(driver, handle)
	if inline {
		name = names.UniqueInline(pod, specName)
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

func (s *scan) result(mounted []Mount) *Result {
	source := map[string]string{}
	for _, m := range mounted {
		source[m.Point] = m.Source
	}
	r := &Result{Unreadable: s.unreadable, Pods: s.pods, Unused: s.unused}
	slices.SortFunc(r.Unreadable, func(a, b Unreadable) int { return cmp.Compare(a.Dir, b.Dir) })
	unexplained := sets.Set[string]{}
	for _, u := range r.Unreadable {
		for _, leaf := range []string{names.TargetLeaf, names.StagingLeaf} {
			path := filepath.Join(u.Dir, leaf)
			if from, ok := source[path]; ok {
				r.Foreign = append(r.Foreign, path)
				unexplained.Insert(from)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.volumes)) {
		v := *s.volumes[name]
		from, staged := source[s.root.Staging(v.Volume.Driver, v.Volume.Handle)]
		v.Pinned = staged && unexplained.Has(from)
		r.Volumes = append(r.Volumes, v)
	}
	return r
}

func isKey(name string) bool {
	return len(name) == 64 && strings.Trim(name, "0123456789abcdef") == ""
}
