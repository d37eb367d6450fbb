package provisioner

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikit/procmetrics"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/controller"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/migration"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// idle returns an instance that does not run.
func idle(t *testing.T, o Options, driver *csitest.Driver) *instance {
	t.Helper()
	client, err := csiclient.New(csiclient.Config{Conn: driver.Conn()})
	if err != nil {
		t.Fatal(err)
	}
	return newInstance(o, environment{kube: kubeapitest.New(kubetest.New().Client()), driver: client, registry: procmetrics.NewRegistry(), identity: "17-4"})
}

// TestSettings gives every flag that the controller acts on another value, and finds it where it belongs.
func TestSettings(t *testing.T) {
	t.Setenv(EnvNodeName, "n1")
	base := controller.Settings{
		Naming: volume.Naming{Prefix: "pvc", UUIDLength: -1}, Timeout: 10 * time.Second, Workers: 100,
		Retry: flagset.NewRetry(), Topology: topology.DefaultPolicy(), Identity: "17-4-d",
		Features: controller.Features{Topology: true, AttributesClass: true}, SourceWorkers: 1, Shutdown: 20 * time.Second,
	}
	forNode := func(s *controller.Settings) {
		s.Identity = "17-4-d-n1"
		s.Node = controller.Node{Node: view.Node{Name: "n1"}, Immediate: true, BaseDelay: 20 * time.Second, MaxDelay: time.Minute}
	}
	cases := map[string]func(*controller.Settings){
		"":                                            func(*controller.Settings) {},
		"--timeout=1m":                                func(s *controller.Settings) { s.Timeout = time.Minute },
		"--worker-threads=7":                          func(s *controller.Settings) { s.Workers = 7 },
		"--volume-name-prefix=vol":                    func(s *controller.Settings) { s.Naming.Prefix = "vol" },
		"--volume-name-uuid-length=8":                 func(s *controller.Settings) { s.Naming.UUIDLength = 8 },
		"--retry-interval-start=3s":                   func(s *controller.Settings) { s.Retry.Start = 3 * time.Second },
		"--retry-interval-max=9m":                     func(s *controller.Settings) { s.Retry.Max = 9 * time.Minute },
		"--extra-create-metadata":                     func(s *controller.Settings) { s.ExtraCreateMetadata = true },
		"--default-fstype=xfs":                        func(s *controller.Settings) { s.DefaultFSType = "xfs" },
		"--controller-publish-readonly":               func(s *controller.Settings) { s.PublishReadOnly = true },
		"--strict-topology":                           func(s *controller.Settings) { s.Topology.Strict = true },
		"--immediate-topology=false":                  func(s *controller.Settings) { s.Topology.Immediate = false },
		"--topology-spread=off":                       func(s *controller.Settings) { s.Topology.Spread = topology.SpreadOff },
		"--topology-filter-allowed":                   func(s *controller.Settings) { s.Topology.FilterAllowed = true },
		"--topology-max-segments=4":                   func(s *controller.Settings) { s.Topology.MaxSegments = 4 },
		"--feature-gates=Topology=false":              func(s *controller.Settings) { s.Features.Topology = false },
		"--feature-gates=VolumeAttributesClass=false": func(s *controller.Settings) { s.Features.AttributesClass = false },
		"--termination-grace-period=2m":               func(s *controller.Settings) { s.Shutdown = 110 * time.Second },
		"--cloning-protection-threads=9":              func(s *controller.Settings) { s.SourceWorkers = 9 },
		"--prevent-volume-mode-conversion=false":      func(s *controller.Settings) { s.ModeConversion = true },
		"--node-deployment":                           forNode,
		"--node-deployment --node-deployment-immediate-binding=false": func(s *controller.Settings) { forNode(s); s.Node.Immediate = false },
		"--node-deployment --node-deployment-base-delay=3s":           func(s *controller.Settings) { forNode(s); s.Node.BaseDelay = 3 * time.Second },
		"--node-deployment --node-deployment-max-delay=3m":            func(s *controller.Settings) { forNode(s); s.Node.MaxDelay = 3 * time.Minute },
		"--feature-gates=CrossNamespaceVolumeDataSource=true":         func(s *controller.Settings) { s.Features.CrossNamespace = true },
		// These have no effect on the controller, and must have none.
		"--node-deployment-base-delay=3s":                  func(*controller.Settings) {},
		"--feature-gates=ReleaseLeaderElectionOnExit=true": func(*controller.Settings) {},
	}
	for arg, change := range cases {
		t.Run(strings.TrimLeft(arg, "-"), func(t *testing.T) {
			o, fs := newFlags()
			if err := fs.Parse(strings.Fields(arg)); err != nil {
				t.Fatal(err)
			}
			if err := o.Validate(); err != nil {
				t.Fatal(err)
			}
			want := base
			change(&want)
			if diff := cmp.Diff(want, idle(t, *o, csitest.New(csitest.Options{})).settings("d")); diff != "" {
				t.Errorf("settings with %q (-want +got):\n%s", arg, diff)
			}
		})
	}
}

