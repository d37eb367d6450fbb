package flagset_test

import (
	"flag"
	"fmt"
	"time"

	"github.com/longshore-csi/longshore/csikit/flagset"
)

// Options of a component that reaches a driver and retries.
func Example() {
	csi, retry := flagset.NewCSI(), flagset.NewRetry()
	csi.Timeout = 10 * time.Second // the component's own default
	var ignored flagset.Ignored

	fs := flag.NewFlagSet("csi-example", flag.ContinueOnError)
	flagset.AddFlags(fs, &csi, &retry)
	ignored.Duration(fs, "connection-timeout", "the connection is awaited for as long as it takes")

	if err := fs.Parse([]string{"-csi-address=csi.sock", "--retry-interval-max=100ms", "--connection-timeout=30s"}); err != nil {
		fmt.Println(err)
	}
	for _, warning := range flagset.Warnings(&ignored) {
		fmt.Println(warning)
	}
	fmt.Println(flagset.Validate(&csi, &retry))
	// Output:
	// --connection-timeout has no effect: the connection is awaited for as long as it takes
	// --csi-address="csi.sock": must be an absolute path
	// --retry-interval-max=100ms: must not be smaller than --retry-interval-start (1s)
}
