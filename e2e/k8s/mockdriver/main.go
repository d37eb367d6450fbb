// Command mockdriver runs the mock driver of Kubernetes' storage tests (k8s.io/kubernetes/test/e2e/storage/drivers/csi-test) as a program: a
// driver that is not of this tree, built with CSI v1.9, for tests of the sidecars and of the node agent. It keeps volumes in memory, mounts nothing, and
// logs each call.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os/signal"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	name := flag.String("driver-name", service.Name, "`name` of the driver, which is also the ID of its only node")
	endpoint := flag.String("endpoint", "/tmp/csi.sock", "`path` of the socket")
	nodeOnly := flag.Bool("node-only", false, "serve inline volumes only: no controller service, no staging")
	flag.Parse()
	if err := run(*name, *endpoint, *nodeOnly); err != nil {
		log.Fatal(err)
	}
}

// run serves the driver until SIGTERM.
func run(name, endpoint string, nodeOnly bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	mock := service.New(service.Config{DriverName: name, DisableAttach: nodeOnly, PermissiveTargetPath: true})
	servers := &driver.CSIDriverServers{Controller: mock, Identity: mock, Node: mock}
	if nodeOnly {
		servers = &driver.CSIDriverServers{Identity: identity{mock}, Node: node{mock}}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", endpoint)
	if err != nil {
		return err
	}
	d := driver.NewCSIDriver(servers)
	if err := d.Start(listener, nil); err != nil {
		return err
	}
	<-ctx.Done()
	d.Stop()
	return nil
}

// identity announces no service besides the node's.
type identity struct{ service.Service }

func (identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// node announces no capability.
type node struct{ service.Service }

func (node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}
