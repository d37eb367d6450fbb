package volume

import (
	"errors"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
	"github.com/longshore-csi/longshore/driverkit/filesystem"
)

func TestFormString(t *testing.T) {
	for want, f := range map[string]Form{
		"a directory": {}, "a device": {Disk: true}, "an image with xfs": {Disk: true, FSType: "xfs"},
	} {
		if f.String() != want {
			t.Errorf("%#v: %q, want %q", f, f, want)
		}
		if f.Device() != (want == "a device") {
			t.Errorf("%v: Device() = %t", f, f.Device())
		}
	}
}

func mounted(mode driverkit.AccessMode, flags ...string) driverkit.Capability {
	return driverkit.Capability{Mode: mode, MountFlags: flags}
}

func typed(fsType string) driverkit.Capability {
	return driverkit.Capability{Mode: driverkit.SingleNodeWriter, FSType: fsType}
}

func block(mode driverkit.AccessMode) driverkit.Capability {
	return driverkit.Capability{Mode: mode, Block: true}
}

func TestChooseForm(t *testing.T) {
	directory, device, ext4, xfs := Form{}, Form{Disk: true}, Form{Disk: true, FSType: "ext4"}, Form{Disk: true, FSType: "xfs"}
	plain, raw := mounted(driverkit.SingleNodeWriter), block(driverkit.SingleNodeWriter)
	cases := map[string]struct {
		reason  string
		backend string
		list    []driverkit.Capability
		from    *Form
		want    Form
		err     error
	}{
		"Nothing":              {reason: "a directory, unless somebody asks for more", want: directory},
		"Mount":                {reason: "the same", list: []driverkit.Capability{plain}, want: directory},
		"Block":                {reason: "a device", list: []driverkit.Capability{raw}, want: device},
		"BlockAndMount":        {reason: "a volume is one or the other", list: []driverkit.Capability{raw, plain}, err: driverkit.ErrInvalid},
		"MountAndBlock":        {reason: "in any order", list: []driverkit.Capability{plain, raw}, err: driverkit.ErrInvalid},
		"Typed":                {reason: "a file system of its own", list: []driverkit.Capability{typed("xfs")}, want: xfs},
		"TypedOnce":            {reason: "the others do not care", list: []driverkit.Capability{plain, typed("xfs"), plain}, want: xfs},
		"TypedTwice":           {reason: "a volume has one", list: []driverkit.Capability{typed("xfs"), typed("ext4")}, err: driverkit.ErrInvalid},
		"Image":                {reason: "the first type is the default", backend: backendImage, list: []driverkit.Capability{plain}, want: ext4},
		"ImageTyped":           {reason: "both agree", backend: backendImage, list: []driverkit.Capability{typed("xfs")}, want: xfs},
		"ImageBlock":           {reason: "a device is one", backend: backendImage, list: []driverkit.Capability{raw}, want: device},
		"Directory":            {reason: "as asked for", backend: backendDirectory, list: []driverkit.Capability{plain}, want: directory},
		"DirectoryBlock":       {reason: "no device", backend: backendDirectory, list: []driverkit.Capability{raw}, err: driverkit.ErrInvalid},
		"DirectoryTyped":       {reason: "no file system", backend: backendDirectory, list: []driverkit.Capability{typed("ext4")}, err: driverkit.ErrInvalid},
		"OfDirectory":          {reason: "what the source is", list: []driverkit.Capability{plain}, from: &directory, want: directory},
		"OfImage":              {reason: "what the source is, not the default", list: []driverkit.Capability{plain}, from: &xfs, want: xfs},
		"OfImageAsImage":       {reason: "nor with the parameter", backend: backendImage, list: []driverkit.Capability{plain}, from: &xfs, want: xfs},
		"OfImageTyped":         {reason: "the same type", list: []driverkit.Capability{typed("xfs")}, from: &xfs, want: xfs},
		"OfImageOtherType":     {reason: "a copy has the file system of its source", list: []driverkit.Capability{typed("ext4")}, from: &xfs, err: driverkit.ErrInvalid},
		"OfImageAsDevice":      {reason: "the blocks of the image, for backup programs", list: []driverkit.Capability{raw}, from: &xfs, want: device},
		"OfImageAsDirectory":   {reason: "not as asked for", backend: backendDirectory, list: []driverkit.Capability{plain}, from: &xfs, err: driverkit.ErrInvalid},
		"OfDevice":             {reason: "a device", list: []driverkit.Capability{raw}, from: &device, want: device},
		"OfDeviceMounted":      {reason: "nobody knows what is on a device", list: []driverkit.Capability{plain}, from: &device, err: driverkit.ErrInvalid},
		"OfDeviceTyped":        {reason: "nor that it is ext4", list: []driverkit.Capability{typed("ext4")}, from: &device, err: driverkit.ErrInvalid},
		"OfDeviceAsImage":      {reason: "whatever asks for a file system", backend: backendImage, list: []driverkit.Capability{plain}, from: &device, err: driverkit.ErrInvalid},
		"OfDeviceAsDirectory":  {reason: "no files in blocks", backend: backendDirectory, list: []driverkit.Capability{plain}, from: &device, err: driverkit.ErrInvalid},
		"OfDirectoryBlock":     {reason: "no blocks in files", list: []driverkit.Capability{raw}, from: &directory, err: driverkit.ErrInvalid},
		"OfDirectoryTyped":     {reason: "no file system of its own", list: []driverkit.Capability{typed("ext4")}, from: &directory, err: driverkit.ErrInvalid},
		"OfDirectoryAsImage":   {reason: "the same by the parameter", backend: backendImage, list: []driverkit.Capability{plain}, from: &directory, err: driverkit.ErrInvalid},
		"OfImageManyWriters":   {reason: "the form of the source restricts the access modes, too", list: []driverkit.Capability{mounted(driverkit.MultiNodeMultiWriter)}, from: &xfs, err: driverkit.ErrInvalid},
		"SecondCapabilityIsIt": {reason: "all are checked", list: []driverkit.Capability{plain, mounted(driverkit.SingleNodeWriter, "nfsvers=4")}, err: driverkit.ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ChooseForm(Parameters{Backend: c.backend}, c.list, c.from)
			if !errors.Is(err, c.err) || (err == nil && got != c.want) {
				t.Errorf("%s: %v, %v, want %v, %v", c.reason, got, err, c.want, c.err)
			}
		})
	}
}

