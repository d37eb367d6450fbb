package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/longshore-csi/longshore/devcluster"
)

// kubeconfigEnv is the environment variable that names another cluster than our own.
const kubeconfigEnv = "E2E_KUBECONFIG"

// Bed is a cluster to test on.
type Bed struct {
	Client kubernetes.Interface
	// Driver is the name of the CSI driver.
	Driver string
	// Dev is the development cluster; nil on another one.
	Dev *Dev

	kubeconfig string
	config     *rest.Config
	scenes     atomic.Int32
}

// Dev is what only a development cluster has: processes that can be killed, and disks that can be looked at.
type Dev struct {
	*devcluster.Client
	devcluster.Status
	dir string
	// program is devcluster itself, which contains all components.
	program string
}

// kubeconfig is that of a component's user.
func (d *Dev) kubeconfig(component string) string {
	return filepath.Join(d.dir, "users", component+".kubeconfig")
}

// Up gives a cluster and a function that ends it. The flags are those of devUp.
func Up(ctx context.Context, nodes int, flags ...string) (*Bed, func() error, error) {
	if path := os.Getenv(kubeconfigEnv); path != "" {
		b, err := connect(path)
		return b, func() error { return nil }, err
	}
	if os.Geteuid() != 0 {
		return nil, nil, errors.New("a cluster of our own needs root for its mounts; run as root, or name another cluster by " + kubeconfigEnv)
	}
	return devUp(ctx, nodes, flags...)
}

func connect(kubeconfig string) (*Bed, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	config.QPS, config.Burst = 1000, 2000
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	return &Bed{Client: client, Driver: "hostpath.csi.k8s.io", kubeconfig: kubeconfig, config: config}, nil
}

// devUp starts a development cluster, with more flags of `devcluster up`.
func devUp(ctx context.Context, nodes int, flags ...string) (*Bed, func() error, error) {
	// t.TempDir would have paths that are too long for sockets.
	work, err := os.MkdirTemp("", "e2e-")
	if err != nil {
		return nil, nil, fmt.Errorf("make the directory of the cluster: %w", err)
	}
	program, dir := filepath.Join(work, "devcluster"), filepath.Join(work, "c")
	run := func(name string, args ...string) error {
		cmd := exec.CommandContext(context.WithoutCancel(ctx), name, args...)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		cmd.Dir = "../devcluster"
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s %q: %w", name, args, err)
		}
		return nil
	}
	end := func() error {
		return errors.Join(run(program, "down", "--dir", dir), os.RemoveAll(work))
	}
	if err := run("go", "build", "-o", program, "./cmd/devcluster"); err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(work))
	}
	if err := run(program, append([]string{"up", "--dir", dir, "--audit", "--v=4", fmt.Sprintf("--nodes=%d", nodes)}, flags...)...); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	client := devcluster.Connect(dir)
	status, err := client.Status(ctx, 0)
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	bed, err := connect(status.Kubeconfig)
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	bed.Driver, bed.Dev = status.Drivers[0], &Dev{Client: client, Status: status, dir: dir, program: program}
	return bed, end, nil
}

// ownCluster starts a development cluster for one test alone, which ends with it.
func ownCluster(t testing.TB, nodes int, flags ...string) *Bed {
	t.Helper()
	cluster, down, err := devUp(t.Context(), nodes, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := down(); err != nil {
			t.Error(err)
		}
	})
	return cluster
}
