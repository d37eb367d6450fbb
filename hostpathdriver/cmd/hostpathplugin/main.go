// Command hostpathplugin is the hostpath CSI driver.
package main

import (
	"os"

	"github.com/longshore-csi/longshore/csikit/command"
	"github.com/longshore-csi/longshore/hostpathdriver"
)

func main() {
	os.Exit(command.New("hostpathplugin", hostpathdriver.NewOptions, hostpathdriver.Run).Main())
}
