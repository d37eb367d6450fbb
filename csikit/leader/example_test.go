package leader_test

import (
	"context"
	"fmt"

	"github.com/longshore-csi/longshore/csikit/kubetest"
	"github.com/longshore-csi/longshore/csikit/leader"
)

// A component works when it is elected, and releases the Lease when its work has ended.
func ExampleRun() {
	cluster := kubetest.New()
	err := leader.Run(context.Background(), leader.Config{
		Client:    cluster.Client(),
		Namespace: "kube-system",
		Name:      "external-attacher-leader-" + leader.SanitizeName("hostpath.csi.k8s.io"),
		Identity:  "pod-1",
	}, func(context.Context) error {
		fmt.Println("leading by", cluster.Objects("leases")[0].GetName())
		return nil
	})
	fmt.Println(err)
	// Output:
	// leading by external-attacher-leader-hostpath-csi-k8s-io
	// <nil>
}