func TestFormCheckCapability(t *testing.T) {
	directory, device, image := Form{}, Form{Disk: true}, Form{Disk: true, FSType: "ext4"}
	cases := map[string]struct {
		reason string
		form   Form
		in     driverkit.Capability
		err    error
	}{
		"Flags":          {reason: "flags of a bind mount pass", form: directory, in: mounted(driverkit.SingleNodeWriter, "noatime", "ro")},
		"UnknownFlag":    {reason: "unknown flags would fail in the mount", form: directory, in: mounted(driverkit.SingleNodeWriter, "data=ordered"), err: driverkit.ErrInvalid},
		"Writers":        {reason: "many nodes may write to a shared directory", form: directory, in: mounted(driverkit.MultiNodeMultiWriter)},
		"ImageFlag":      {reason: "an image has flags of its file system", form: image, in: mounted(driverkit.SingleNodeWriter, "data=ordered")},
		"ImageBadFlag":   {reason: "but none that lead elsewhere", form: image, in: mounted(driverkit.SingleNodeWriter, "bind"), err: driverkit.ErrInvalid},
		"ImageReaders":   {reason: "many nodes may read an image", form: image, in: mounted(driverkit.MultiNodeReaderOnly)},
		"ImageWriters":   {reason: "but not write to it", form: image, in: mounted(driverkit.MultiNodeMultiWriter), err: driverkit.ErrInvalid},
		"ImageOneWriter": {reason: "one writes beside readers: their caches are stale", form: image, in: mounted(driverkit.MultiNodeSingleWriter), err: driverkit.ErrInvalid},
		"DeviceWriters":  {reason: "the workload knows what it does", form: device, in: block(driverkit.MultiNodeMultiWriter)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := c.form.CheckCapability(c.in); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
		})
	}
}

