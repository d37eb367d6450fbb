package mount

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// dirs makes directories below a temporary one and returns their paths.
func dirs(t *testing.T, names ...string) []string {
	t.Helper()
	root := t.TempDir()
	paths := make([]string, 0, len(names))
	for _, name := range names {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(path, 0o750); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func TestFakeKeepsATable(t *testing.T) {
	ctx, d := t.Context(), dirs(t, "source", "target", "target/inner", "other")
	source, target, inner, other := d[0], d[1], d[2], d[3]
	var f Fake
	if err := errors.Join(f.Bind(ctx, source, target, Options{}), f.Bind(ctx, other, target, Options{ReadOnly: true}), f.Bind(ctx, other, inner, Options{})); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{target, inner}, f.Targets()); diff != "" {
		t.Errorf("Targets (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&FakeMount{Source: other, Options: Options{ReadOnly: true}}, f.At(target)); diff != "" {
		t.Errorf("the last mount is on top (-want +got):\n%s", diff)
	}
	below, err := f.Below(ctx, target)
	if diff := cmp.Diff([]string{inner}, below); err != nil || diff != "" {
		t.Errorf("Below: %v (-want +got):\n%s", err, diff)
	}
	if err := f.Unmount(ctx, target); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&FakeMount{Source: source}, f.At(target)); diff != "" {
		t.Errorf("the first mount appears again (-want +got):\n%s", diff)
	}
	if err := errors.Join(f.Unmount(ctx, target), f.Unmount(ctx, target)); err != nil {
		t.Errorf("unmounting what is not mounted: %v", err)
	}
	if mounted, err := f.Mounted(ctx, target); mounted || err != nil {
		t.Errorf("Mounted: %t, %v", mounted, err)
	}
	f.Reboot()
	if got := f.Targets(); len(got) != 0 {
		t.Errorf("after a reboot: %v", got)
	}
}

func TestFakeHolds(t *testing.T) {
	ctx, d := t.Context(), dirs(t, "source", "target", "other")
	var f Fake
	if err := f.Bind(ctx, d[0], d[1], Options{}); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		source, target string
		options        Options
		want           bool
	}{
		"Same":        {source: d[0], target: d[1], want: true},
		"OtherSource": {source: d[2], target: d[1]},
		"NotMounted":  {source: d[0], target: d[2]},
		"NotReadOnly": {source: d[0], target: d[1], options: Options{ReadOnly: true}},
		"NotFlagged":  {source: d[0], target: d[1], options: Options{Flags: []string{"ro"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got, err := f.IsMountOf(ctx, c.source, c.target, c.options); got != c.want || err != nil {
				t.Errorf("IsMountOf = %t, %v, want %t", got, err, c.want)
			}
		})
	}
}

func TestFakeRefusesWhatTheKernelRefuses(t *testing.T) {
	ctx, d := t.Context(), dirs(t, "source", "target")
	file := filepath.Join(d[0], "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var f Fake
	if err := f.Bind(ctx, filepath.Join(d[0], "missing"), d[1], Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing source: %v", err)
	}
	if err := f.Bind(ctx, d[0], filepath.Join(d[1], "missing"), Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing target: %v", err)
	}
	if err := f.Bind(ctx, d[0], file, Options{}); err == nil {
		t.Error("a directory at a file is accepted")
	}
	if err := f.Bind(ctx, file, d[1], Options{}); err == nil {
		t.Error("a file at a directory is accepted")
	}
	if err := f.Bind(ctx, d[0], d[1], Options{Flags: []string{"nfsvers=4"}}); err == nil {
		t.Error("an unknown flag is accepted")
	}
	broken := errors.New("no more mounts")
	f.Fail(broken)
	if err := f.Bind(ctx, d[0], d[1], Options{}); !errors.Is(err, broken) {
		t.Errorf("Bind: %v, want the injected error", err)
	}
	if err := f.Unmount(ctx, d[1]); !errors.Is(err, broken) {
		t.Errorf("Unmount: %v, want the injected error", err)
	}
	if got := f.Targets(); len(got) != 0 {
		t.Errorf("mounts after failures only: %v", got)
	}
	if got := len(f.Calls()); got != 7 {
		t.Errorf("%d calls were noted, want 7", got)
	}
}

// TestFakePlaces enters mounts that are no bind mounts, and undoes them as all
// others.
func TestFakePlaces(t *testing.T) {
	ctx, d := t.Context(), dirs(t, "target", "bound")
	device := filepath.Join(d[1], "device")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var f Fake
	o := Options{ReadOnly: true, Flags: []string{"discard"}}
	if err := f.Place(ctx, device, device, o); err == nil {
		t.Error("a mount at a file is accepted")
	}
	if err := f.Place(ctx, device, filepath.Join(d[0], "missing"), o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing target: %v", err)
	}
	if err := errors.Join(f.Place(ctx, device, d[0], o), f.Bind(ctx, d[0], d[1], Options{})); err != nil {
		t.Fatal(err)
	}
	if bound, err := f.IsMountOf(ctx, device, d[0], Options{ReadOnly: true}); !bound || err != nil {
		t.Errorf("IsMountOf: %t, %v", bound, err)
	}
	if diff := cmp.Diff(&FakeMount{Source: device, Options: o}, f.At(d[0])); diff != "" {
		t.Errorf("At (-want +got):\n%s", diff)
	}
	if err := f.Unmount(ctx, d[0]); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("no more mounts")
	f.Fail(broken)
	if err := f.Place(ctx, device, d[0], o); !errors.Is(err, broken) {
		t.Errorf("%v, want the injected error", err)
	}
	if got := f.Targets(); len(got) != 1 {
		t.Errorf("mounts: %v", got)
	}
}

// TestOverContexts calls every method with a context that is over.
func TestOverContexts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := dirs(t, "source", "target")
	for name, m := range map[string]Mounter{"Fake": &Fake{}, "Kernel": Kernel{}} {
		t.Run(name, func(t *testing.T) {
			_, mountedErr := m.Mounted(ctx, d[1])
			_, isMountOfErr := m.IsMountOf(ctx, d[0], d[1], Options{})
			_, belowErr := m.Below(ctx, d[1])
			for call, err := range map[string]error{
				"Bind": m.Bind(ctx, d[0], d[1], Options{}), "Unmount": m.Unmount(ctx, d[1]),
				"Mounted": mountedErr, "IsMountOf": isMountOfErr, "Below": belowErr,
			} {
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%s: %v, want context.Canceled", call, err)
				}
			}
		})
	}
}

