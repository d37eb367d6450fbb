package csiclient_test

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/csiclient"
)

// A component waits until its driver is ready, and then knows the driver's name and capabilities.
func ExampleClient_Wait() {
	client, err := csiclient.New(csiclient.Config{
		Address: "/run/csi/socket",
		Timeout: 3 * time.Second,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	info, err := client.Wait(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(info.Name, info.Controller[csi.ControllerServiceCapability_RPC_EXPAND_VOLUME])
}
