package csiclient_test

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/csitest"
)

func ExampleClient_Wait() {
	driver := csitest.New(csitest.Options{Name: "hostpath.example"})
	client, err := csiclient.New(csiclient.Config{
		Conn:    driver.Conn(), // a component gives Address: "/run/csi/socket"
		Timeout: 3 * time.Second,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	info, err := client.Wait(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(info.Name, info.Controller[csi.ControllerServiceCapability_RPC_EXPAND_VOLUME])
	// Output: hostpath.example true
}
