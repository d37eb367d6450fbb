package volume

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/driverkit"
)

func TestParseParameters(t *testing.T) {
	none := Parameters{Mode: 0o777, UID: -1, GID: -1}
	with := func(change func(*Parameters)) Parameters {
		changed := none
		change(&changed)
		return changed
	}
	cases := map[string]struct {
		reason string
		in     map[string]string
		inline bool
		want   Parameters
		err    error
	}{
		"None":            {reason: "defaults", want: none},
		"Kind":            {reason: "the name that manifests use", in: map[string]string{"kind": "fast"}, want: with(func(p *Parameters) { p.Pool = "fast" })},
		"Pool":            {reason: "the plainer name", in: map[string]string{"pool": "fast"}, want: with(func(p *Parameters) { p.Pool = "fast" })},
		"KindAndPool":     {reason: "saying it twice is no harm", in: map[string]string{"pool": "fast", "kind": "fast"}, want: with(func(p *Parameters) { p.Pool = "fast" })},
		"KindOrPool":      {reason: "contradicting is", in: map[string]string{"pool": "fast", "kind": "slow"}, err: driverkit.ErrInvalid},
		"Owner":           {reason: "owner and mode", in: map[string]string{"uid": "1000", "gid": "0", "mode": "0750"}, want: with(func(p *Parameters) { p.UID, p.GID, p.Mode, p.Owned = 1000, 0, 0o750, true })},
		"Setgid":          {reason: "special bits", in: map[string]string{"mode": "2775"}, want: with(func(p *Parameters) { p.Mode, p.Owned = 0o775|fs.ModeSetgid, true })},
		"ModeNotOctal":    {reason: "9 is no octal digit", in: map[string]string{"mode": "0790"}, err: driverkit.ErrInvalid},
		"ModeTooLarge":    {reason: "no bits beyond the special ones", in: map[string]string{"mode": "10000"}, err: driverkit.ErrInvalid},
		"NegativeOwner":   {reason: "-1 would mean something else", in: map[string]string{"uid": "-1"}, err: driverkit.ErrInvalid},
		"OwnerName":       {reason: "ids, not names", in: map[string]string{"gid": "root"}, err: driverkit.ErrInvalid},
		"PersistentSize":  {reason: "the claim has the size", in: map[string]string{"size": "1Gi"}, err: driverkit.ErrInvalid},
		"InlineSize":      {reason: "an inline volume has no claim", inline: true, in: map[string]string{"size": "1Gi"}, want: with(func(p *Parameters) { p.Size = 1 << 30 })},
		"InlineZero":      {reason: "zero would mean the default", inline: true, in: map[string]string{"size": "0"}, err: driverkit.ErrInvalid},
		"InlineBadSize":   {reason: "no quantity", inline: true, in: map[string]string{"size": "big"}, err: driverkit.ErrInvalid},
		"Image":           {reason: "a file system of its own", in: map[string]string{"backend": "image"}, want: with(func(p *Parameters) { p.Backend = "image" })},
		"EmptyBackend":    {reason: "templates leave it empty", in: map[string]string{"backend": ""}, want: none},
		"UnknownBackend":  {reason: "nothing else exists", in: map[string]string{"backend": "lvm"}, err: driverkit.ErrInvalid},
		"KindAndEmpty":    {reason: "an empty one contradicts nothing", in: map[string]string{"kind": "fast", "pool": ""}, want: with(func(p *Parameters) { p.Pool = "fast" })},
		"PrefixAlone":     {reason: "a key that only resembles those of Kubernetes", in: map[string]string{"csi.storage.k8s.io": "x"}, err: driverkit.ErrInvalid},
		"Unknown":         {reason: "a misspelt key must not be ignored", in: map[string]string{"kid": "fast"}, err: driverkit.ErrInvalid},
		"UnknownInline":   {reason: "neither inline", inline: true, in: map[string]string{"medium": "ssd"}, err: driverkit.ErrInvalid},
		"PodInformation":  {reason: "what the kubelet adds is no attribute", inline: true, in: map[string]string{"csi.storage.k8s.io/pod.uid": "u", "csi.kubernetes.io/pod.name": "p"}, want: none},
		"ClaimMetadata":   {reason: "what the provisioner adds neither", in: map[string]string{"csi.storage.k8s.io/pvc/name": "data"}, want: none},
		"EmptyKindIsNone": {reason: "templates leave it empty", in: map[string]string{"kind": ""}, want: none},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			parse := ParseParameters
			if c.inline {
				parse = ParseInline
			}
			got, err := parse(c.in)
			if !errors.Is(err, c.err) {
				t.Fatalf("%s: error %v, want %v", c.reason, err, c.err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func FuzzParseInline(f *testing.F) {
	f.Add("size", "1Gi", "mode", "0755")
	f.Add("uid", "-1", "gid", "4294967296")
	f.Add("kind", "a", "pool", "b")
	f.Fuzz(func(t *testing.T, key1, value1, key2, value2 string) {
		got, err := ParseInline(map[string]string{key1: value1, key2: value2})
		if err != nil {
			if !errors.Is(err, driverkit.ErrInvalid) {
				t.Errorf("error %v is no ErrInvalid", err)
			}
			return
		}
		if got.Size < 0 || got.UID < -1 || got.GID < -1 || got.Mode&^(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
			t.Errorf("%q=%q %q=%q: got %+v", key1, value1, key2, value2, got)
		}
	})
}
