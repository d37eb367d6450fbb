package agent

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/kubeletplugin"
)

// TestRegistrationsAreReported: what is wrong with a registration is reported once, when it has lasted for two looks.
func TestRegistrationsAreReported(t *testing.T) {
	const first, second = "/registry/a-reg.sock", "/registry/b-reg.sock"
	good := kubeletplugin.State{Drivers: []string{"a"}, Registrations: []kubeletplugin.Registration{{Path: first, Driver: "a", Registered: true}}}
	gone := kubeletplugin.State{}
	twice := kubeletplugin.State{Drivers: []string{"a"}, Registrations: append([]kubeletplugin.Registration{{Path: second, Driver: "a", Problem: "taken"}}, good.Registrations...)}
	other := kubeletplugin.State{Drivers: []string{"a"}, Registrations: append([]kubeletplugin.Registration{{Path: second, Driver: "a", Problem: "mute"}}, good.Registrations...)}
	at := func(endpoint string) kubeletplugin.State {
		return kubeletplugin.State{Drivers: []string{"a"}, Registrations: []kubeletplugin.Registration{{Path: first, Driver: "a", Endpoint: endpoint, Registered: true}}}
	}
	cases := map[string]struct {
		reason string
		looks  []kubeletplugin.State
		want   []string // of each look: the reasons, and the drivers that are back
	}{
		"Good":     {"nothing is wrong", []kubeletplugin.State{good, good, good}, []string{"", "", ""}},
		"Replaced": {"the driver is back before the second look", []kubeletplugin.State{good, gone, good, gone, good}, []string{"", "", "", "", ""}},
		"Lost": {
			"it is said once, and when it ends", []kubeletplugin.State{good, gone, gone, gone, good, gone, gone},
			[]string{"", "", reasonRegistrationLost, "", "back a", "", reasonRegistrationLost},
		},
		"Twice": {
			"another socket has the name", []kubeletplugin.State{good, twice, twice, twice, other, other, good},
			[]string{"", "", reasonNotRegistered, "", "", reasonNotRegistered, ""},
		},
		"Taken": {
			"another driver registers by a socket of the same name, and the first one is still there", []kubeletplugin.State{at("/a"), at("/b"), at("/b"), at("/b")},
			[]string{"", "", reasonTwoDrivers, ""},
		},
		"Moved": {
			"the driver of a new release listens elsewhere", []kubeletplugin.State{at("/gone"), at("/b"), at("/b"), at("/b")}, []string{"", "", "", ""},
		},
		"Never": {"a driver that was never registered is not known", []kubeletplugin.State{gone, gone, gone}, []string{"", "", ""}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRegistrations(func(endpoint string) bool { return endpoint != "/gone" })
			got := make([]string, len(tc.looks))
			for i, s := range tc.looks {
				findings, back := r.look(s)
				var all []string
				for _, f := range findings {
					all = append(all, f.reason)
				}
				for _, name := range back {
					all = append(all, "back "+name)
				}
				got[i] = strings.Join(all, ", ")
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: want -, got +:\n%s", tc.reason, diff)
			}
		})
	}
}
