package sidecar_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/sidecar"
	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// TestHung has a driver accept connections and answer nothing: one event on its CSIDriver object says so, and everything is tried again as soon as it answers.
func TestHung(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		hangs  []string // methods, for two minutes
		want   string
		again  bool // all objects are tried again
	}{
		"Hung": {
			reason: "neither a call nor Probe is answered", hangs: []string{"CreateVolume", "Probe"},
			want: "Warning DriverNotResponding x1, Normal DriverResponding x1", again: true,
		},
		"OneCall": {reason: "one call takes long, and Probe is answered", hangs: []string{"CreateVolume"}},
		"Quiet":   {reason: "Probe is not asked as long as no call is late", hangs: []string{"Probe"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				driver, c := csitest.New(csitest.Options{}), &example{}
				config, cluster := c.config(t, "/run/csi/socket")
				config.CSI.Conn = driver.Conn()
				var env sidecar.Environment
				newWork := config.New
				config.New = func(ctx context.Context, e sidecar.Environment) (sidecar.Work, error) {
					env = e
					return newWork(ctx, e)
				}
				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
				ended := begun(func() error { return sidecar.Run(ctx, config) })
				synctest.Wait()
				before := c.count("changed")
				for _, method := range tc.hangs {
					driver.Inject(csitest.Fault{Method: method, Hang: true})
				}
				for range 4 { // all of them are late
					call, stop := context.WithTimeout(ctx, 10*time.Second)
					_, _ = env.CSI.Controller().CreateVolume(call, &csi.CreateVolumeRequest{Name: "a"})
					stop()
				}
				time.Sleep(time.Minute)
				driver.Heal()
				time.Sleep(30 * time.Second)
				var seen []string
				for _, o := range cluster.Objects("events") {
					if e := o.(*corev1.Event); e.InvolvedObject.Kind == "CSIDriver" {
						seen = append(seen, fmt.Sprintf("%s %s x%d", e.Type, e.Reason, e.Count))
					}
				}
				if got := strings.Join(seen, ", "); got != tc.want {
					t.Errorf("%s: events %q, want %q", tc.reason, got, tc.want)
				}
				if again := c.count("changed") > before; again != tc.again {
					t.Errorf("%s: tried again: %t, want %t", tc.reason, again, tc.again)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// begun runs a function, and returns where its error comes.
func begun(run func() error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	return ended
}
