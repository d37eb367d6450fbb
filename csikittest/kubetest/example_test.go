package kubetest_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// The answer to a write is lost, so it is repeated, and changes nothing any more.
func ExampleCluster_Inject() {
	cluster := kubetest.New(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}})
	cluster.Inject(kubetest.Fault{Verb: "patch", After: true, Err: apierrors.NewTimeoutError("lost", 1), Times: 1})

	volumes := cluster.Client().PersistentVolumes()
	patch := []byte(`{"metadata":{"finalizers":["example/f"]}}`)
	for range 2 {
		pv, err := volumes.Patch(context.Background(), "pv-1", types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			fmt.Println("retry:", apierrors.IsTimeout(err))
			continue
		}
		fmt.Println(pv.Finalizers)
	}
	for _, write := range cluster.Writes() {
		fmt.Println(write.Verb, write.Resource, write.Name, "unchanged:", write.Unchanged)
	}
	// Output:
	// retry: true
	// [example/f]
	// patch persistentvolumes pv-1 unchanged: false
	// patch persistentvolumes pv-1 unchanged: true
}
