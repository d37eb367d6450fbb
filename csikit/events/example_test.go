package events_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/events"
	"github.com/longshore-csi/longshore/csikit/kubetest"
)

// However often something is said, users read it once.
func ExampleNewRecorder() {
	cluster := kubetest.New()
	recorder, err := events.NewRecorder(events.Config{Client: cluster.Client(), Component: "csi-provisioner"})
	if err != nil {
		fmt.Println(err)
		return
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}}
	for range 3 {
		recorder.Warning(claim, "ProvisioningFailed", "the pool is full")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // what waits is written nevertheless
	if err := recorder.Run(ctx); err != nil {
		fmt.Println(err)
	}
	for _, obj := range cluster.Objects("events") {
		if event, ok := obj.(*corev1.Event); ok {
			fmt.Println(event.Type, event.Reason, event.InvolvedObject.Name, event.Message)
		}
	}
	// Output: Warning ProvisioningFailed data the pool is full
}
