package integration

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikittest/kubetest/conformance"
)

// TestKubetestIsLikeTheServer runs against kube-apiserver what csikittest/kubetest passes: the tests of the controllers rest on the fake. It
// has a server of its own, because controllers would change objects between two requests of a test.
func TestKubetestIsLikeTheServer(t *testing.T) {
	c := ownServer(t, "")
	config := configOf(t, c.dir.Kubeconfig())
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "conformance"}}
	if _, err := clientOf(t, config).CoreV1().Namespaces().Create(t.Context(), space, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	accounts := [2]string{"sa-1", "sa-2"}
	for _, name := range accounts {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := clientOf(t, config).CoreV1().ServiceAccounts(space.Name).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	client, err := kube.New(config)
	if err != nil {
		t.Fatal(err)
	}
	conformance.Run(t, conformance.Server{Client: client, Namespace: space.Name, ServiceAccounts: accounts})
}
