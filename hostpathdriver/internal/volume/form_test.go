package volume

import (
	"errors"
	"testing"
)

func TestFormString(t *testing.T) {
	for want, f := range map[string]Form{
		"a directory": {}, "a device": {Disk: true}, "an image with xfs": {Disk: true, FSType: "xfs"},
	} {
		if f.String() != want {
			t.Errorf("%#v: %q, want %q", f, f, want)
		}
	}
}

func TestFormCheckSource(t *testing.T) {
	directory, device, ext4, xfs := Form{}, Form{Disk: true}, Form{Disk: true, FSType: "ext4"}, Form{Disk: true, FSType: "xfs"}
	cases := map[string]struct {
		reason   string
		of, from Form
		err      error
	}{
		"Directories":       {reason: "files of files", of: directory, from: directory},
		"Devices":           {reason: "blocks of blocks", of: device, from: device},
		"Images":            {reason: "the same file system", of: xfs, from: xfs},
		"OtherImages":       {reason: "a copy has the file system of its source", of: xfs, from: ext4, err: ErrInvalid},
		"DeviceOfImage":     {reason: "what is on the disk is on the device", of: device, from: xfs},
		"ImageOfDevice":     {reason: "the workload may have made it", of: xfs, from: device},
		"DirectoryOfDevice": {reason: "no files in blocks", of: directory, from: device, err: ErrInvalid},
		"DeviceOfDirectory": {reason: "no blocks in files", of: device, from: directory, err: ErrInvalid},
		"ImageOfDirectory":  {reason: "no blocks in files", of: ext4, from: directory, err: ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := c.of.CheckSource(c.from); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	directory, device, ext4, xfs := Form{}, Form{Disk: true}, Form{Disk: true, FSType: "ext4"}, Form{Disk: true, FSType: "xfs"}
	mounted := Capability{Access: AccessMount, Mode: SingleNodeWriter}
	block := Capability{Access: AccessBlock, Mode: SingleNodeWriter}
	typed := func(fsType string) Capability {
		return Capability{Access: AccessMount, Mode: SingleNodeWriter, FSType: fsType}
	}
	all := []string{"ext4", "xfs"}
	cases := map[string]struct {
		reason  string
		backend string
		list    []Capability
		from    *Form
		types   []string
		want    Form
		err     error
	}{
		"Nothing":            {reason: "a directory, unless somebody asks for more", types: all, want: directory},
		"Mount":              {reason: "the same", list: []Capability{mounted}, types: all, want: directory},
		"Block":              {reason: "a device", list: []Capability{block}, types: all, want: device},
		"Typed":              {reason: "a file system of its own", list: []Capability{typed("xfs")}, types: all, want: xfs},
		"TypedOnce":          {reason: "the others do not care", list: []Capability{mounted, typed("xfs"), mounted}, types: all, want: xfs},
		"TypedTwice":         {reason: "a volume has one", list: []Capability{typed("xfs"), typed("ext4")}, types: all, err: ErrInvalid},
		"TypedUnknown":       {reason: "nobody can make it", list: []Capability{typed("zfs")}, types: all, err: ErrInvalid},
		"Image":              {reason: "the first type is the default", backend: backendImage, list: []Capability{mounted}, types: all, want: ext4},
		"ImageTyped":         {reason: "both agree", backend: backendImage, list: []Capability{typed("xfs")}, types: all, want: xfs},
		"ImageBlock":         {reason: "a device is one", backend: backendImage, list: []Capability{block}, types: all, want: device},
		"ImageWithoutTypes":  {reason: "nothing could be mounted", backend: backendImage, list: []Capability{mounted}, err: ErrInvalid},
		"Directory":          {reason: "as asked for", backend: backendDirectory, list: []Capability{mounted}, types: all, want: directory},
		"DirectoryBlock":     {reason: "no device", backend: backendDirectory, list: []Capability{block}, types: all, err: ErrInvalid},
		"DirectoryTyped":     {reason: "no file system", backend: backendDirectory, list: []Capability{typed("ext4")}, types: all, err: ErrInvalid},
		"OfDirectory":        {reason: "what the source is", list: []Capability{mounted}, from: &directory, types: all, want: directory},
		"OfImage":            {reason: "what the source is, not the default", list: []Capability{mounted}, from: &xfs, types: all, want: xfs},
		"OfImageAsImage":     {reason: "nor with the parameter", backend: backendImage, list: []Capability{mounted}, from: &xfs, types: all, want: xfs},
		"OfImageTyped":       {reason: "the same type", list: []Capability{typed("xfs")}, from: &xfs, types: all, want: xfs},
		"OfImageOtherType":   {reason: "another type", list: []Capability{typed("ext4")}, from: &xfs, types: all, err: ErrInvalid},
		"OfImageAsDevice":    {reason: "the blocks of the image", list: []Capability{block}, from: &xfs, types: all, want: device},
		"OfImageAsDirectory": {reason: "not as asked for", backend: backendDirectory, list: []Capability{mounted}, from: &xfs, types: all, err: ErrInvalid},
		"OfDevice":           {reason: "a device", list: []Capability{block}, from: &device, types: all, want: device},
		"OfDeviceMounted":    {reason: "what the workload has put on it", list: []Capability{mounted}, from: &device, types: all, want: ext4},
		"OfDirectoryBlock":   {reason: "no blocks in files", list: []Capability{block}, from: &directory, types: all, err: ErrInvalid},
		"OfDirectoryTyped":   {reason: "no file system of its own", list: []Capability{typed("ext4")}, from: &directory, types: all, err: ErrInvalid},
		"OfUnmakeable":       {reason: "a type that is no longer served", list: []Capability{mounted}, from: &xfs, types: all[:1], err: ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var origin *Origin
			if c.from != nil {
				origin = &Origin{Source: Source{Volume: "v"}, Form: *c.from}
			}
			got, err := Support{Block: true, FSTypes: c.types}.ChooseForm(Attributes{Backend: c.backend}, c.list, origin)
			if !errors.Is(err, c.err) || (err == nil && got != c.want) {
				t.Errorf("%s: %v, %v, want %v, %v", c.reason, got, err, c.want, c.err)
			}
		})
	}
}

func TestSupportSize(t *testing.T) {
	s := Support{FSTypes: []string{"xfs"}, LeastSize: func(string) int64 { return 3 * BlockSize }}
	const largest = 100 * BlockSize
	for name, c := range map[string]struct {
		form Form
		want int64
	}{
		"Directory": {want: 1},
		"Device":    {form: Form{Disk: true}, want: BlockSize},
		"Image":     {form: Form{Disk: true, FSType: "xfs"}, want: 3 * BlockSize},
	} {
		if got, err := s.Size(c.form, Range{Required: 1}, largest); got != c.want || err != nil {
			t.Errorf("%s: size %d, %v, want %d", name, got, err, c.want)
		}
	}
	s.LeastSize = nil
	if got, err := s.Size(Form{Disk: true, FSType: "xfs"}, Range{Required: 1}, largest); got != BlockSize || err != nil {
		t.Errorf("no limit: size %d, %v, want %d", got, err, BlockSize)
	}
}