func TestFormSize(t *testing.T) {
	const plenty = 10 << 30
	const odd = 10*BlockSize + 1
	directory, device, xfs := Form{}, Form{Disk: true}, Form{Disk: true, FSType: "xfs"}
	least := filesystem.MinSize("xfs")
	cases := map[string]struct {
		reason  string
		form    Form
		in      driverkit.Range
		largest int64
		want    int64
		err     error
	}{
		"Unset":            {reason: "the driver decides", form: directory, largest: plenty, want: DefaultSize},
		"Required":         {reason: "exactly what is required", form: directory, in: driverkit.Range{Required: 5}, largest: plenty, want: 5},
		"RequiredAndLimit": {reason: "the lower bound will do", form: directory, in: driverkit.Range{Required: 5, Limit: 9}, largest: plenty, want: 5},
		"LimitSmall":       {reason: "the default is cut to the limit", form: directory, in: driverkit.Range{Limit: 7}, largest: plenty, want: 7},
		"LimitLarge":       {reason: "a limit is no wish", form: directory, in: driverkit.Range{Limit: 9 << 30}, largest: plenty, want: DefaultSize},
		"SmallDriver":      {reason: "the default is cut to the largest volume", form: directory, largest: 3, want: 3},
		"Largest":          {reason: "the bound itself is allowed", form: directory, in: driverkit.Range{Required: plenty}, largest: plenty, want: plenty},
		"TooLarge":         {reason: "the driver cannot", form: directory, in: driverkit.Range{Required: plenty + 1}, largest: plenty, err: driverkit.ErrOutOfRange},

		"DeviceExact":        {reason: "nothing to round", form: device, in: driverkit.Range{Required: 2 * BlockSize}, largest: odd, want: 2 * BlockSize},
		"DeviceUp":           {reason: "never less than required", form: device, in: driverkit.Range{Required: BlockSize + 1}, largest: odd, want: 2 * BlockSize},
		"DeviceByte":         {reason: "one block at least", form: device, in: driverkit.Range{Required: 1}, largest: odd, want: BlockSize},
		"DeviceDefault":      {reason: "the largest, rounded down: nothing was required", form: device, largest: odd, want: 10 * BlockSize},
		"DeviceLimitDown":    {reason: "a limit alone is rounded down", form: device, in: driverkit.Range{Limit: 3*BlockSize + 5}, largest: odd, want: 3 * BlockSize},
		"DeviceLimitTight":   {reason: "no multiple between", form: device, in: driverkit.Range{Required: BlockSize + 1, Limit: BlockSize + 2}, largest: odd, err: driverkit.ErrOutOfRange},
		"DeviceLimitSmall":   {reason: "no device is smaller than a block", form: device, in: driverkit.Range{Limit: 100}, largest: odd, err: driverkit.ErrOutOfRange},
		"DeviceBeyondBlock":  {reason: "rounding must not exceed the largest", form: device, in: driverkit.Range{Required: odd}, largest: odd, err: driverkit.ErrOutOfRange},
		"DeviceBeyondDriver": {reason: "the driver cannot", form: device, in: driverkit.Range{Required: odd + 1}, largest: odd, err: driverkit.ErrOutOfRange},

		"ImageLeast":        {reason: "more than required is allowed", form: xfs, in: driverkit.Range{Required: 1}, largest: plenty, want: least},
		"ImageLimit":        {reason: "a limit that has space for the least", form: xfs, in: driverkit.Range{Limit: least + BlockSize}, largest: plenty, want: least + BlockSize},
		"ImageLimitBelow":   {reason: "a limit below the least", form: xfs, in: driverkit.Range{Limit: least - 1}, largest: plenty, err: driverkit.ErrOutOfRange},
		"ImageLargestBelow": {reason: "the driver's limit below the least", form: xfs, largest: least - 1, err: driverkit.ErrOutOfRange},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := c.form.Size(c.in, c.largest)
			if !errors.Is(err, c.err) || got != c.want {
				t.Errorf("%s: Size = %d, %v, want %d, %v", c.reason, got, err, c.want, c.err)
			}
		})
	}
}

// TestSizesAreAllowed: a size that is selected is in its range, and a repeated request selects it again.
func TestSizesAreAllowed(t *testing.T) {
	random := source(t)
	const largest = 4<<30 + 1
	selected := map[Form]int{}
	forms := []Form{{}, {Disk: true}, {Disk: true, FSType: "ext4"}, {Disk: true, FSType: "xfs"}}
	for range 20_000 {
		form := pick(random, forms)
		r := driverkit.Range{Required: random.Int64N(6 << 30), Limit: random.Int64N(6 << 30)}
		if random.IntN(3) == 0 {
			r.Limit = 0
		}
		if random.IntN(3) == 0 {
			r.Required = 0
		}
		size, err := form.Size(r, largest)
		if err != nil {
			continue
		}
		selected[form]++
		if !r.Holds(size) || size <= 0 || size > largest || form.Disk && size%BlockSize != 0 || size < filesystem.MinSize(form.FSType) {
			t.Fatalf("%v, %+v: size %d", form, r, size)
		}
	}
	if len(selected) != len(forms) {
		t.Errorf("sizes were selected for %v only", selected)
	}
}
