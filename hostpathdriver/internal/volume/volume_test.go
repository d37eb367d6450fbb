package volume

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseID(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     string
		err    error
	}{
		"UUID":        {reason: "what the driver makes", in: "0f6f1c1e-5d1c-4c6c-8a59-1f6f8b0e7b11"},
		"Inline":      {reason: "what the kubelet makes", in: "csi-" + strings.Repeat("0a", 32)},
		"Longest":     {reason: "128 bytes are allowed", in: strings.Repeat("x", MaxIDLength)},
		"DotInside":   {reason: "a dot inside is harmless", in: "a.b_c"},
		"Empty":       {reason: "an empty name is the directory itself", in: "", err: ErrInvalid},
		"TooLong":     {reason: "129 bytes are not", in: strings.Repeat("x", MaxIDLength+1), err: ErrInvalid},
		"Dot":         {reason: "the directory itself", in: ".", err: ErrInvalid},
		"DotDot":      {reason: "the directory above", in: "..", err: ErrInvalid},
		"Escape":      {reason: "upstream deletes ../victim", in: "../victim", err: ErrInvalid},
		"Slash":       {reason: "no path", in: "a/b", err: ErrInvalid},
		"Absolute":    {reason: "no path from the root", in: "/etc", err: ErrInvalid},
		"Backslash":   {reason: "no path elsewhere either", in: `a\b`, err: ErrInvalid},
		"NUL":         {reason: "system calls would cut it", in: "a\x00b", err: ErrInvalid},
		"Newline":     {reason: "it would break log lines", in: "a\nb", err: ErrInvalid},
		"Option":      {reason: "no option of a command", in: "-rf", err: ErrInvalid},
		"Hidden":      {reason: "hidden files are the driver's", in: ".tmp-x", err: ErrInvalid},
		"Space":       {reason: "plain characters only", in: "a b", err: ErrInvalid},
		"NotASCII":    {reason: "plain characters only", in: "vólume", err: ErrInvalid},
		"NotUTF8":     {reason: "nor broken ones", in: "a\xffb", err: ErrInvalid},
		"NotUTF8Long": {reason: "the message stays readable", in: strings.Repeat("\xff", 500), err: ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseID(c.in)
			if !errors.Is(err, c.err) {
				t.Fatalf("%s: ParseID(%q): error %v, want %v", c.reason, c.in, err, c.err)
			}
			if err == nil && string(got) != c.in {
				t.Errorf("%s: ParseID(%q) = %q", c.reason, c.in, got)
			}
			if err != nil && len(err.Error()) > 300 {
				t.Errorf("%s: message of %d bytes", c.reason, len(err.Error()))
			}
		})
	}
}

func FuzzParseID(f *testing.F) {
	for _, seed := range []string{"a", "..", "../x", "a/b", "\x00", "é", "-x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		id, err := ParseID(in)
		if err != nil {
			return
		}
		joined := filepath.Join("/state/volumes", string(id))
		if filepath.Dir(joined) != "/state/volumes" || filepath.Base(joined) != in {
			t.Errorf("ParseID(%q) leads to %q", in, joined)
		}
	})
}

func TestVolumeCloneSharesNothing(t *testing.T) {
	original := func() *Volume {
		return &Volume{
			ID: "v", Parameters: map[string]string{"kind": "fast"},
			Capabilities: []Capability{{Mode: SingleNodeWriter}},
			Published:    []Publication{{Node: "n1"}},
		}
	}
	v := original()
	c := v.Clone()
	c.Parameters["kind"] = "slow"
	c.Capabilities[0].Mode = MultiNodeMultiWriter
	c.Published[0].Node = "n2"
	if diff := cmp.Diff(original(), v); diff != "" {
		t.Errorf("a change of the clone reached the original (-want +got):\n%s", diff)
	}
}

func TestPublishedNodes(t *testing.T) {
	v := &Volume{Published: []Publication{{Node: "n2"}, {Node: "n1"}}}
	if diff := cmp.Diff([]string{"n1", "n2"}, v.PublishedNodes()); diff != "" {
		t.Errorf("PublishedNodes (-want +got):\n%s", diff)
	}
	if v.PublishedOn("n1") == nil || v.PublishedOn("n3") != nil {
		t.Errorf("PublishedOn: n1 %v, n3 %v, want one and nil", v.PublishedOn("n1"), v.PublishedOn("n3"))
	}
	if got := (&Volume{}).PublishedNodes(); got == nil || len(got) != 0 {
		t.Errorf("PublishedNodes of an unpublished volume: %#v, want an empty list", got)
	}
}

func TestAccessModes(t *testing.T) {
	type properties struct{ MultiNode, ManyTargets, ReadOnly bool }
	want := map[AccessMode]properties{
		SingleNodeWriter:       {},
		SingleNodeSingleWriter: {},
		SingleNodeReaderOnly:   {ReadOnly: true},
		SingleNodeMultiWriter:  {ManyTargets: true},
		MultiNodeReaderOnly:    {MultiNode: true, ManyTargets: true, ReadOnly: true},
		MultiNodeSingleWriter:  {MultiNode: true, ManyTargets: true},
		MultiNodeMultiWriter:   {MultiNode: true, ManyTargets: true},
	}
	got := map[AccessMode]properties{}
	for _, m := range AccessModes() {
		got[m] = properties{MultiNode: m.MultiNode(), ManyTargets: m.ManyTargets(), ReadOnly: m.ReadOnly()}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("access modes (-want +got):\n%s", diff)
	}
}

