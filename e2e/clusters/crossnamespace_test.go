package clusters

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

const (
	// crossNamespaceRights is the component with the rights of a provisioner that reads ReferenceGrants.
	crossNamespaceRights = "deploy/components/cross-namespace-sources/rbac.yaml"
	// grantKind is as much of the kind of the gateway API as a provisioner looks at.
	grantKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: referencegrants.gateway.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, a part of it for tests"}
spec:
  group: gateway.networking.k8s.io
  names: {kind: ReferenceGrant, plural: referencegrants}
  scope: Namespaced
  versions: [{name: v1beta1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`
	// grant lets claims of a namespace be made from those of another one.
	grant = `
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: copies, namespace: %s}
spec: {from: [{group: "", kind: PersistentVolumeClaim, namespace: %s}], to: [{group: "", kind: PersistentVolumeClaim}]}
`
)

// TestSourceInAnotherNamespace clones a claim of another namespace, in a cluster with the gate, once a ReferenceGrant allows it.
func TestSourceInAnotherNamespace(t *testing.T) {
	dev(t)
	cluster := newCluster(t, 1, "--feature-gates=CrossNamespaceVolumeDataSource=true")
	store, s := &story{cluster.NewScene(t)}, &story{cluster.NewScene(t)}
	s.allowGrants()
	s.Write(testbed.Decode(s.T, grantKind)...)
	driver := csitest.New(csitest.Options{Name: "cross.example.com"})
	class := testbed.Class(s.Namespace+"-cross", "cross.example.com", storagev1.VolumeBindingImmediate)
	s.AddClass(class)
	s.Run("csi-provisioner", "--csi-address="+driver.Serve(t), "--kubeconfig="+s.Dev.KubeconfigOf("csi-provisioner"), "--feature-gates=CrossNamespaceVolumeDataSource=true")
	store.CreateClaim("data", class.Name)
	store.WaitBound("data")

	claim := testbed.Claim(s.Namespace, "copy", class.Name)
	claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "data", Namespace: &store.Namespace}
	s.AddClaim(claim)
	s.WaitEvent("ProvisioningFailed", "no ReferenceGrant in namespace")
	s.Write(testbed.Decode(s.T, fmt.Sprintf(grant, store.Namespace, s.Namespace))...)
	s.WaitBound("copy")
	if n := len(slices.DeleteFunc(driver.Volumes(), func(v csitest.Volume) bool { return v.Source.GetVolume() == nil })); n != 1 {
		t.Errorf("%d volumes were made from another one, want 1", n)
	}
	s.Wait("the source to be free", func(context.Context) (bool, error) {
		return !slices.Contains(store.Claim("data").Finalizers, "provisioner.storage.kubernetes.io/cloning-protection"), nil
	})
	s.DeleteClaim("copy")
	store.DeleteClaim("data")
	s.Wait("the driver to have no volume", func(context.Context) (bool, error) { return len(driver.Volumes()) == 0, nil })
}

// allowGrants gives the provisioner the rights that deploy/ has for sources in other namespaces.
func (s *story) allowGrants() {
	s.T.Helper()
	data, err := os.ReadFile(testbed.Path(crossNamespaceRights))
	if err != nil {
		s.T.Fatal(err)
	}
	role := testbed.Decode(s.T, string(data))[0]
	s.Write(role)
	s.Retry("bind "+role.GetName(), func(ctx context.Context) error {
		_, err := s.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.GetName()}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: role.GetKind(), Name: role.GetName()},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: testbed.ComponentUser + "csi-provisioner"}},
		}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
}
