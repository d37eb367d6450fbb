package provisioner

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/migration"
	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/claim"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest"
	"github.com/longshore-csi/longshore/provisioner/internal/view"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
	"github.com/longshore-csi/longshore/topology"
)

// idle returns an instance that does not run.
func idle(o *Options) *provisioner { return &provisioner{options: o, identity: "17-4"} }

// TestSettings gives every flag that the controller acts on another value, and finds it where it belongs.
func TestSettings(t *testing.T) {
	t.Setenv(EnvNodeName, "n1")
	base := claim.Settings{
		Naming: volume.Naming{Prefix: "pvc", UUIDLength: -1}, Timeout: 10 * time.Second, Workers: 100,
		Retry: flagset.NewRetry(), Topology: topology.DefaultPolicy(), Identity: "17-4-d",
		Features: capabilities.Features{Topology: true, AttributesClass: true}, SourceWorkers: 1, Drain: 25 * time.Second, KubeTimeout: 30 * time.Second,
	}
	forNode := func(s *claim.Settings) {
		s.Identity = "17-4-d-n1"
		s.Node = view.Node{Name: "n1"}
	}
	cases := map[string]func(*claim.Settings){
		"":                                                    func(*claim.Settings) {},
		"--timeout=1m":                                        func(s *claim.Settings) { s.Timeout = time.Minute },
		"--kube-api-timeout=7s":                               func(s *claim.Settings) { s.KubeTimeout = 7 * time.Second },
		"--worker-threads=7":                                  func(s *claim.Settings) { s.Workers = 7 },
		"--volume-name-prefix=vol":                            func(s *claim.Settings) { s.Naming.Prefix = "vol" },
		"--volume-name-uuid-length=8":                         func(s *claim.Settings) { s.Naming.UUIDLength = 8 },
		"--retry-interval-start=3s":                           func(s *claim.Settings) { s.Retry.Start = 3 * time.Second },
		"--retry-interval-max=9m":                             func(s *claim.Settings) { s.Retry.Max = 9 * time.Minute },
		"--extra-create-metadata":                             func(s *claim.Settings) { s.ExtraCreateMetadata = true },
		"--default-fstype=xfs":                                func(s *claim.Settings) { s.DefaultFSType = "xfs" },
		"--controller-publish-readonly":                       func(s *claim.Settings) { s.PublishReadOnly = true },
		"--strict-topology":                                   func(s *claim.Settings) { s.Topology.Strict = true },
		"--immediate-topology=false":                          func(s *claim.Settings) { s.Topology.Immediate = false },
		"--topology-spread=off":                               func(s *claim.Settings) { s.Topology.Spread = topology.SpreadOff },
		"--topology-filter-allowed":                           func(s *claim.Settings) { s.Topology.FilterAllowed = true },
		"--topology-max-segments=4":                           func(s *claim.Settings) { s.Topology.MaxSegments = 4 },
		"--feature-gates=Topology=false":                      func(s *claim.Settings) { s.Features.Topology = false },
		"--feature-gates=VolumeAttributesClass=false":         func(s *claim.Settings) { s.Features.AttributesClass = false },
		"--termination-grace-period=2m":                       func(s *claim.Settings) { s.Drain = 115 * time.Second },
		"--cloning-protection-threads=9":                      func(s *claim.Settings) { s.SourceWorkers = 9 },
		"--prevent-volume-mode-conversion=false":              func(s *claim.Settings) { s.ModeConversion = true },
		"--node-deployment":                                   forNode,
		"--feature-gates=CrossNamespaceVolumeDataSource=true": func(s *claim.Settings) { s.Features.CrossNamespace = true },
		// These have no effect on the controller, and must have none.
		"--node-deployment-base-delay=3s":                  func(*claim.Settings) {},
		"--feature-gates=ReleaseLeaderElectionOnExit=true": func(*claim.Settings) {},
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
			if diff := cmp.Diff(want, idle(o).settings("d")); diff != "" {
				t.Errorf("settings with %q (-want +got):\n%s", arg, diff)
			}
		})
	}
}

// TestCompetition competes for claims with immediate binding where the flags say so.
func TestCompetition(t *testing.T) {
	t.Setenv(EnvNodeName, "n1")
	for args, want := range map[string]bool{
		"": false, "--node-deployment": true, "--node-deployment --node-deployment-immediate-binding=false": false, "--node-deployment-immediate-binding": false,
	} {
		o, fs := newFlags()
		if err := fs.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		p := idle(o)
		p.kube = kubeapitest.New(kubeapitest.NewCluster().Client())
		if got := p.competition() != nil; got != want {
			t.Errorf("with %q the instance competes: %t, want %t", args, got, want)
		}
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
		Timeout: 30 * time.Second,
	}
	for arg, change := range map[string]func(*view.Config){
		"":                                    func(*view.Config) {},
		"--volume-name-prefix=vol":            func(c *view.Config) { c.Naming.Prefix = "vol" },
		"--snapshot-orphan-sweep-interval=1m": func(c *view.Config) { c.SnapshotSweep = time.Minute },
		"--feature-gates=Topology=false":      func(c *view.Config) { c.Shape.Topology = false },
		"--kube-api-timeout=7s":               func(c *view.Config) { c.Timeout = 7 * time.Second },
		"--node-deployment":                   func(c *view.Config) { c.Node.Name = "n1" },
		"--feature-gates=CrossNamespaceVolumeDataSource=true": func(c *view.Config) { c.Shape.Grants = true },
	} {
		t.Run(strings.TrimLeft(arg, "-"), func(t *testing.T) {
			o, fs := newFlags()
			if err := fs.Parse(strings.Fields(arg)); err != nil {
				t.Fatal(err)
			}
			if err := o.Validate(); err != nil {
				t.Fatal(err)
			}
			want, got := base, idle(o).viewConfig(info)
			change(&want)
			got.Kube = nil
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(migration.Plugin{})); diff != "" {
				t.Errorf("what is watched with %q (-want +got):\n%s", arg, diff)
			}
		})
	}
}

// TestCachesReady follows /readyz from a standby, which is ready to take over, to a leader that still lists.
func TestCachesReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, driver := kubeapitest.NewCluster(newClass()), csitest.New(csitest.Options{})
		if err := (&session{}).Synced(); err != nil {
			t.Errorf("a standby is not ready: %v", err)
		}
		cluster.Fail("list", "persistentvolumes", errors.New("away"), 0)
		cluster.Fail("watch", "persistentvolumes", errors.New("away"), 0)
		p := launch(t, "only", cluster, driver, NewOptions())
		pass(time.Minute)
		if err := p.now.Load().Synced(); err == nil {
			t.Error("ready before the volumes are listed")
		}
		if now, ok := p.now.Load().State().(state); !ok || now.Synced {
			t.Errorf("state %+v, want one of a controller that is not synced", now)
		}
		cluster.Heal()
		pass(5 * time.Minute)
		if err := p.now.Load().Synced(); err != nil {
			t.Errorf("not ready after the volumes are listed: %v", err)
		}
		p.stop(t)
	})
}
