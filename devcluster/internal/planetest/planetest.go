// Package planetest starts the real control plane for a test of this module and ends it with the test.
//
// The binaries come from the same cache as those of `devcluster up`; a machine that has none builds them, which takes minutes.
package planetest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/longshore-csi/longshore/devcluster/internal/build"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
	"github.com/longshore-csi/longshore/devcluster/internal/plane"
	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

// modulePath leads from a package below internal/ to the pins of the control plane.
const modulePath = "../../controlplane"

// Cluster is a running control plane without nodes.
type Cluster struct {
	Plane *plane.Plane
	Dir   layout.Dir
}

// Start runs etcd and the API server, and with controllers also the controller manager and the scheduler.
func Start(t *testing.T, controllers bool) *Cluster {
	t.Helper()
	cache, err := layout.Cache()
	if err != nil {
		t.Fatal(err)
	}
	bin, err := build.ControlPlane(t.Context(), build.Config{Module: modulePath, Cache: cache, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	dir := layout.Dir(filepath.Join(t.TempDir(), "c"))
	p, err := plane.New(dir, bin)
	if err != nil {
		t.Fatal(err)
	}
	specs := []proc.Spec{p.EtcdSpec(), p.APIServerSpec()}
	if controllers {
		specs = append(specs, p.ControllerManagerSpec(), p.SchedulerSpec())
	}
	run(t, specs)
	return &Cluster{Plane: p, Dir: dir}
}

func run(t *testing.T, specs []proc.Spec) {
	t.Helper()
	m := proc.New()
	t.Cleanup(m.Stop)
	for _, spec := range specs {
		if err := m.Start(spec); err != nil {
			t.Fatal(err)
		}
		ready, done := context.WithTimeout(t.Context(), 2*time.Minute)
		err := m.WaitReady(ready, spec.Name)
		done()
		if err != nil {
			log, _ := os.ReadFile(spec.Log) // the error says that there is none
			t.Fatalf("%v\n%s", err, log)
		}
	}
}

// Config is the client configuration that a kubeconfig describes.
func Config(t *testing.T, kubeconfig string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return config
}
