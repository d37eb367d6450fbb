package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/longshore-csi/longshore/devcluster"
)

// KubeconfigEnv is the environment variable with the path of an administrator's kubeconfig. If it is set, tests use that cluster, and start none to share.
const KubeconfigEnv = "E2E_KUBECONFIG"

// ControlPlaneEnv is the environment variable with the directory whose go.mod pins the control plane of development clusters. If it is not set, that
// is devcluster/controlplane.
const ControlPlaneEnv = "E2E_CONTROLPLANE"

// Bed is a cluster to test on.
type Bed struct {
	// Client has the rights of an administrator, and a limit of 1000 requests per second.
	Client kubernetes.Interface
	// Driver is the name of the CSI driver.
	Driver string
	// Dev is the development cluster; nil on another one.
	Dev *Dev
	// Kubeconfig is the path of an administrator's kubeconfig, and Config its content.
	Kubeconfig string
	Config     *rest.Config

	// scenes is the number of scenes so far.
	scenes atomic.Int32
}

// Dev is what only a development cluster has: processes that can be killed, and disks that can be looked at. Status is that after the start.
type Dev struct {
	*devcluster.Client
	devcluster.Status
	dir string
	// Program is the path of devcluster itself, which contains all components.
	Program string
}

// KubeconfigOf returns the path of the kubeconfig of a component's user, "csi-attacher" for instance.
func (d *Dev) KubeconfigOf(component string) string {
	return filepath.Join(d.dir, "users", component+".kubeconfig")
}

// Socket returns the path of the socket of the driver for the controller.
func (d *Dev) Socket() string { return filepath.Join(d.dir, "run", "csi.sock") }

// Prepare sets the environment of the components that tests start: they run as in a pod of the driver's namespace. It reports whether the tests of the package
// of this name can run; if not, it prints why all of them are skipped. The error is that of the environment.
func Prepare(name string) (ok bool, err error) {
	if os.Getenv(KubeconfigEnv) == "" && os.Geteuid() != 0 {
		fmt.Printf("skipped all of %s: needs root for mounts, or another cluster named by %s\n", name, KubeconfigEnv)
		return false, nil
	}
	if err := os.Setenv("POD_NAMESPACE", devcluster.Namespace); err != nil {
		return false, fmt.Errorf("name the namespace of components: %w", err)
	}
	return true, nil
}

// Up returns the cluster that KubeconfigEnv names, or starts a development cluster with so many nodes and further flags of `devcluster up`, which takes
// half a minute. The function that it returns stops and removes a cluster that Up has started. A start needs root.
func Up(ctx context.Context, nodes int, flags ...string) (*Bed, func() error, error) {
	if path := os.Getenv(KubeconfigEnv); path != "" {
		b, err := connect(path)
		return b, func() error { return nil }, err
	}
	if os.Geteuid() != 0 {
		return nil, nil, errors.New("a cluster of our own needs root for its mounts; run as root, or name another cluster by " + KubeconfigEnv)
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
	return &Bed{Client: client, Driver: "hostpath.csi.k8s.io", Kubeconfig: kubeconfig, Config: config}, nil
}

// devUp starts a development cluster, with further flags of `devcluster up`.
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
		cmd.Dir = Path("devcluster")
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
	up := []string{"up", "--dir", dir, "--audit", "--v=4", fmt.Sprintf("--nodes=%d", nodes), "--controlplane=" + os.Getenv(ControlPlaneEnv)}
	if err := run(program, slices.Concat(up, flags)...); err != nil {
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
	bed.Driver, bed.Dev = status.Drivers[0], &Dev{Client: client, Status: status, dir: dir, Program: program}
	return bed, end, nil
}

// OwnCluster starts a development cluster with so many nodes and further flags of `devcluster up` for one test, whatever KubeconfigEnv names. It ends with the
// test, which fails if the cluster does not start or stop.
func OwnCluster(t testing.TB, nodes int, flags ...string) *Bed {
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
