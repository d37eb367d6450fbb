package hostpathdriver_test

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/longshore-csi/longshore/hostpathdriver"
)

// A program with flags of its own, which embeds the driver.
func ExampleOptions_AddFlags() {
	options := hostpathdriver.NewOptions()
	flags := flag.NewFlagSet("my-program", flag.ContinueOnError)
	options.AddFlags(flags)
	if err := flags.Parse([]string{"--nodeid=node-1", "--mode=all", "--capacity=fast=100Gi"}); err != nil {
		fmt.Println(err)
	}
	fmt.Println(options.NodeID, options.Mode, options.Capacity["fast"])
	// Output: node-1 all 107374182400
}

// Validate names everything that is wrong, in the words of the flags.
func ExampleOptions_Validate() {
	options := hostpathdriver.NewOptions()
	options.NodeID = "../etc"
	options.StateDir = "data"
	fmt.Println(options.Validate())
	// Output:
	// --nodeid: node id "../etc": must start with a letter, a digit or an underscore: invalid argument
	// --statedir="data": must be an absolute path other than /
}

// Run serves until its context ends. A second instance may run in the same
// process, with another node id or state directory.
func ExampleRun() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	cancel() // a real program waits for a signal
	options := hostpathdriver.NewOptions()
	options.NodeID = "" // and has a node id
	if err := hostpathdriver.Run(ctx, options); err != nil {
		fmt.Println(err)
	}
	// Output: --nodeid: node id: must not be empty: invalid argument
}
