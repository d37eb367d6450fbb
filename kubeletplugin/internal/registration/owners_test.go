package registration

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// at is a plugin that registers through a path.
func at(path string, serial uint64, version string) Plugin {
	return Plugin{Name: "d.example", Version: version, Generation: Generation{Path: path, Serial: serial}}
}

// TestClaimsCheck is who may have a name that is held already.
func TestClaimsCheck(t *testing.T) {
	cases := map[string]struct {
		reason string
		holder *Plugin
		p      Plugin
		ok     bool
	}{
		"Free":        {reason: "nobody has it", p: at("/a", 1, "1.0.0"), ok: true},
		"Itself":      {reason: "it has it", holder: new(at("/a", 1, "1.0.0")), p: at("/a", 1, "1.0.0"), ok: true},
		"Successor":   {reason: "the registrar has restarted", holder: new(at("/a", 1, "1.0.0")), p: at("/a", 2, "1.0.0"), ok: true},
		"Downgrade":   {reason: "its own socket may go back", holder: new(at("/a", 1, "1.2.0")), p: at("/a", 2, "1.0.0"), ok: true},
		"SameVersion": {reason: "the first one keeps it", holder: new(at("/a", 1, "1.0.0")), p: at("/b", 2, "1.0.0")},
		"Lower":       {reason: "the better one keeps it", holder: new(at("/a", 1, "1.2.0")), p: at("/b", 2, "1.1.0")},
		"Higher":      {reason: "an update takes over", holder: new(at("/a", 1, "1.2.0")), p: at("/b", 2, "1.10.0"), ok: true},
		"NotANumber":  {reason: "nothing can be compared", holder: new(at("/a", 1, "1.0.0")), p: at("/b", 2, "latest")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newNameOwners()
			if tc.holder != nil {
				c.hold(*tc.holder)
			}
			err := c.check(tc.p)
			if (err == nil) != tc.ok {
				t.Fatalf("%s: got %v", tc.reason, err)
			}
			if err != nil && (!errors.Is(err, errTaken) || !strings.Contains(err.Error(), tc.holder.Generation.Path)) {
				t.Errorf("%s: error %v, want one that names the holder's socket", tc.reason, err)
			}
		})
	}
}

// TestClaimsChange is what each call does to a name that first holds.
func TestClaimsChange(t *testing.T) {
	first := at("/a", 1, "1.0.0")
	cases := map[string]struct {
		reason string
		do     func(*nameOwners)
		held   bool // by first
		woken  bool
	}{
		"Nothing":         {reason: "as it was", do: func(*nameOwners) {}, held: true},
		"Check":           {reason: "only looks", do: func(c *nameOwners) { _ = c.check(at("/b", 2, "2.0.0")) }, held: true},
		"Drop":            {reason: "let go", do: func(c *nameOwners) { c.drop(first) }, woken: true},
		"DropByOther":     {reason: "another generation has nothing to let go", do: func(c *nameOwners) { c.drop(at("/a", 2, "1.0.0")) }, held: true},
		"Taken":           {reason: "another one holds it", do: func(c *nameOwners) { c.hold(at("/b", 2, "1.1.0")) }, woken: true},
		"ForgetByOther":   {reason: "a higher version has failed and spoiled it", do: func(c *nameOwners) { c.forget(at("/b", 2, "1.1.0")) }, woken: true},
		"ForgetBySame":    {reason: "its successor has failed; it lets go itself", do: func(c *nameOwners) { c.forget(at("/a", 2, "1.0.0")) }, held: true},
		"ForgetUnrelated": {reason: "another name", do: func(c *nameOwners) { c.forget(Plugin{Name: "e.example"}) }, held: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := newNameOwners()
			c.hold(first)
			changed := c.change()
			tc.do(c)
			if held, _ := c.holds(first); held != tc.held {
				t.Errorf("%s: held %t, want %t", tc.reason, held, tc.held)
			}
			select {
			case <-changed:
				if !tc.woken {
					t.Errorf("%s: those who wait for a name were woken", tc.reason)
				}
			default:
				if tc.woken {
					t.Errorf("%s: those who wait for a name were not woken", tc.reason)
				}
			}
		})
	}
}

// TestRetryDelays: fast while the registrar may be about to listen, and slow for everything else.
func TestRetryDelays(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	refused, failed := errUnreachable, errors.New("no")
	cases := map[string]struct {
		reason string
		err    error
		age    time.Duration
		want   []time.Duration
	}{
		"Young":  {reason: "a socket exists before somebody listens", err: refused, want: []time.Duration{50e6, 100e6, 200e6, 400e6, 500e6, 500e6}},
		"Old":    {reason: "nobody will listen any more", err: refused, age: time.Minute, want: []time.Duration{500e6, 1e9, 2e9}},
		"Failed": {reason: "a registrar that answers is not asked in a hurry", err: failed, want: []time.Duration{500e6, 1e9, 2e9, 4e9, 8e9, 16e9, 32e9, 64e9, 122e9, 122e9}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRetry(start)
			for i, want := range tc.want {
				if got := r.next(start.Add(tc.age), tc.err); got != want {
					t.Errorf("%s: delay %d is %v, want %v", tc.reason, i+1, got, want)
				}
			}
		})
	}
	r := newRetry(start)
	for range 5 {
		r.next(start, refused)
	}
	if got := r.next(start, failed); got != retryStart {
		t.Errorf("after refused connections an error waits %v, want %v: they are counted apart", got, retryStart)
	}
}
