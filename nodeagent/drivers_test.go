package nodeagent

import (
	"strings"
	"testing"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

func TestDrivers(t *testing.T) {
	conn := csitest.New(csitest.Options{}).Conn()
	cases := map[string]struct {
		reason string
		driver Driver
		err    string
	}{
		"Conn":     {reason: "a driver in memory", driver: Driver{Name: "d.example.com", Conn: conn}},
		"Endpoint": {reason: "a driver with a socket", driver: Driver{Name: "d.example.com", Endpoint: "/run/d.sock"}},
		"Both":     {reason: "it is not clear which to call", driver: Driver{Name: "d.example.com", Conn: conn, Endpoint: "/run/d.sock"}, err: "either"},
		"Neither":  {reason: "there is nothing to call", driver: Driver{Name: "d.example.com"}, err: "either"},
		"Name":     {reason: "no CSINode takes it", driver: Driver{Name: "d!", Conn: conn}, err: "d!"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := defaults()
			o.RootDir = "/root"
			o.Drivers = func(node, rootDir string) []Driver {
				if node != "machine" || rootDir != "/root" {
					t.Errorf("asked for the drivers of node %q in %q", node, rootDir)
				}
				return []Driver{tc.driver}
			}
			all, err := o.drivers()
			if tc.err == "" {
				if err != nil || len(all) != 1 || all[0].Name != tc.driver.Name {
					t.Errorf("%s: got %+v, %v", tc.reason, all, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: got %v, want %q", tc.reason, err, tc.err)
			}
		})
	}
}
