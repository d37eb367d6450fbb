package kube_test

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
)

// A component makes its client from the flags.
func ExampleNew() {
	connect := func(flags flagset.Kube) (kube.Client, error) {
		cfg, err := kube.Config(flags, "csi-example/v1.0.0")
		if err != nil {
			return nil, err
		}
		return kube.New(cfg)
	}
	_, err := connect(flagset.Kube{Kubeconfig: "/no/such/file"})
	fmt.Println(err)
	// Output: load kubeconfig "/no/such/file": stat /no/such/file: no such file or directory
}

// An informer that keeps of each Node its name and one label, and finds Nodes by zone.
func ExampleNewInformer() {
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
	const zone = "topology.kubernetes.io/zone"
	nodes := kube.NewInformer(client.Nodes(), kube.InformerOptions[*corev1.Node]{
		Name:      "Node",
		Transform: kube.SlimNode,
		Index:     map[string]func(*corev1.Node) []string{"zone": func(n *corev1.Node) []string { return []string{n.Labels[zone]} }},
	})

	ctx, cancel := context.WithCancel(context.Background())
	var group errgroup.Group
	group.Go(func() error { return nodes.Run(ctx) })
	if err := nodes.WaitSynced(ctx); err != nil {
		fmt.Println(err)
	}
	for _, node := range nodes.ByIndex("zone", "a") {
		fmt.Println(node.Name, node.Labels)
	}
	cancel()
	if err := group.Wait(); err != nil {
		fmt.Println(err)
	}
}
