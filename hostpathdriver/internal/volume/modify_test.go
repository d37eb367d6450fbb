package volume

import (
	"errors"
	"testing"
)

func TestMutable(t *testing.T) {
	cases := map[string]struct {
		reason string
		rule   Mutable
		in     map[string]string
		err    error
	}{
		"OffNone": {reason: "nothing asked for"},
		"Off":     {reason: "not served", in: map[string]string{"a": "b"}, err: ErrInvalid},
		"Any":     {reason: "no names stand for all", rule: Mutable{Enabled: true}, in: map[string]string{"a": "b"}},
		"Named":   {reason: "one of the names", rule: Mutable{Enabled: true, Names: []string{"a", "c"}}, in: map[string]string{"c": ""}},
		"Unknown": {reason: "none of the names", rule: Mutable{Enabled: true, Names: []string{"a"}}, in: map[string]string{"a": "b", "x": "y"}, err: ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if err := c.rule.Check(c.in); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
		})
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
