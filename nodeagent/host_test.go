package nodeagent

import (
	"strings"
	"testing"
)

// TestAddress: an address that is given is not looked for.
func TestAddress(t *testing.T) {
	o := defaults()
	found, err := o.address()
	if err != nil || !isIP(found) {
		t.Errorf("found %q, %v, want an address of this machine", found, err)
	}
	o.NodeIP = "2001:db8::1"
	if got, err := o.address(); err != nil || got != o.NodeIP {
		t.Errorf("got %q, %v, want %q", got, err, o.NodeIP)
	}
}

// TestMachine: what the kernel does not tell is zero, and not an error.
func TestMachine(t *testing.T) {
	memory, storage := machine(t.TempDir())
	if memory < 1<<20 || storage <= 0 {
		t.Errorf("memory %d, storage %d, want those of this machine", memory, storage)
	}
	if _, storage := machine("/nowhere/at/all"); storage != 0 {
		t.Errorf("a directory that does not exist has %d bytes", storage)
	}
}

func TestNodeNames(t *testing.T) {
	cases := map[string]struct {
		reason, name string
		want         bool
	}{
		"Plain":     {reason: "a host name", name: "node-1", want: true},
		"Domain":    {reason: "with a domain", name: "node-1.example.com", want: true},
		"Empty":     {reason: "no name"},
		"Upper":     {reason: "object names are lower case", name: "Node"},
		"Underline": {reason: "not in DNS", name: "a_b"},
		"Long":      {reason: "above 253 characters", name: strings.Repeat("a", 254)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := isNodeName(tc.name); got != tc.want {
				t.Errorf("%s: %q is a node name: %t, want %t", tc.reason, tc.name, got, tc.want)
			}
		})
	}
}