func TestCheckCapabilities(t *testing.T) {
	mounted := Capability{Access: AccessMount, Mode: SingleNodeWriter}
	block := Capability{Access: AccessBlock, Mode: SingleNodeWriter}
	directories := Support{MountFlags: []string{"noatime", "ro"}}
	disks := Support{Block: true, FSTypes: []string{"ext4", "xfs"}, CheckMountFlags: func(flags []string) error {
		if slices.Contains(flags, "bind") {
			return errors.New("not here")
		}
		return nil
	}}
	image := Form{Disk: true, FSType: "ext4"}
	with := func(change func(*Capability)) Capability {
		c := mounted
		change(&c)
		return c
	}
	cases := map[string]struct {
		reason  string
		support Support
		form    Form
		list    []Capability
		err     error
	}{
		"Mount":         {reason: "directories are mounted", support: directories, list: []Capability{mounted}},
		"Flags":         {reason: "known flags pass", support: directories, list: []Capability{with(func(c *Capability) { c.MountFlags = []string{"ro"} })}},
		"UnknownFlag":   {reason: "unknown flags would fail in the mount", support: directories, list: []Capability{with(func(c *Capability) { c.MountFlags = []string{"nfsvers=4"} })}, err: ErrInvalid},
		"Block":         {reason: "a directory is no device", support: directories, list: []Capability{block}, err: ErrInvalid},
		"BlockServed":   {reason: "a disk is one", support: disks, list: []Capability{block, block}},
		"BlockAndMount": {reason: "a volume is one or the other", support: disks, list: []Capability{block, mounted}, err: ErrInvalid},
		"FSType":        {reason: "a directory has no file system to make", support: directories, list: []Capability{with(func(c *Capability) { c.FSType = "ext4" })}, err: ErrInvalid},
		"FSTypeServed":  {reason: "a disk has", support: disks, list: []Capability{with(func(c *Capability) { c.FSType = "xfs" })}},
		"FSTypeUnknown": {reason: "but not every one", support: disks, list: []Capability{with(func(c *Capability) { c.FSType = "zfs" })}, err: ErrInvalid},
		"NoMode":        {reason: "the mode is required", support: directories, list: []Capability{{Access: AccessMount}}, err: ErrInvalid},
		"UnknownMode":   {reason: "a mode from the future is not understood", support: directories, list: []Capability{{Access: AccessMount, Mode: "NEW_MODE"}}, err: ErrInvalid},
		"NoAccess":      {reason: "the access type is required", support: directories, list: []Capability{{Mode: SingleNodeWriter}}, err: ErrInvalid},
		"Empty":         {reason: "one at least", support: directories, err: ErrInvalid},
		"ImageFlag":     {reason: "an image has flags of its file system", support: disks, form: image, list: []Capability{with(func(c *Capability) { c.MountFlags = []string{"data=ordered"} })}},
		"ImageBadFlag":  {reason: "but none that lead elsewhere", support: disks, form: image, list: []Capability{with(func(c *Capability) { c.MountFlags = []string{"bind"} })}, err: ErrInvalid},
		"ImageReaders":  {reason: "many nodes may read an image", support: disks, form: image, list: []Capability{with(func(c *Capability) { c.Mode = MultiNodeReaderOnly })}},
		"ImageWriters":  {reason: "but not write to it", support: disks, form: image, list: []Capability{with(func(c *Capability) { c.Mode = MultiNodeMultiWriter })}, err: ErrInvalid},
		"SecondIsBad":   {reason: "all are checked", support: directories, list: []Capability{mounted, block}, err: ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := c.support.CheckCapabilities(c.form, c.list); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
		})
	}
}

func TestCapabilityEqual(t *testing.T) {
	base := Capability{Access: AccessMount, Mode: SingleNodeWriter, MountFlags: []string{"ro", "noatime"}}
	reordered := base
	reordered.MountFlags = []string{"noatime", "ro"}
	if !base.Equal(reordered) {
		t.Error("the order of mount flags must not count")
	}
	if diff := cmp.Diff([]string{"noatime", "ro"}, reordered.MountFlags); diff != "" {
		t.Errorf("comparing has changed its argument:\n%s", diff)
	}
	for name, other := range map[string]Capability{
		"Access": {Access: AccessBlock, Mode: SingleNodeWriter, MountFlags: base.MountFlags},
		"Mode":   {Access: AccessMount, Mode: MultiNodeMultiWriter, MountFlags: base.MountFlags},
		"FSType": {Access: AccessMount, Mode: SingleNodeWriter, FSType: "xfs", MountFlags: base.MountFlags},
		"Flags":  {Access: AccessMount, Mode: SingleNodeWriter, MountFlags: []string{"ro"}},
	} {
		if base.Equal(other) {
			t.Errorf("%s must count", name)
		}
	}
}

func TestAccess(t *testing.T) {
	mounted, block := Capability{Access: AccessMount, Mode: SingleNodeWriter}, Capability{Access: AccessBlock, Mode: SingleNodeWriter}
	cases := map[string]struct {
		reason string
		made   []Capability
		use    Capability
		err    error
	}{
		"Mount":       {reason: "as it was made", made: []Capability{mounted}, use: mounted},
		"Block":       {reason: "as it was made", made: []Capability{block}, use: block},
		"BlockOfDir":  {reason: "a directory is no device", made: []Capability{mounted}, use: block, err: ErrInvalid},
		"MountOfDisk": {reason: "a device is no directory", made: []Capability{block}, use: mounted, err: ErrInvalid},
		"Old":         {reason: "a record without capabilities is of a directory", use: mounted},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			v := &Volume{ID: "id", Capabilities: c.made}
			if err := v.CheckAccess(c.use); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
		})
	}
}