func TestAttributes(t *testing.T) {
	cases := map[string]struct {
		reason  string
		options Options
		want    unix.MountAttr
		bad     bool
	}{
		"None":        {reason: "nothing is changed"},
		"ReadOnly":    {reason: "by the readonly field", options: Options{ReadOnly: true}, want: unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}},
		"ReadOnlyTwo": {reason: "by the flag", options: Options{Flags: []string{"ro"}}, want: unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}},
		"RWLoses":     {reason: "rw does not undo readonly", options: Options{ReadOnly: true, Flags: []string{"rw"}}, want: unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}},
		"Several":     {reason: "flags add up", options: Options{Flags: []string{"nosuid", "nodev", "noexec"}}, want: unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}},
		"Atime":       {reason: "access time is one choice of three", options: Options{Flags: []string{"noatime"}}, want: unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOATIME, Attr_clr: unix.MOUNT_ATTR__ATIME}},
		"LastWins":    {reason: "as with the mount program", options: Options{Flags: []string{"noexec", "exec"}}, want: unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_NOEXEC}},
		"Unknown":     {reason: "flags of other file systems", options: Options{Flags: []string{"nolock"}}, bad: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := attributes(c.options)
			if (err != nil) != c.bad {
				t.Fatalf("%s: error %v, want one: %t", c.reason, err, c.bad)
			}
			if c.bad {
				return
			}
			if diff := cmp.Diff(&c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestFlagsAreSorted(t *testing.T) {
	want := []string{"dev", "diratime", "exec", "noatime", "nodev", "nodiratime", "noexec", "nosuid", "relatime", "ro", "rw", "strictatime", "suid"}
	if diff := cmp.Diff(want, Flags()); diff != "" {
		t.Errorf("Flags (-want +got):\n%s", diff)
	}
}
