package e2e

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
)

const (
	// crossNamespaceRights is the component with the rights of a provisioner that reads ReferenceGrants.
	crossNamespaceRights = "../deploy/components/cross-namespace-sources/rbac.yaml"
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
	cluster := ownCluster(t, 1, "--feature-gates=CrossNamespaceVolumeDataSource=true")
	store, s := &story{Scene: cluster.NewScene(t), t: t}, &story{Scene: cluster.NewScene(t), t: t}
	s.allowGrants()
	s.write(s.decode(grantKind)...)
	driver := csitest.New(csitest.Options{Name: "cross.example.com"})
	class := Class(s.Namespace+"-cross", "cross.example.com", storagev1.VolumeBindingImmediate)
	s.addClass(class)
	s.run("csi-provisioner", "--csi-address="+driver.Serve(t), "--kubeconfig="+s.Dev.kubeconfig("csi-provisioner"), "--feature-gates=CrossNamespaceVolumeDataSource=true")
	store.CreateClaim("data", class.Name)
	store.WaitBound("data")

	claim := Claim(s.Namespace, "copy", class.Name)
	claim.Spec.DataSourceRef = &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "data", Namespace: &store.Namespace}
	s.create(claim)
	s.waitEvent("ProvisioningFailed", "no ReferenceGrant in namespace")
	s.write(s.decode(fmt.Sprintf(grant, store.Namespace, s.Namespace))...)
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
	s.t.Helper()
	data, err := os.ReadFile(crossNamespaceRights)
	if err != nil {
		s.t.Fatal(err)
	}
	role := s.decode(string(data))[0]
	s.write(role)
	s.retry("bind "+role.GetName(), func(ctx context.Context) error {
		_, err := s.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.GetName()}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: role.GetKind(), Name: role.GetName()},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: componentUser + "csi-provisioner"}},
		}, metav1.CreateOptions{})
		return ignoreExists(err)
	})
}
