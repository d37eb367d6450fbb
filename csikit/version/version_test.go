package version

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func settings(kv ...string) []debug.BuildSetting {
	var out []debug.BuildSetting
	for i := 0; i < len(kv); i += 2 {
		out = append(out, debug.BuildSetting{Key: kv[i], Value: kv[i+1]})
	}
	return out
}

func TestFromBuild(t *testing.T) {
	const hash = "abcdef0123456789"
	cases := map[string]struct {
		reason          string
		build           *debug.BuildInfo
		version, commit string
		want            Info
		text            string
	}{
		"Nothing": {
			reason: "a binary without build information",
			want:   Info{Version: "devel", GoVersion: runtime.Version()},
			text:   "devel (" + runtime.Version() + ")",
		},
		"Release": {
			reason:  "the linker's word counts",
			build:   &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "v0.0.1"}, Settings: settings("vcs.revision", "ffff")},
			version: "v0.1.0", commit: hash,
			want: Info{Version: "v0.1.0", Commit: hash, GoVersion: "go1.26.8"},
			text: "v0.1.0 (go1.26.8, abcdef0)",
		},
		"Installed": {
			reason: "go install records the version of the module",
			build:  &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "v0.2.0"}},
			want:   Info{Version: "v0.2.0", GoVersion: "go1.26.8"},
			text:   "v0.2.0 (go1.26.8)",
		},
		"Checkout": {
			reason: "go build in a checkout records the commit",
			build:  &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "(devel)"}, Settings: settings("vcs.revision", hash, "vcs.modified", "false")},
			want:   Info{Version: "devel", Commit: hash, GoVersion: "go1.26.8"},
			text:   "devel (go1.26.8, abcdef0)",
		},
		"Modified": {
			reason: "a changed checkout says so",
			build:  &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "(devel)"}, Settings: settings("vcs.modified", "true", "vcs.revision", hash)},
			want:   Info{Version: "devel", Commit: hash + "-dirty", GoVersion: "go1.26.8"},
			text:   "devel (go1.26.8, abcdef0-dirty)",
		},
		"NoRevision": {
			reason: "dirty without a commit says nothing",
			build:  &debug.BuildInfo{GoVersion: "go1.26.8", Settings: settings("vcs.modified", "true")},
			want:   Info{Version: "devel", GoVersion: "go1.26.8"},
			text:   "devel (go1.26.8)",
		},
		"ShortCommit": {
			reason:  "a short commit is shown whole",
			version: "v1.0.0", commit: "abc",
			build: &debug.BuildInfo{GoVersion: "go1.26.8"},
			want:  Info{Version: "v1.0.0", Commit: "abc", GoVersion: "go1.26.8"},
			text:  "v1.0.0 (go1.26.8, abc)",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := fromBuild(c.build, c.version, c.commit)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: info (-want +got):\n%s", c.reason, diff)
			}
			if got.String() != c.text {
				t.Errorf("%s: text %q, want %q", c.reason, got, c.text)
			}
		})
	}
}

func TestGet(t *testing.T) {
	got := Get()
	if got.Version == "" || !strings.HasPrefix(got.GoVersion, "go") && !strings.HasPrefix(got.GoVersion, "devel") {
		t.Errorf("Get() = %+v", got)
	}
}
