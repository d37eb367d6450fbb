package volume

import (
	"errors"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
)

func TestMutable(t *testing.T) {
	disk, image, directory := Form{Disk: true}, Form{Disk: true, FSType: "ext4"}, Form{}
	readAhead := func(value string) map[string]string { return map[string]string{"readAheadKiB": value} }
	on := Mutable{Enabled: true}
	cases := map[string]struct {
		reason string
		rule   Mutable
		form   Form
		in     map[string]string
		err    error
	}{
		"OffNone":      {reason: "nothing asked for"},
		"Off":          {reason: "not served", in: map[string]string{"a": "b"}, err: driverkit.ErrInvalid},
		"OffReadAhead": {reason: "nor is that of the driver", form: disk, in: readAhead("128"), err: driverkit.ErrInvalid},
		"NoNames":      {reason: "a name that nobody has accepted", rule: on, in: map[string]string{"a": "b"}, err: driverkit.ErrInvalid},
		"Any":          {reason: "every name was accepted", rule: Mutable{Enabled: true, Names: []string{"*"}}, in: map[string]string{"a": "b"}},
		"Named":        {reason: "one of the names", rule: Mutable{Enabled: true, Names: []string{"a", "c"}}, in: map[string]string{"c": ""}},
		"Unknown":      {reason: "none of the names", rule: Mutable{Enabled: true, Names: []string{"a"}}, in: map[string]string{"a": "b", "x": "y"}, err: driverkit.ErrInvalid},
		"Device":       {reason: "a device has a read-ahead", rule: on, form: disk, in: readAhead("1024")},
		"Image":        {reason: "so has that of an image", rule: on, form: image, in: readAhead("65536")},
		"None":         {reason: "no read-ahead at all", rule: on, form: disk, in: readAhead("0")},
		"BesideNames":  {reason: "names are others", rule: Mutable{Enabled: true, Names: []string{"a"}}, form: disk, in: map[string]string{"a": "b", "readAheadKiB": "4"}},
		"Directory":    {reason: "a directory has no device", rule: on, form: directory, in: readAhead("128"), err: driverkit.ErrInvalid},
		"AnyDirectory": {reason: "any name is not any value", rule: Mutable{Enabled: true, Names: []string{"*"}}, form: directory, in: readAhead("128"), err: driverkit.ErrInvalid},
		"Empty":        {reason: "no number", rule: on, form: disk, in: readAhead(""), err: driverkit.ErrInvalid},
		"Word":         {reason: "no number", rule: on, form: disk, in: readAhead("fast"), err: driverkit.ErrInvalid},
		"Negative":     {reason: "no number of bytes", rule: on, form: disk, in: readAhead("-4"), err: driverkit.ErrInvalid},
		"Fraction":     {reason: "half a page", rule: on, form: disk, in: readAhead("6"), err: driverkit.ErrInvalid},
		"TooLarge":     {reason: "memory for every open file", rule: on, form: disk, in: readAhead("65540"), err: driverkit.ErrInvalid},
		"Overflow":     {reason: "no int64", rule: on, form: disk, in: readAhead("18446744073709551616"), err: driverkit.ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := c.rule.Check(c.in, c.form); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
		})
	}
}

func TestReadAhead(t *testing.T) {
	for value, want := range map[string]int64{"128": 128 << 10, "0": 0, "kept by an earlier version": -1, "": -1} {
		v := &Volume{MutableParameters: map[string]string{"readAheadKiB": value}}
		if got, ok := v.ReadAhead(); ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: %d, %t, want %d", value, got, ok, want)
		}
	}
	if got, ok := (&Volume{}).ReadAhead(); ok {
		t.Errorf("without the parameter: %d", got)
	}
}

func TestModified(t *testing.T) {
	v := &Volume{MutableParameters: map[string]string{"iops": "100", "empty": ""}}
	for name, c := range map[string]struct {
		in   map[string]string
		want bool
	}{
		"Nothing": {want: true},
		"Same":    {in: map[string]string{"iops": "100"}, want: true},
		"Empty":   {in: map[string]string{"empty": ""}, want: true},
		"Other":   {in: map[string]string{"iops": "200"}},
		"New":     {in: map[string]string{"tier": ""}},
	} {
		if got := v.Modified(c.in); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
