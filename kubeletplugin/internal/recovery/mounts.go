package recovery

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// mounts adds the mounts that no record explains to the foreign paths, and returns their sources and those of the lost
// targets. What is mounted in a driver's own directory, below plugins/<driver>, is the driver's, and the tmpfs that a
// kubelet makes for secrets and the like are no volumes of a driver.
func (s *scan) mounts() sets.Set[string] {
	unexplained, foreign, known := sets.Set[string]{}, sets.Set[string]{}, s.knownPaths()
	for _, l := range s.found.Lost {
		known.Insert(l.Path)
		if from, mounted := s.source[l.Path]; mounted {
			unexplained.Insert(from)
		}
	}
	for _, f := range s.found.Foreign {
		known.Insert(f.Path)
		foreign.Insert(f.Path)
	}
	for _, point := range s.points {
		inScope := below(s.root.Pods(), point) || below(s.root.Drivers(), point)
		switch {
		case !inScope || s.isLocal(point):
		case !covers(known, point):
			s.foreign(point, "mount of an unknown volume")
			foreign.Insert(point)
			unexplained.Insert(s.source[point])
		case covers(foreign, point):
			unexplained.Insert(s.source[point])
		}
	}
	slices.SortFunc(s.found.Foreign, func(a, b volume.Foreign) int { return cmp.Compare(a.Path, b.Path) })
	return unexplained
}

// covers reports whether a path is one of paths, or in the directory of one, at any depth.
func covers(paths sets.Set[string], path string) bool {
	for ; !paths.Has(path); path = filepath.Dir(path) {
		if path == filepath.Dir(path) {
			return false
		}
	}
	return true
}

// knownPaths has the staging and target paths of all volumes.
func (s *scan) knownPaths() sets.Set[string] {
	all := sets.Set[string]{}
	for _, v := range s.volumes {
		if !v.Volume.Ephemeral {
			all.Insert(s.stagingPath(&v.Volume))
		}
		for _, k := range v.Targets {
			if k.Block {
				all.Insert(s.root.DeviceTarget(k.Pod, k.SpecName), s.root.DeviceMap(k.Pod, k.SpecName))
				continue
			}
			all.Insert(s.root.Target(k.Pod, k.SpecName))
		}
	}
	return all
}

// isLocal reports whether a mount is one that a kubelet makes for itself: pods/<uid>/volumes/<plugin>/<name>.
func (s *scan) isLocal(point string) bool {
	path, err := filepath.Rel(s.root.Pods(), point)
	parts := strings.Split(path, "/")
	if err != nil || len(parts) < 3 || parts[1] != "volumes" {
		return false
	}
	switch parts[2] {
	case "kubernetes.io~projected", "kubernetes.io~secret", "kubernetes.io~configmap", "kubernetes.io~downward-api", "kubernetes.io~empty-dir":
		return true
	default:
		return false
	}
}

// mountsBelow reports whether anything is mounted in a directory, at any depth.
func (s *scan) mountsBelow(dir string) bool {
	next, _ := slices.BinarySearch(s.points, dir+"/")
	return next < len(s.points) && below(dir, s.points[next])
}

// below reports whether path is in the directory dir, at any depth.
func below(dir, path string) bool { return strings.HasPrefix(path, dir+"/") }

// isKey reports whether a name is that of a staging directory.
func isKey(name string) bool {
	return len(name) == len(layout.StagingKey("")) && strings.Trim(name, "0123456789abcdef") == ""
}
