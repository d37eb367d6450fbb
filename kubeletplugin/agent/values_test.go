package agent

import (
	"flag"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestValues sets each kind of flag twice: the second value replaces the first, and what is printed
// can be set again.
func TestValues(t *testing.T) {
	cases := map[string]struct {
		reason      string
		value       flag.Value
		first, then string
		want        string
	}{
		"Labels":        {reason: "sorted", value: &Labels{}, first: "x=y", then: "b=2,a=1", want: "a=1,b=2"},
		"LabelsSpaces":  {reason: "people write them", value: &Labels{}, then: " a=1 , b=2 ,", want: "a=1,b=2"},
		"LabelsEmpty":   {reason: "none", value: &Labels{}, first: "x=y", then: "", want: ""},
		"LabelsDomain":  {reason: "a key with a domain", value: &Labels{}, then: "x.example/y=z", want: "x.example/y=z"},
		"Taints":        {reason: "in the order given", value: &Taints{}, first: "x=y:NoSchedule", then: "b=:NoExecute,a=1:PreferNoSchedule", want: "b:NoExecute,a=1:PreferNoSchedule"},
		"TaintsEmpty":   {reason: "none", value: &Taints{}, first: "x=y:NoSchedule", then: "", want: ""},
		"Quantity":      {reason: "as the API has it", value: &Quantity{}, first: "1", then: "2048Mi", want: "2Gi"},
		"QuantityUnset": {reason: "the machine's again", value: &Quantity{}, first: "1", then: "", want: ""},
		"Paths":         {reason: "in the order given", value: &Paths{}, first: "/x", then: "/b, /a", want: "/b,/a"},
		"PathsEmpty":    {reason: "none", value: &Paths{}, first: "/x", then: "", want: ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, text := range []string{tc.first, tc.then} {
				if err := tc.value.Set(text); err != nil {
					t.Fatalf("%s: set %q: %v", tc.reason, text, err)
				}
			}
			if got := tc.value.String(); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
			if err := tc.value.Set(tc.want); err != nil || tc.value.String() != tc.want {
				t.Errorf("%s: %q does not survive being set again: %q, %v", tc.reason, tc.want, tc.value, err)
			}
		})
	}
}

// TestRefusedValueChangesNothing: a bad value names itself, and the good one before stays.
func TestRefusedValueChangesNothing(t *testing.T) {
	cases := map[string]struct {
		reason    string
		value     flag.Value
		good, bad string
		text      string
	}{
		"LabelValue":   {reason: "not a label value", value: &Labels{}, good: "a=b", bad: "c=d,e=f g", text: `"e=f g"`},
		"LabelNoKey":   {reason: "no key", value: &Labels{}, good: "a=b", bad: "=v", text: `"=v"`},
		"TaintKey":     {reason: "not a key", value: &Taints{}, good: "a=b:NoExecute", bad: "-=b:NoExecute", text: `"-=b:NoExecute"`},
		"TaintEffect":  {reason: "effects have one spelling", value: &Taints{}, good: "a=b:NoExecute", bad: "a=b:noexecute", text: "effect must be"},
		"QuantityUnit": {reason: "no such unit", value: &Quantity{}, good: "1", bad: "1Zi", text: `"1Zi"`},
		"QuantityZero": {reason: "nothing fits", value: &Quantity{}, good: "1", bad: "0", text: "greater than 0"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if err := tc.value.Set(tc.good); err != nil {
				t.Fatal(err)
			}
			if err := tc.value.Set(tc.bad); err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%s: got %v, want an error with %q", tc.reason, err, tc.text)
			}
			if got := tc.value.String(); got != tc.good {
				t.Errorf("%s: the value is %q now, want %q", tc.reason, got, tc.good)
			}
		})
	}
}

func TestParseTaint(t *testing.T) {
	cases := map[string]struct {
		reason, text string
		want         corev1.Taint
	}{
		"Full":    {reason: "all parts", text: "a=b:NoSchedule", want: corev1.Taint{Key: "a", Value: "b", Effect: corev1.TaintEffectNoSchedule}},
		"NoValue": {reason: "a value is not needed", text: "a:NoExecute", want: corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoExecute}},
		"Domain":  {reason: "a key with a domain", text: "x.example/a=:PreferNoSchedule", want: corev1.Taint{Key: "x.example/a", Effect: corev1.TaintEffectPreferNoSchedule}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseTaint(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s, -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

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

// TestTemplateOfOptions carries each option over.
func TestTemplateOfOptions(t *testing.T) {
	o, err := parse("--node-name=n", "--node-hostname=h", "--node-ip=10.1.2.3", "--node-labels=a=b", "--register-with-taints=x:NoSchedule",
		"--max-pods=7", "--node-cpu=500m", "--node-memory=1Gi", "--node-ephemeral-storage=2Gi", "--root-dir=/nowhere/at/all")
	if err != nil {
		t.Fatal(err)
	}
	got, err := o.template()
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "n" || got.Hostname != "h" || got.IP != "10.1.2.3" || got.Labels["a"] != "b" || len(got.Taints) != 1 || got.MaxPods != 7 {
		t.Errorf("template is %+v", got)
	}
	if got.CPU.MilliValue() != 500 || got.Memory.Value() != 1<<30 || got.Storage.Value() != 2<<30 {
		t.Errorf("capacity is %v, %v, %v", got.CPU.String(), got.Memory.String(), got.Storage.String())
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
