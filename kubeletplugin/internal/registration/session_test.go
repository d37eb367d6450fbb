package registration

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/csiregistration"
)

// story runs a test in virtual time.
func story(t *testing.T, tell func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.end()
		tell(t, w)
	})
}

const (
	socketA = "/registry/a-reg.sock"
	socketB = "/registry/b-reg.sock"
)

func TestDriverComesAndGoes(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.serve(socketA, registrarOptions{name: "d", endpoint: "/d.sock"})
		w.expect("0s register d at /d.sock version 1.0.0", "0s notify d: registered")
		want := []Status{{Path: socketA, Driver: "d", Endpoint: "/d.sock", Registered: true}}
		if diff := cmp.Diff(want, w.m.Status()); diff != "" {
			t.Errorf("status, -want +got:\n%s", diff)
		}
		w.wait(time.Hour)
		w.expect()
		w.remove(socketA)
		w.expect("1h0m0s deregister d at /d.sock")
		if got := w.m.Status(); len(got) != 0 {
			t.Errorf("status of a socket that is gone: %v", got)
		}
	})
}

func TestStopDeregistersNothing(t *testing.T) {
	story(t, func(_ *testing.T, w *world) {
		w.serve(socketA, registrarOptions{name: "d", endpoint: "/d.sock"})
		w.end()
		w.expect("0s register d at /d.sock version 1.0.0", "0s notify d: registered")
	})
}

func TestFailedRegistrationIsTriedAgain(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.handler.fails = 10
		w.serve(socketA, registrarOptions{name: "d", endpoint: "/d.sock"})
		w.wait(10 * time.Minute)
		var want []string
		at := time.Duration(0)
		for _, delay := range []int{0, 500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 122000, 122000} {
			at += time.Duration(delay) * time.Millisecond
			want = append(want, at.String()+" register d at /d.sock version 1.0.0")
			if len(want) < 20 {
				want = append(want, at.String()+` notify d: register CSI driver "d": driver is not well`)
			}
		}
		want = append(want, at.String()+" notify d: registered")
		w.expect(want...)
		if got := w.registered(); len(got) != 1 {
			t.Errorf("registered: %v", got)
		}
	})
}

// A socket exists a moment before its registrar listens, and a dead one stays
// in the directory: soon at first, then at ease (node-driver-registrar#206).
func TestRefusedConnectionIsTriedFastAtFirst(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.socket(socketA)
		w.wait(700 * time.Millisecond)
		w.expect("0s refused "+socketA, "50ms refused "+socketA, "150ms refused "+socketA, "350ms refused "+socketA)
		w.listen(socketA, registrarOptions{name: "d", endpoint: "/d.sock"})
		w.wait(100 * time.Millisecond)
		w.expect("750ms register d at /d.sock version 1.0.0", "750ms notify d: registered")

		w.socket(socketB)
		w.wait(10 * time.Minute)
		w.mu.Lock()
		attempts := len(w.lines)
		w.mu.Unlock()
		if attempts < 120 || attempts > 135 {
			t.Errorf("%d attempts in ten minutes, want about two a second in the first and few after", attempts)
		}
	})
}

// Kubernetes #71424, #70516: a registrar that restarts next to a running
// driver must not take the driver's node ID away.
func TestRestartedRegistrarKeepsTheDriverRegistered(t *testing.T) {
	story(t, func(_ *testing.T, w *world) {
		w.serve(socketA, registrarOptions{name: "d", endpoint: "/d.sock"})
		w.socket(socketA) // the new one does not listen yet
		w.wait(40 * time.Millisecond)
		w.listen(socketA, registrarOptions{name: "d", endpoint: "/d.sock"})
		w.wait(10 * time.Millisecond)
		w.wait(time.Hour)
		w.expect("0s register d at /d.sock version 1.0.0", "0s notify d: registered", "0s refused "+socketA,
			"50ms register d at /d.sock version 1.0.0", "50ms notify d: registered")
	})
}

func TestReplacedSocketOfAnotherDriver(t *testing.T) {
	story(t, func(_ *testing.T, w *world) {
		w.serve(socketA, registrarOptions{name: "one", endpoint: "/1.sock"})
		w.serve(socketA, registrarOptions{name: "two", endpoint: "/2.sock"})
		w.expect("0s register one at /1.sock version 1.0.0", "0s notify one: registered",
			"0s register two at /2.sock version 1.0.0", "0s notify two: registered", "0s deregister one at /1.sock")
	})
}

