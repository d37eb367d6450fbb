package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/devcluster/internal/bootstrap"
	"github.com/longshore-csi/longshore/devcluster/internal/build"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
	"github.com/longshore-csi/longshore/devcluster/internal/plane"
	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

const (
	driver = "d.example.com"
	// auditedReader is a user whose reads are audited.
	auditedReader = "longshore:csi-attacher"
	// modulePath leads to the pins of the control plane.
	modulePath = "../../controlplane"
	// patience only ends a test that would hang.
	patience = 2 * time.Minute
)

// told is what the objects say of the driver.
func told() bootstrap.Driver {
	return bootstrap.Driver{Reference: true, Info: csiclient.Info{Name: driver, Controller: map[csi.ControllerServiceCapability_RPC_Type]bool{
		csi.ControllerServiceCapability_RPC_GET_CAPACITY: true,
	}}}
}

// controlPlane is a control plane without nodes, prepared for the driver.
type controlPlane struct {
	plane *plane.Plane
	dir   layout.Dir
	boot  *bootstrap.Cluster
	procs *proc.Manager
	bin   build.Binaries
	// gates are feature gates, as Name=true,Other=false; "" are the defaults.
	gates string
}

// server is the control plane of all tests. Each test uses objects of its own.
var server *controlPlane

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute) // a machine without the binaries builds them first
	defer cancel()
	work, err := os.MkdirTemp("", "plane-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(work) }()
	server = newControlPlane(filepath.Join(work, "c"))
	defer server.stop()
	if err := server.start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func newControlPlane(dir string) *controlPlane {
	return &controlPlane{dir: layout.Dir(dir), procs: proc.New()}
}

func (c *controlPlane) start(ctx context.Context) error {
	if err := c.startServer(ctx); err != nil {
		return err
	}
	for _, spec := range []proc.Spec{c.plane.ControllerManagerSpec(), c.plane.SchedulerSpec()} {
		if err := c.launch(ctx, spec); err != nil {
			return err
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.dir.Kubeconfig())
	if err != nil {
		return err
	}
	c.boot, err = bootstrap.Apply(ctx, bootstrap.Config{REST: config}, told())
	return err
}

// startServer starts etcd and the API server alone, without controllers.
func (c *controlPlane) startServer(ctx context.Context) error {
	cache, err := layout.Cache()
	if err != nil {
		return err
	}
	c.bin, err = build.ControlPlane(ctx, build.Config{Module: modulePath, Cache: cache, Servers: build.DefaultServers(), Progress: os.Stderr})
	if err != nil {
		return err
	}
	if c.plane, err = plane.New(c.dir, c.bin); err != nil {
		return err
	}
	c.plane.SetFeatureGates(c.gates)
	if err := c.plane.Audit(auditedReader); err != nil {
		return err
	}
	for _, spec := range []proc.Spec{c.plane.EtcdSpec(), c.plane.APIServerSpec()} {
		if err := c.launch(ctx, spec); err != nil {
			return err
		}
	}
	return nil
}

// ownServer starts an API server without controllers, with feature gates, that ends with the test.
func ownServer(t *testing.T, gates string) *controlPlane {
	t.Helper()
	c := newControlPlane(filepath.Join(t.TempDir(), "c"))
	c.gates = gates
	t.Cleanup(c.stop)
	if err := c.startServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *controlPlane) stop() {
	c.procs.Stop()
	if c.plane != nil {
		_ = c.plane.Close() // the process ends anyhow
	}
}

func (c *controlPlane) launch(ctx context.Context, spec proc.Spec) error {
	if err := c.procs.Start(spec); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.procs.WaitReady(ctx, spec.Name); err != nil {
		log, _ := os.ReadFile(spec.Log) // the error says that there is none
		return errors.Join(err, errors.New(string(log)))
	}
	return nil
}

// configOf is the client configuration in a kubeconfig, without limits.
func configOf(t *testing.T, kubeconfig string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

func admin(t *testing.T) *rest.Config {
	t.Helper()
	return configOf(t, server.dir.Kubeconfig())
}

// userConfig makes a certificate for a user of the API server.
func userConfig(t *testing.T, user string, groups ...string) *rest.Config {
	t.Helper()
	kubeconfig, err := server.plane.User(t.Name()[len("Test"):], user, groups...)
	if err != nil {
		t.Fatal(err)
	}
	return configOf(t, kubeconfig)
}

func clientOf(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// eventually asks until it gets no complaint.
func eventually(t *testing.T, what string, complaint func(context.Context) string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		said := complaint(ctx)
		if said == "" {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %s", what, said)
		}
	}
}

// unique makes a name that no earlier run of the test has used: a namespace goes slowly.
func unique(name string) string { return fmt.Sprintf("%s-%d", name, time.Now().UnixNano()) }
