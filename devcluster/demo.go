package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/devcluster/internal/demo"
	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

// DemoOptions say where Demo shows the examples.
type DemoOptions struct {
	// Dir is the directory of a development cluster.
	Dir string
	// Kubeconfig is that of another cluster; then Dir is not looked at.
	Kubeconfig string
	// Examples is the directory with the example files; empty: examples/ in the checkout around the working directory.
	Examples string
}

// Demo applies the examples to a running cluster, prints each step, shows where the data is stored and deletes everything again.
// It fails when any step of the volumes' life did not happen.
func Demo(ctx context.Context, o DemoOptions, out io.Writer) error {
	if o.Examples == "" {
		o.Examples = findUpwards(filepath.Join("examples", "1-claim.yaml"))
	}
	if o.Examples == "" {
		return errors.New("no examples/ around the working directory: run the demo in a checkout, or name the directory by --examples")
	}
	config := demo.Config{Examples: o.Examples, Out: out}
	if o.Kubeconfig == "" {
		status, err := Connect(o.Dir).Status(ctx, 0)
		if err != nil {
			return err
		}
		if status.Phase != Running {
			return fmt.Errorf("the cluster in %s is %s, not %s", o.Dir, status.Phase, Running)
		}
		o.Kubeconfig, config.StateDir = status.Kubeconfig, status.StateDir
		config.Dir = o.Dir
		config.NodeDir = layout.Dir(o.Dir).Node
		if config.NoSnapshots, err = noSnapshots(ctx, layout.Dir(o.Dir).ControllerSocket("")); err != nil {
			return err
		}
	}
	var err error
	if config.REST, err = clientcmd.BuildConfigFromFlags("", o.Kubeconfig); err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.REST.QPS, config.REST.Burst = 100, 200
	return demo.Run(ctx, config)
}

// noSnapshots asks the driver at a socket whether it takes snapshots, and returns the reason if it does not.
func noSnapshots(ctx context.Context, socket string) (reason string, err error) {
	client, err := csiclient.New(csiclient.Config{Address: socket, Timeout: 5 * time.Second})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	info, err := client.Wait(ctx)
	if err != nil {
		return "", errors.Join(fmt.Errorf("ask the driver for its capabilities: %w", err), client.Close())
	}
	if !info.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT] {
		reason = fmt.Sprintf("driver %s does not announce CREATE_DELETE_SNAPSHOT", info.Name)
	}
	return reason, client.Close()
}

// findUpwards looks for a file from the working directory upwards and returns the directory that holds it, or "".
func findUpwards(file string) string {
	dir, err := os.Getwd()
	for err == nil {
		if _, statErr := os.Stat(filepath.Join(dir, file)); statErr == nil {
			return filepath.Join(dir, filepath.Dir(file))
		}
		if filepath.Dir(dir) == dir {
			break
		}
		dir = filepath.Dir(dir)
	}
	return ""
}