// TestViewConfig gives every flag that decides what is watched another value.
func TestViewConfig(t *testing.T) {
	t.Setenv(EnvNodeName, "n1")
	t.Setenv(EnvNamespace, "storage")
	info := &csiclient.Info{
		Name:       "d",
		Plugin:     map[csi.PluginCapability_Service_Type]bool{csi.PluginCapability_Service_CONTROLLER_SERVICE: true, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS: true},
		Controller: map[csi.ControllerServiceCapability_RPC_Type]bool{csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME: true},
	}
	base := view.Config{
		Driver: "d", Shape: view.Shape{Topology: true, Attachments: true}, Naming: volume.Naming{Prefix: "pvc", UUIDLength: -1}, SnapshotSweep: 5 * time.Minute,
	}
	for arg, change := range map[string]func(*view.Config){
		"":                                    func(*view.Config) {},
		"--volume-name-prefix=vol":            func(c *view.Config) { c.Naming.Prefix = "vol" },
		"--snapshot-orphan-sweep-interval=1m": func(c *view.Config) { c.SnapshotSweep = time.Minute },
		"--feature-gates=Topology=false":      func(c *view.Config) { c.Shape.Topology = false },
		"--node-deployment":                   func(c *view.Config) { c.Node.Name = "n1" },
		"--feature-gates=CrossNamespaceVolumeDataSource=true": func(c *view.Config) { c.Shape.Grants = true },
		"--enable-capacity --capacity-ownerref-level=-1":      func(c *view.Config) { c.KeepAffinity = true },
	} {
		t.Run(strings.TrimLeft(arg, "-"), func(t *testing.T) {
			o, fs := newFlags()
			if err := fs.Parse(strings.Fields(arg)); err != nil {
				t.Fatal(err)
			}
			if err := o.Validate(); err != nil {
				t.Fatal(err)
			}
			want, got := base, idle(t, *o, csitest.New(csitest.Options{})).viewConfig(info)
			change(&want)
			got.Kube = nil
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(migration.Plugin{})); diff != "" {
				t.Errorf("what is watched with %q (-want +got):\n%s", arg, diff)
			}
		})
	}
}

func TestDriverReady(t *testing.T) {
	cases := map[string]struct {
		reason string
		spoil  func(d *csitest.Driver)
		want   string
	}{
		"Ready":    {reason: "A driver that is ready is.", spoil: func(*csitest.Driver) {}},
		"NotReady": {reason: "A driver may say that it is not.", spoil: func(d *csitest.Driver) { d.SetReady(false) }, want: "not ready"},
		"Fails": {reason: "A driver that fails is not, for the reason that it says.", spoil: func(d *csitest.Driver) {
			d.Inject(csitest.Fault{Method: "Probe", Code: codes.Internal, Message: "no disk"})
		}, want: "no disk"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			driver := csitest.New(csitest.Options{})
			tc.spoil(driver)
			err := idle(t, NewOptions(), driver).driver.Ready(t.Context())
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s\nerror %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}

// TestCachesReady follows /readyz from a standby, which is ready to take over, to a leader that still lists.
func TestCachesReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver := kubetest.New(newClass()), csitest.New(csitest.Options{})
		if err := idle(t, NewOptions(), driver).cachesReady(t.Context()); err != nil {
			t.Errorf("a standby is not ready: %v", err)
		}
		cluster.Fail("list", "persistentvolumes", errors.New("away"), 0)
		cluster.Fail("watch", "persistentvolumes", errors.New("away"), 0)
		p := launch(t, "only", cluster, driver, NewOptions())
		pass(time.Minute)
		if err := p.cachesReady(t.Context()); err == nil {
			t.Error("ready before the volumes are listed")
		}
		if state, ok := p.state().(instanceState); !ok || state.Controller == nil || state.Controller.Synced {
			t.Errorf("state %+v, want one of a controller that is not synced", state)
		}
		cluster.Heal()
		pass(5 * time.Minute)
		if err := p.cachesReady(t.Context()); err != nil {
			t.Errorf("not ready after the volumes are listed: %v", err)
		}
		p.stop(t)
	})
}