func TestReplacedSocketThatFails(t *testing.T) {
	story(t, func(_ *testing.T, w *world) {
		w.serve(socketA, registrarOptions{name: "d", endpoint: "/1.sock"})
		w.expect("0s register d at /1.sock version 1.0.0", "0s notify d: registered")
		w.handler.fails = 1
		w.serve(socketA, registrarOptions{name: "d", endpoint: "/2.sock"})
		w.expect("0s register d at /2.sock version 1.0.0", `0s notify d: register CSI driver "d": driver is not well`,
			"0s deregister d at /1.sock")
		w.wait(time.Second)
		w.expect("500ms register d at /2.sock version 1.0.0", "500ms notify d: registered")
	})
}

// A dead socket in place of a good one must not keep the driver forever.
func TestReplacedSocketThatNeverListens(t *testing.T) {
	story(t, func(t *testing.T, w *world) {
		w.serve(socketA, registrarOptions{name: "d", endpoint: "/d.sock"})
		w.socket(socketA)
		w.wait(59 * time.Second)
		w.mu.Lock()
		before := strings.Join(w.lines, "\n")
		w.mu.Unlock()
		if strings.Contains(before, "deregister") {
			t.Error("deregistered within the first minute")
		}
		w.wait(3 * time.Second)
		w.mu.Lock()
		after := strings.Join(w.lines, "\n")
		w.mu.Unlock()
		if !strings.Contains(after, "deregister d at /d.sock") {
			t.Error("not deregistered after a minute without an answer")
		}
	})
}

func TestSecondSocketOfTheSameVersionWaits(t *testing.T) {
	story(t, func(_ *testing.T, w *world) {
		w.serve(socketA, registrarOptions{name: "d", endpoint: "/a.sock"})
		w.serve(socketB, registrarOptions{name: "d", endpoint: "/b.sock"})
		w.expect("0s register d at /a.sock version 1.0.0", "0s notify d: registered",
			`0s notify d: CSI driver "d" version 1.0.0: already registered with version 1.0.0 through socket "/registry/a-reg.sock"; remove one of the two drivers, or give it another name`)
		w.wait(100 * time.Millisecond)
		w.remove(socketA)
		w.expect("100ms deregister d at /a.sock", "100ms register d at /b.sock version 1.0.0", "100ms notify d: registered")
	})
}

// Where the kubelet keys on the name only, the going of the lower version
// would take the higher one's registration with it.
func TestHigherVersionTakesOver(t *testing.T) {
	story(t, func(_ *testing.T, w *world) {
		w.serve(socketA, registrarOptions{name: "d", endpoint: "/a.sock"})
		w.serve(socketB, registrarOptions{name: "d", endpoint: "/b.sock", versions: []string{"1.0.0", "1.2.0", "2.0.0", "nonsense"}})
		w.expect("0s register d at /a.sock version 1.0.0", "0s notify d: registered",
			"0s register d at /b.sock version 1.2.0", "0s notify d: registered")
		w.wait(time.Minute)
		w.remove(socketA)
		w.expect()
		w.serve(socketA, registrarOptions{name: "d", endpoint: "/a.sock", versions: []string{"1.3"}})
		w.expect("1m0s register d at /a.sock version 1.3", "1m0s notify d: registered")
		w.remove(socketA) // the higher version leaves while the lower one is there
		w.expect("1m0s deregister d at /a.sock", "1m0s register d at /b.sock version 1.2.0", "1m0s notify d: registered")
	})
}

func TestHigherVersionThatFailsGivesWay(t *testing.T) {
	story(t, func(_ *testing.T, w *world) {
		w.serve(socketA, registrarOptions{name: "d", endpoint: "/a.sock"})
		w.expect("0s register d at /a.sock version 1.0.0", "0s notify d: registered")
		w.handler.fails = 1
		w.socket(socketB)
		w.expect("0s refused " + socketB)
		w.listen(socketB, registrarOptions{name: "d", endpoint: "/b.sock", versions: []string{"1.1.0"}})
		w.wait(50 * time.Millisecond)
		w.expect("50ms register d at /b.sock version 1.1.0", `50ms notify d: register CSI driver "d": driver is not well`,
			"50ms register d at /a.sock version 1.0.0", "50ms notify d: registered")
	})
}

