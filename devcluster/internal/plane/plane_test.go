package plane_test

import (
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/longshore-csi/longshore/devcluster/internal/planetest"
)

func clientFor(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(planetest.Config(t, kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestControlPlaneRunsAndKnowsItsUsers(t *testing.T) {
	c := planetest.Start(t, true)
	version, err := clientFor(t, c.Dir.Kubeconfig()).Discovery().ServerVersion()
	if err != nil || !strings.HasPrefix(version.GitVersion, "v1.36.") {
		t.Errorf("version %v, %v", version, err)
	}
	kubeconfig, err := c.Plane.User("node-1", "system:node:node-1", "system:nodes")
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
	for _, file := range []string{kubeconfig, c.Dir.Kubeconfig()} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
}

func TestEverythingListensOnLoopback(t *testing.T) {
	c := planetest.Start(t, false)
	for _, spec := range []struct {
		name string
		args []string
	}{
		{"etcd", c.Plane.EtcdSpec().Args},
		{"kube-apiserver", c.Plane.APIServerSpec().Args},
		{"kube-controller-manager", c.Plane.ControllerManagerSpec().Args},
		{"kube-scheduler", c.Plane.SchedulerSpec().Args},
	} {
		for _, arg := range spec.args {
			listens := strings.HasPrefix(arg, "--bind-address=") || strings.HasPrefix(arg, "--listen-")
			if listens && !strings.Contains(arg, "127.0.0.1") {
				t.Errorf("%s listens beyond loopback: %s", spec.name, arg)
			}
		}
	}
	if !strings.HasPrefix(c.Plane.Server(), "https://127.0.0.1:") {
		t.Errorf("server %s", c.Plane.Server())
	}
}

func TestAuditIsAskedFor(t *testing.T) {
	c := planetest.Start(t, false)
	if args := strings.Join(c.Plane.APIServerSpec().Args, " "); strings.Contains(args, "audit") {
		t.Errorf("audit without being asked: %s", args)
	}
	if err := c.Plane.Audit(); err != nil {
		t.Fatal(err)
	}
	if args := strings.Join(c.Plane.APIServerSpec().Args, " "); !strings.Contains(args, "--audit-log-path="+c.Dir.Log("audit")) {
		t.Errorf("no audit: %s", args)
	}
}
