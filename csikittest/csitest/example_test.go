package csitest_test

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// A driver that dies after it has made the volume, and is asked again.
func ExampleDriver_Inject() {
	driver := csitest.New(csitest.Options{})
	driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: codes.Unavailable, Times: 1})
	client := csi.NewControllerClient(driver.Conn())
	for range 2 {
		_, err := client.CreateVolume(context.Background(), create("data"))
		fmt.Println(status.Code(err), len(driver.Volumes()))
	}
	// Output:
	// Unavailable 1
	// OK 1
}

// What a caller did against the life cycle.
func ExampleDriver_Violations() {
	driver := csitest.New(csitest.Options{})
	driver.AddVolume(csitest.Volume{ID: "vol-1"})
	_, err := csi.NewNodeClient(driver.Conn()).NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{
		VolumeId: "vol-1", StagingTargetPath: "/stage", VolumeCapability: writer(),
	})
	fmt.Println(status.Code(err))
	fmt.Println(driver.Violations()[0])
	// Output:
	// FailedPrecondition
	// NodeStageVolume of "vol-1" on node "node-1", to which the controller has not published it
}
