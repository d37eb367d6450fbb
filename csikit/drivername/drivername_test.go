package drivername

import (
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	cases := map[string]struct {
		reason string
		name   string
		err    string
	}{
		"Domain":     {reason: "the recommended form", name: "hostpath.csi.example.com"},
		"Word":       {reason: "one label is enough", name: "nfs"},
		"UpperCase":  {reason: "the specification allows it", name: "NFS.example.COM"},
		"Longest":    {reason: "63 characters fit", name: strings.Repeat("a", 63)},
		"TooLong":    {reason: "64 do not", name: strings.Repeat("a", 64), err: "must not exceed 63 characters, this one has 64"},
		"Empty":      {reason: "a name is required", err: "must not be empty"},
		"Underscore": {reason: "not a character of DNS", name: "a_b", err: "alphanumeric"},
		"Space":      {reason: "not a character of DNS", name: "a b", err: "alphanumeric"},
		"NotASCII":   {reason: "not a character of DNS", name: "ä", err: "alphanumeric"},
		"EmptyLabel": {reason: "two dots in a row", name: "a..b", err: "alphanumeric"},
		"EndDot":     {reason: "a dot at the end", name: "a.", err: "alphanumeric"},
		"StartDash":  {reason: "a dash at the beginning", name: "-a", err: "alphanumeric"},
		"EndDash":    {reason: "a dash at the end of a label", name: "a-.b", err: "alphanumeric"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := Validate(c.name)
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want %q", c.reason, err, c.err)
			}
		})
	}
}
