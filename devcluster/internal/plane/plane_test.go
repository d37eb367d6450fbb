package plane_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/longshore-csi/longshore/devcluster/internal/build"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
	"github.com/longshore-csi/longshore/devcluster/internal/plane"
	"github.com/longshore-csi/longshore/devcluster/internal/proc"
)

// start brings up the real control plane, building it first where no earlier run has.
func start(t *testing.T) (*plane.Plane, layout.Dir) {
	t.Helper()
	cache, err := layout.Cache()
	if err != nil {
		t.Fatal(err)
	}
	bin, err := build.ControlPlane(t.Context(), build.Config{Module: "../../controlplane", Cache: cache, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	dir := layout.Dir(filepath.Join(t.TempDir(), "c"))
	p, err := plane.New(dir, bin)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := proc.New(ctx)
	t.Cleanup(func() {
		m.Stop()
		cancel()
	})
	for _, spec := range []proc.Spec{p.EtcdSpec(), p.APIServerSpec(), p.ControllerManagerSpec(), p.SchedulerSpec()} {
		if err := m.Start(spec); err != nil {
			t.Fatal(err)
		}
		ready, done := context.WithTimeout(t.Context(), 2*time.Minute)
		err := m.WaitReady(ready, spec.Name)
		done()
		if err != nil {
			log, _ := os.ReadFile(spec.Log)
			t.Fatalf("%v\n%s", err, log)
		}
	}
	return p, dir
}

func clientFor(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestControlPlaneRunsAndKnowsItsUsers(t *testing.T) {
	p, dir := start(t)
	version, err := clientFor(t, dir.Kubeconfig()).Discovery().ServerVersion()
	if err != nil || !strings.HasPrefix(version.GitVersion, "v1.36.") {
		t.Errorf("version %v, %v", version, err)
	}
	kubeconfig, err := p.User("node-1", "system:node:node-1", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	node := clientFor(t, kubeconfig)
	if _, err := node.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a node may list all nodes: the Node authorizer is not at work")
	}
	if _, err := node.StorageV1().CSIDrivers().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a node may not list drivers: %v", err)
	}
	for _, file := range []string{kubeconfig, dir.Kubeconfig()} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
}
