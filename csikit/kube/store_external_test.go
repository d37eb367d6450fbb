package kube_test

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/kubetest"
)

// What is kept encoded comes back as it was, and to each reader as its own: one that writes to it changes nothing.
func TestObjectsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	want := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", Annotations: map[string]string{"with": ""}, Labels: map[string]string{"app": "db"}, Finalizers: []string{"example.com/kept"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new(string), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1.5Gi")}},
		},
	}
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New(want)
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
		got.Name, got.Annotations["with"] = "b", "more"
		if again, _ := informer.Get("ns", "a"); cmp.Diff(stored, again) != "" {
			t.Error("a reader has changed the copy")
		}
	})
}
