package kube_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// What is kept encoded comes back as it was, also when so many others were read meanwhile that it has to be decoded again.
func TestObjectsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	const others = 500
	want := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", Annotations: map[string]string{"with": ""}, Labels: map[string]string{"app": "db"}, Finalizers: []string{"example.com/kept"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new(string), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1.5Gi")}},
		},
	}
	synctest.Test(t, func(t *testing.T) {
		objs := []runtime.Object{want}
		for i := range others {
			objs = append(objs, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("other-", i)}})
		}
		cluster := kubetest.New(objs...)
		claims := cluster.Client().PersistentVolumeClaims("")
		stored, err := cluster.Client().PersistentVolumeClaims("ns").Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		informer := kube.NewInformer(claims, kube.InformerOptions[*corev1.PersistentVolumeClaim]{})
		go func() { _ = informer.Run(t.Context()) }()
		if err := informer.WaitSynced(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, _ := informer.Get("ns", "a")
		if diff := cmp.Diff(stored, got); diff != "" {
			t.Errorf("the copy differs (-API +copy):\n%s", diff)
		}
		if n := len(informer.List()); n != others+1 {
			t.Errorf("%d objects, want %d", n, others+1)
		}
		again, _ := informer.Get("ns", "a")
		if diff := cmp.Diff(stored, again); diff != "" {
			t.Errorf("the copy differs when it is read again (-API +copy):\n%s", diff)
		}
	})
}
