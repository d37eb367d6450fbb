package events_test

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
)

// However often something is said, users read it once.
func ExampleNewRecorder() {
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
	recorder, err := events.NewRecorder(events.Config{Client: client, Component: "csi-provisioner"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group errgroup.Group
	group.Go(func() error { return recorder.Run(ctx) })
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}}
	for range 3 {
		recorder.Warning(claim, "ProvisioningFailed", "the pool is full")
	}
	cancel() // what waits is written nevertheless
	if err := group.Wait(); err != nil {
		fmt.Println(err)
	}
}
