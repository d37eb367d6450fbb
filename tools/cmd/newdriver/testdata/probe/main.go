// Command probe asks the driver at an address what it can do, and prints each capability in a line. Then it calls methods with empty
// requests, and prints the codes of the answers.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

func main() {
	if err := probe(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func probe(address string, methods []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return err
	}
	defer conn.Close()
	plugin, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return err
	}
	for _, c := range plugin.GetCapabilities() {
		if expansion := c.GetVolumeExpansion(); expansion != nil {
			fmt.Println("Plugin expansion", expansion.GetType())
			continue
		}
		fmt.Println("Plugin", c.GetService().GetType())
	}
	controller, err := csi.NewControllerClient(conn).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return err
	}
	for _, c := range controller.GetCapabilities() {
		fmt.Println("Controller", c.GetRpc().GetType())
	}
	node, err := csi.NewNodeClient(conn).NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return err
	}
	for _, c := range node.GetCapabilities() {
		fmt.Println("Node", c.GetRpc().GetType())
	}
	group, err := csi.NewGroupControllerClient(conn).GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{})
	if err != nil && status.Code(err) != codes.Unimplemented {
		return err
	}
	for _, c := range group.GetCapabilities() {
		fmt.Println("GroupController", c.GetRpc().GetType())
	}
	for _, method := range methods {
		err := conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
		fmt.Println(method, status.Code(err))
	}
	return nil
}
