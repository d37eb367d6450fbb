// Package component_test tests what package sidecar leaves out: a component without a driver.
package component_test

import (
	"context"
	"errors"
	"flag"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/component"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/csikittest/sidecartest"
)

var (
	errMissing = errors.New("the kinds are not installed")
	errBroken  = errors.New("broken")
	// errUnsynced is as kube.CheckSynced says it.
	errUnsynced = errors.New("waiting for the first list of StorageClass")
)

// controller waits for its end.
type controller struct{ started chan<- struct{} }

func (c controller) Run(ctx context.Context) error {
	close(c.started)
	<-ctx.Done()
	return nil
}

func (controller) Synced() error { return nil }
func (controller) State() any    { return "idle" }

// config returns a component that waits for installed, and then starts a controller.
func config(installed <-chan struct{}, started chan<- struct{}) component.Config {
	o := component.NewOptions(nil)
	o.HTTP.Endpoint = sidecartest.AnyPort
	return component.Config{
		Name: "example", Options: o, StateKey: "things", Client: kubetest.New().Client(), Host: "host-1",
		Checks: map[string]func(context.Context) error{"kinds": func(context.Context) error {
			select {
			case <-installed:
				return nil
			default:
				return errMissing
			}
		}},
		Names: func(ctx context.Context) (component.Names, error) {
			select {
			case <-installed:
				return component.Names{Events: "example", Lease: "example"}, nil
			case <-ctx.Done():
				return component.Names{}, ctx.Err()
			}
		},
		New: func(context.Context, component.Environment) (component.Work, error) {
			return component.Work{NewController: func() component.Controller { return controller{started} }}, nil
		},
	}
}

// start runs a component.
func start(t *testing.T, cfg component.Config) *sidecartest.Running {
	t.Helper()
	return sidecartest.StartComponent(t, func(ctx context.Context) error { return component.Run(ctx, cfg) })
}

// TestWaits has a component wait for what it needs: it serves and may be stopped meanwhile.
func TestWaits(t *testing.T) {
	installed, started := make(chan struct{}), make(chan struct{})
	waiting := start(t, config(installed, started))
	if code, body := waiting.Get("/readyz"); code != http.StatusInternalServerError || !strings.Contains(body, "[-]kinds failed: "+errMissing.Error()) {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if _, body := waiting.Get("/debug/state"); strings.Contains(body, "things") {
		t.Errorf("/debug/state has a controller: %s", body)
	}
	waiting.Stop()

	r := start(t, config(installed, started))
	close(installed)
	<-started
	if code, body := r.Get("/readyz?verbose"); code != http.StatusOK || !strings.Contains(body, "[+]informer-sync ok") || strings.Contains(body, "driver") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if _, body := r.Get("/debug/state"); !strings.Contains(body, `"things": "idle"`) || !strings.Contains(body, `"leading": true`) {
		t.Errorf("/debug/state: %s", body)
	}
	r.Stop()
}

// TestErrorsEnd ends the component with the error of each of its parts.
func TestErrorsEnd(t *testing.T) {
	installed := make(chan struct{})
	close(installed)
	for name, spoil := range map[string]func(*component.Config){
		"Names": func(c *component.Config) {
			c.Names = func(context.Context) (component.Names, error) { return component.Names{}, errBroken }
		},
		"New": func(c *component.Config) {
			c.New = func(context.Context, component.Environment) (component.Work, error) {
				return component.Work{}, errBroken
			}
		},
		"Beside": func(c *component.Config) {
			work := c.New
			c.New = func(ctx context.Context, env component.Environment) (component.Work, error) {
				w, err := work(ctx, env)
				w.Beside = func(context.Context, func() component.Controller) error { return errBroken }
				return w, err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(installed, make(chan struct{}))
			spoil(&cfg)
			if err := component.Run(klog.NewContext(t.Context(), klog.Logger{}), cfg); !errors.Is(err, errBroken) {
				t.Errorf("ended in %v, want %v", err, errBroken)
			}
		})
	}
}

// TestFlags has no flag that is about a driver.
func TestFlags(t *testing.T) {
	fs, o := flag.NewFlagSet("example", flag.ContinueOnError), component.NewOptions(nil)
	o.AddFlags(fs)
	for _, name := range []string{"secret-namespaces", "exit-on-connection-loss", "timeout", "csi-address"} {
		if fs.Lookup(name) != nil {
			t.Errorf("there is a flag --%s", name)
		}
	}
}

// unsynced waits for a first list that it may not read.
type unsynced struct{ controller }

func (unsynced) Synced() error { return errUnsynced }

// TestUnsyncedIsReported: a component that waits for a first list says so by an event, as the objects that wait for it have none.
func TestUnsyncedIsReported(t *testing.T) {
	for name, tc := range map[string]struct {
		names component.Names
		elect bool
		want  string
	}{
		"OfDriver": {component.Names{About: &corev1.ObjectReference{Kind: "CSIDriver", Name: "d"}}, false, "CSIDriver d"},
		"OfLease":  {component.Names{Lease: "l"}, true, "Lease l"},
		"Nothing":  {component.Names{}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cluster := kubetest.New()
				cfg := config(nil, nil)
				cfg.Options.HTTP.Endpoint, cfg.Client = "", cluster.Client()
				cfg.Options.LeaderElection.Enabled, cfg.Options.LeaderElection.Namespace = tc.elect, "ns"
				tc.names.Events = "example"
				cfg.Names = func(context.Context) (component.Names, error) { return tc.names, nil }
				cfg.New = func(context.Context, component.Environment) (component.Work, error) {
					return component.Work{NewController: func() component.Controller { return unsynced{controller{make(chan struct{})}} }}, nil
				}
				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
				ended := make(chan error, 1)
				go func() { ended <- component.Run(ctx, cfg) }()
				time.Sleep(10 * time.Minute)
				var got []string
				for _, o := range cluster.Objects("events") {
					if e := o.(*corev1.Event); e.Reason == "CachesNotSynced" {
						got = append(got, e.InvolvedObject.Kind+" "+e.InvolvedObject.Name)
					}
				}
				if got := strings.Join(got, ", "); got != tc.want {
					t.Errorf("events about %q, want %q", got, tc.want)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