func TestRegistrarThatDoesNotTakeTheNews(t *testing.T) {
	story(t, func(_ *testing.T, w *world) {
		w.serve(socketA, registrarOptions{name: "d", endpoint: "/d.sock", deaf: 1})
		w.wait(time.Second)
		w.expect("0s register d at /d.sock version 1.0.0", "0s notify d refused", "0s deregister d at /d.sock",
			"500ms register d at /d.sock version 1.0.0", "500ms notify d: registered")
	})
}

func TestSocketThatGoesWhileRegistering(t *testing.T) {
	story(t, func(_ *testing.T, w *world) {
		w.handler.hangs = true
		w.serve(socketA, registrarOptions{name: "d", endpoint: "/d.sock"})
		w.expect("0s register d at /d.sock version 1.0.0")
		w.remove(socketA)
		w.expect("0s deregister d at /d.sock")
	})
}

func TestRefusedPlugins(t *testing.T) {
	cases := map[string]struct {
		reason string
		o      registrarOptions
		want   string
	}{
		"Type": {
			reason: "device plugins use the same directory", o: registrarOptions{typ: "DevicePlugin", name: "gpu"},
			want: `plugin "gpu" at "/registry/a-reg.sock": no handler for plugin type "DevicePlugin", only for "CSIPlugin"`,
		},
		"Name": {
			reason: "the name goes into paths and objects", o: registrarOptions{name: "../etc"}, want: `CSI driver name "../etc"`,
		},
		"NoVersion": {
			reason: "a registrar says what it speaks", o: registrarOptions{name: "d", versions: []string{}}, want: `supported versions: must not be empty`,
		},
		"OldVersion": {
			reason: "0.x is not spoken any more", o: registrarOptions{name: "d", versions: []string{"0.3"}}, want: `supported versions ["0.3"]`,
		},
		"Endpoint": {
			reason: "a relative path would depend on where this process runs", o: registrarOptions{name: "d", endpoint: "d.sock"},
			want: `endpoint "d.sock": must be an absolute path`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.serve(socketA, tc.o)
				w.mu.Lock()
				defer w.mu.Unlock()
				if len(w.lines) != 1 || !strings.Contains(w.lines[0], "notify "+tc.o.name+": ") || !strings.Contains(w.lines[0], tc.want) {
					t.Errorf("%s: got %q, want one notification that says %q", tc.reason, w.lines, tc.want)
				}
				status := w.m.Status()
				if len(status) != 1 || status[0].Registered || !strings.Contains(status[0].Problem, tc.want) {
					t.Errorf("%s: status %+v", tc.reason, status)
				}
			})
		})
	}
}

func TestOptionsOfTheRegistrar(t *testing.T) {
	cases := map[string]struct {
		reason  string
		options *csiregistration.CSIDriverInfo
		want    string
	}{
		"Unknown": {
			reason: "registrars of other projects do not know the question", want: "0s register d at /d.sock version 1.0.0",
		},
		"No": {
			reason: "known, and not wanted", options: &csiregistration.CSIDriverInfo{}, want: "0s register d at /d.sock version 1.0.0",
		},
		"Yes": {
			reason:  "wanted",
			options: &csiregistration.CSIDriverInfo{Options: &csiregistration.CSIDriverOptions{RequiresPublishPod: true}},
			want:    "0s register d at /d.sock version 1.0.0 with pod",
		},
		"Endpoint": {
			reason: "an endpoint overrides that of PluginInfo", options: &csiregistration.CSIDriverInfo{CsiEndpoint: "/other.sock"},
			want: "0s register d at /other.sock version 1.0.0",
		},
		"BadEndpoint": {
			reason: "what cannot be dialled overrides nothing", options: &csiregistration.CSIDriverInfo{CsiEndpoint: "other.sock"},
			want: "0s register d at /d.sock version 1.0.0",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *world) {
				w.serve(socketA, registrarOptions{name: "d", endpoint: "/d.sock", options: tc.options})
				w.expect(tc.want, "0s notify d: registered")
				if t.Failed() {
					t.Log(tc.reason)
				}
			})
		})
	}
}

func TestEndpointDefaultsToTheRegistrationSocket(t *testing.T) {
	story(t, func(_ *testing.T, w *world) {
		w.serve(socketA, registrarOptions{name: "d"})
		w.expect("0s register d at /registry/a-reg.sock version 1.0.0", "0s notify d: registered")
	})
}