// TestListen checks what is served with which flags.
func TestListen(t *testing.T) {
	cases := map[string]struct {
		reason string
		args   string
		// want is the status of each path; no paths: nothing listens.
		want map[string]int
	}{
		"Nothing": {
			reason: "Without a flag nothing listens.",
		},
		"Endpoint": {
			reason: "What was not asked for is not there.",
			args:   "--http-endpoint=127.0.0.1:0",
			want: map[string]int{
				"/metrics": http.StatusOK, "/healthz": http.StatusOK, "/livez": http.StatusOK, "/readyz": http.StatusOK, "/debug/state": http.StatusOK,
				"/healthz/leader-election": http.StatusNotFound, "/debug/pprof/": http.StatusNotFound,
			},
		},
		"Address": {
			reason: "The deprecated flag serves the same.",
			args:   "--metrics-address=127.0.0.1:0",
			want:   map[string]int{"/metrics": http.StatusOK, "/readyz": http.StatusOK},
		},
		"Everything": {
			reason: "What was asked for is there; an instance that does not lead has no lease to lose.",
			args:   "--http-endpoint=127.0.0.1:0 --metrics-path=/m --leader-election --enable-pprof",
			want: map[string]int{
				"/m": http.StatusOK, "/metrics": http.StatusNotFound, "/healthz/leader-election": http.StatusOK, "/debug/pprof/": http.StatusOK,
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o, fs := newFlags()
			if err := fs.Parse(strings.Fields(tc.args)); err != nil {
				t.Fatal(err)
			}
			server, err := idle(t, *o, csitest.New(csitest.Options{})).listen(klog.Logger{})
			if err != nil || (server != nil) != (tc.want != nil) {
				t.Fatalf("%s\nserver %v, %v, want one: %v", tc.reason, server, err, tc.want != nil)
			}
			if server == nil {
				return
			}
			ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
			ended := make(chan error, 1)
			go func() { ended <- server.Run(ctx) }()
			for path, want := range tc.want {
				if code, body := get(t, server.Addr(), path); code != want {
					t.Errorf("%s\nGET %s: %d, want %d: %s", tc.reason, path, code, want, body)
				}
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEndpointThatIsTaken ends the instance at once: a health check that nobody serves would have it killed
// over and over without a word.
func TestEndpointThatIsTaken(t *testing.T) {
	o := NewOptions()
	o.HTTP.Endpoint = "127.0.0.1:0"
	first, err := idle(t, o, csitest.New(csitest.Options{})).listen(klog.Logger{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
	ended := make(chan error, 1)
	go func() { ended <- first.Run(ctx) }()
	o.HTTP.Endpoint = first.Addr()
	second := idle(t, o, csitest.New(csitest.Options{})).environment
	second.registry = procmetrics.NewRegistry()
	if err := run(ctx, o, second); err == nil || !strings.Contains(err.Error(), first.Addr()) {
		t.Errorf("error %v, want one that names %s", err, first.Addr())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestWithoutCancel(t *testing.T) {
	other := errors.New("other")
	cases := map[string]struct {
		reason string
		err    error
		want   error
	}{
		"None":     {reason: "No error stays none."},
		"Canceled": {reason: "The end of the context is no news.", err: fmt.Errorf("wait for lists: %w", context.Canceled)},
		"Lost":     {reason: "Package leader logs the loss of the lease.", err: fmt.Errorf("wait for lists: %w", leader.ErrLost)},
		"Other":    {reason: "Every other error is returned.", err: other, want: other},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := withoutCancel(tc.err); !errors.Is(got, tc.want) || (got == nil) != (tc.want == nil) {
				t.Errorf("%s\ngot %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}

// TestFeaturesDecideWhatIsWatched switches topology off for a driver that has it.
func TestFeaturesDecideWhatIsWatched(t *testing.T) {
	info := &csiclient.Info{Plugin: map[csi.PluginCapability_Service_Type]bool{csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS: true}}
	for arg, want := range map[string]bool{"--feature-gates=Topology=true": true, "--feature-gates=Topology=false": false} {
		o, fs := newFlags()
		if err := fs.Parse([]string{arg}); err != nil {
			t.Fatal(err)
		}
		p := idle(t, *o, csitest.New(csitest.Options{}))
		if got := controller.ShapeOf(info, p.features()).Topology; got != want {
			t.Errorf("%s: nodes are watched: %v, want %v", arg, got, want)
		}
	}
}

// TestServerWithoutVolumeAttributesClasses has an API server that does not serve them, as before Kubernetes 1.34: claims that
// name one are served without it, unless the user has set the gate. They used to wait forever.
func TestServerWithoutVolumeAttributesClasses(t *testing.T) {
	absent := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, "", "404 page not found", 0, true)
	cases := map[string]struct {
		reason string
		flags  string
		want   int
	}{
		"Default": {reason: "The feature is off where it does not exist.", want: 1},
		"Off":     {reason: "It is off.", flags: "VolumeAttributesClass=false", want: 1},
		"On":      {reason: "A user who has set the gate learns that it cannot work.", flags: "VolumeAttributesClass=true"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim, gold := newClaim("a"), "gold"
				claim.Spec.VolumeAttributesClassName = &gold
				cluster := kubetest.New(newClass(), claim)
				cluster.Fail("get", "volumeattributesclasses", absent, 0)
				o := NewOptions()
				if err := o.Features.Set(tc.flags); err != nil {
					t.Fatal(err)
				}
				p := launch(t, "first", cluster, csitest.New(csitest.Options{}), o)
				pass(time.Minute)
				p.stop(t)
				found := cluster.Objects("persistentvolumes")
				if len(found) != tc.want {
					t.Fatalf("%s\n%d volumes, want %d", tc.reason, len(found), tc.want)
				}
				for _, obj := range found {
					if pv, ok := obj.(*corev1.PersistentVolume); !ok || pv.Spec.VolumeAttributesClassName != nil {
						t.Errorf("%s\nthe PersistentVolume names a class: %v", tc.reason, obj)
					}
				}
			})
		})
	}
}
