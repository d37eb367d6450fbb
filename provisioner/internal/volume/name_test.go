package volume

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestName(t *testing.T) {
	const uid = types.UID("0a1b2c3d-4e5f-4000-8000-123456789abc")
	cases := map[string]struct {
		reason string
		naming Naming
		uid    types.UID
		want   string
	}{
		"WholeUID":     {reason: "The default name is what users know.", naming: Naming{"pvc", -1}, uid: uid, want: "pvc-0a1b2c3d-4e5f-4000-8000-123456789abc"},
		"Prefix":       {reason: "The prefix is free.", naming: Naming{"kube", -1}, uid: uid, want: "kube-0a1b2c3d-4e5f-4000-8000-123456789abc"},
		"Short":        {reason: "Cut names count characters without dashes.", naming: Naming{"pvc", 10}, uid: uid, want: "pvc-0a1b2c3d4e"},
		"All":          {reason: "32 characters are all there are.", naming: Naming{"pvc", 32}, uid: uid, want: "pvc-0a1b2c3d4e5f40008000123456789abc"},
		"UIDIsShorter": {reason: "A UID that is no UUID does no harm.", naming: Naming{"pvc", 32}, uid: "uid-1", want: "pvc-uid1"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.naming.Name(tc.uid); got != tc.want {
				t.Errorf("%s\nname %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestNamingValidate(t *testing.T) {
	cases := map[string]struct {
		reason string
		naming Naming
		errs   []string
	}{
		"Default": {reason: "The defaults are good.", naming: Naming{"pvc", -1}},
		"Longest": {reason: "A UUID has 32 digits.", naming: Naming{"pvc", 32}},
		"TooLong": {reason: "Cutting more than there is was a panic once.", naming: Naming{"pvc", 33}, errs: []string{"--volume-name-uuid-length=33"}},
		"Nothing": {reason: "All volumes would have one name.", naming: Naming{"pvc", 0}, errs: []string{"--volume-name-uuid-length=0"}},
		"Minus":   {reason: "Only -1 has a meaning.", naming: Naming{"pvc", -2}, errs: []string{"--volume-name-uuid-length=-2"}},
		"Both":    {reason: "All errors are reported at once.", naming: Naming{"", 99}, errs: []string{"--volume-name-prefix", "--volume-name-uuid-length=99"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := tc.naming.Validate()
			if (err != nil) != (len(tc.errs) > 0) {
				t.Fatalf("%s\nerror %v, want one: %v", tc.reason, err, len(tc.errs) > 0)
			}
			for _, text := range tc.errs {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%s\nerror %q, want it to contain %q", tc.reason, err, text)
				}
			}
		})
	}
}
