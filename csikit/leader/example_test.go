package leader_test

import (
	"context"
	"fmt"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/leader"
)

// A component works when it is elected, and releases the Lease when its work has ended.
func ExampleRun() {
	cfg, err := kube.Config(flagset.Kube{}, "csi-example/v1.0.0")
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := kube.New(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = leader.Run(context.Background(), leader.Config{
		Client:    client,
		Namespace: "kube-system",
		Name:      "external-attacher-leader-" + leader.SanitizeName("hostpath.csi.k8s.io"),
		Identity:  "pod-1",
	}, func(ctx context.Context) error {
		fmt.Println("leading")
		<-ctx.Done()
		return nil
	})
	fmt.Println(err)
}
