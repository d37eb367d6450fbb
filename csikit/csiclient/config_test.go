package csiclient

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseAddress(t *testing.T) {
	cases := map[string]struct {
		reason  string
		address string
		want    target
		err     string
	}{
		"Path":        {reason: "an absolute path", address: "/run/csi/socket", want: target{"unix", "/run/csi/socket"}},
		"URL":         {reason: "the same as URL", address: "unix:///run/csi/socket", want: target{"unix", "/run/csi/socket"}},
		"ShortURL":    {reason: "the form of gRPC's own targets", address: "unix:/run/csi/socket", want: target{"unix", "/run/csi/socket"}},
		"OddPath":     {reason: "a path is not a URL", address: "/run/50%/a?b#c", want: target{"unix", "/run/50%/a?b#c"}},
		"TCP":         {reason: "where no unix socket is at hand", address: "tcp://127.0.0.1:10000", want: target{"tcp", "127.0.0.1:10000"}},
		"Empty":       {reason: "nothing", err: "must be the path"},
		"EmptyURL":    {reason: "a scheme only", address: "unix://", err: "must be the path"},
		"EmptyTCP":    {reason: "a scheme only", address: "tcp://", err: "host and port are missing"},
		"Relative":    {reason: "depends on the working directory", address: "csi.sock", err: "must be absolute"},
		"RelativeURL": {reason: "depends on the working directory", address: "unix://csi.sock", err: "must be absolute"},
		"OtherScheme": {reason: "not supported", address: "http://localhost", err: "the scheme must be"},
		"TooLong":     {reason: "the kernel would refuse it with a riddle", address: "/" + strings.Repeat("x", 107), err: "must not exceed 107 bytes, this one has 108"},
		"JustFits":    {reason: "the longest one", address: "/" + strings.Repeat("x", 106), want: target{"unix", "/" + strings.Repeat("x", 106)}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parseAddress(c.address)
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("%s: error %v, want %q", c.reason, err, c.err)
			}
			if err != nil && !strings.Contains(err.Error(), c.address) {
				t.Errorf("%s: error %q does not name the address", c.reason, err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(target{})); diff != "" {
				t.Errorf("%s: target (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, seed := range []string{"", "/run/csi/socket", "unix:///a", "unix://", "tcp://h:1", "http://x", "a/b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, address string) {
		to, err := parseAddress(address)
		if err != nil {
			return
		}
		if to.network == "unix" && (!strings.HasPrefix(to.address, "/") || len(to.address) > maxSocketPath) {
			t.Errorf("parseAddress(%q) = %v", address, to)
		}
		if !strings.HasSuffix(address, to.address) {
			t.Errorf("parseAddress(%q) = %v: not part of the input", address, to)
		}
	})
}

func TestNewReportsEverything(t *testing.T) {
	_, err := New(Config{Address: "rel", Timeout: -1, Poll: -time.Second, LogEvery: -1, MaxLogLength: -1})
	if err == nil {
		t.Fatal("New accepted an invalid config")
	}
	for _, part := range []string{`CSI address "rel"`, "timeout -1ns", "poll interval -1s", "log interval -1ns", "maximum log length -1"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}
