// Package version says which build of a component is running. Release builds
// set the version by the linker; any other build reports what the Go toolchain
// has recorded in the binary.
//
// It is for --version, start-up logs and user agents. Decisions must not
// depend on it.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// Set by the linker in release builds:
//
//	-ldflags "-X github.com/longshore-csi/longshore/csikit/version.version=v0.1.0"
var (
	version string //nolint:gochecknoglobals // the linker can only set package variables
	commit  string //nolint:gochecknoglobals // the linker can only set package variables
)

const (
	// development is the version of a build that knows none.
	development = "devel"
	// commitLength is how much of a commit hash String shows.
	commitLength = 7
)

// Info describes a build.
type Info struct {
	// Version is the release, as in v0.1.0, or "devel".
	Version string
	// Commit is the full hash of the source, with "-dirty" appended if the
	// source had changes. It is empty when not recorded.
	Commit string
	// GoVersion is the toolchain, as in go1.26.8.
	GoVersion string
}

// Get returns what is known of the running binary.
func Get() Info {
	build, _ := debug.ReadBuildInfo()
	return fromBuild(build, version, commit)
}

// fromBuild merges what the toolchain recorded, which may be nil, with the
// values set by the linker, which take precedence.
func fromBuild(build *debug.BuildInfo, version, commit string) Info {
	info := Info{Version: version, Commit: commit, GoVersion: runtime.Version()}
	if build != nil {
		if info.Version == "" && build.Main.Version != "(devel)" {
			info.Version = build.Main.Version
		}
		if info.Commit == "" {
			info.Commit = revision(build.Settings)
		}
		if build.GoVersion != "" {
			info.GoVersion = build.GoVersion
		}
	}
	if info.Version == "" {
		info.Version = development
	}
	return info
}

func revision(settings []debug.BuildSetting) string {
	var hash, dirty string
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			hash = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if hash == "" {
		return ""
	}
	return hash + dirty
}

// String returns the build in one line, as in "v0.1.0 (go1.26.8, abcdef0)".
func (i Info) String() string {
	if i.Commit == "" {
		return fmt.Sprintf("%s (%s)", i.Version, i.GoVersion)
	}
	hash, dirty, isDirty := strings.Cut(i.Commit, "-")
	if len(hash) > commitLength {
		hash = hash[:commitLength]
	}
	if isDirty {
		hash += "-" + dirty
	}
	return fmt.Sprintf("%s (%s, %s)", i.Version, i.GoVersion, hash)
}
