package integration

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/longshore-csi/longshore/clusterregistrar"
	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// registrarOf is what a test of csi-cluster-driver-registrar does to its object.
type registrarOf struct {
	*testing.T
	client kubernetes.Interface
}

// object returns the object, or nil.
func (r registrarOf) object() *storagev1.CSIDriver {
	live, err := r.client.StorageV1().CSIDrivers().Get(r.Context(), csitest.DefaultName, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return live
}

// applied reports whether the registrar has a field by server-side apply.
func (r registrarOf) applied(name string) bool {
	for _, entry := range r.object().ManagedFields {
		if entry.Manager == "csi-cluster-driver-registrar" && entry.Operation == metav1.ManagedFieldsOperationApply {
			return strings.Contains(entry.FieldsV1.GetRawString(), `"f:`+name+`"`)
		}
	}
	return false
}

// edit patches the object as a field manager; force is for a server-side apply.
func (r registrarOf) edit(manager string, kind types.PatchType, patch string, force *bool) {
	r.Helper()
	_, err := r.client.StorageV1().CSIDrivers().Patch(r.Context(), csitest.DefaultName, kind, []byte(patch), metav1.PatchOptions{FieldManager: manager, Force: force})
	if err != nil {
		r.Fatal(err)
	}
}

// eventually waits until ok.
func (r registrarOf) eventually(what string, ok func() bool) {
	r.Helper()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-deadline:
			r.Fatalf("%s: did not happen; the object is %+v", what, r.object())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// hasEvent waits for an event of a reason with a text.
func (r registrarOf) hasEvent(reason, text string) {
	r.Helper()
	r.eventually("event "+reason, func() bool {
		list, err := r.client.CoreV1().Events("default").List(r.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			r.Fatal(err)
		}
		for _, event := range list.Items {
			if strings.Contains(event.Message, text) {
				return true
			}
		}
		return false
	})
}

// grant makes a user with the rights of the document alone, and returns the path of its kubeconfig.
func (r registrarOf) grant(admin string) string {
	r.Helper()
	page, err := os.ReadFile("../../../clusterregistrar/docs/rbac.md")
	if err != nil {
		r.Fatal(err)
	}
	_, example, _ := strings.Cut(string(page), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(example, "hostpath.csi.k8s.io", csitest.DefaultName)), role); err != nil {
		r.Fatal(err)
	}
	const user = "registrar"
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role.Name}, Subjects: []rbacv1.Subject{{Kind: "User", Name: user}}}
	if _, err := r.client.RbacV1().ClusterRoles().Create(r.Context(), role, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	if _, err := r.client.RbacV1().ClusterRoleBindings().Create(r.Context(), binding, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(admin)
	if err != nil {
		r.Fatal(err)
	}
	for _, auth := range config.AuthInfos {
		auth.Impersonate = user
	}
	path := filepath.Join(r.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		r.Fatal(err)
	}
	return path
}

// TestClusterDriverRegistrar runs two instances, without leader election and with the documented rights, against kube-apiserver: others edit fields, take them over
// and delete the object, and the driver is upgraded to one that answers otherwise.
func TestClusterDriverRegistrar(t *testing.T) {
	c := ownServer(t, "VolumeLimitScaling=false")
	r := registrarOf{T: t, client: clientOf(t, configOf(t, c.dir.Kubeconfig()))}
	socket := filepath.Join(t.TempDir(), "s")
	stopDriver := csitest.New(csitest.Options{}).ServeAt(t, socket)
	kubeconfig := r.grant(c.dir.Kubeconfig())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for range cap(ended) {
		o := clusterregistrar.NewOptions()
		o.CSI.Address, o.Kube.Kubeconfig = socket, kubeconfig
		o.Spec = storagev1.CSIDriverSpec{PodInfoOnMount: new(true), RequiresRepublish: new(false), PreventPodSchedulingIfMissing: new(true)}
		go func() { ended <- clusterregistrar.Run(ctx, o) }()
	}

	r.eventually("create the object", func() bool { return r.object() != nil })
	if spec := r.object().Spec; !*spec.AttachRequired || !*spec.PodInfoOnMount {
		t.Errorf("the object is %+v", spec)
	}
	r.hasEvent("CSIDriverFieldNotStored", "spec.preventPodSchedulingIfMissing") // which the gate drops

	r.edit("kubectl-edit", types.MergePatchType, `{"spec":{"podInfoOnMount":false}}`, nil)
	r.eventually("restore the field", func() bool { return *r.object().Spec.PodInfoOnMount })
	r.hasEvent("CSIDriverRestored", `spec.podInfoOnMount is true again, which field manager "kubectl-edit" (Update) had changed to false`)

	const configuration = `{"apiVersion":"storage.k8s.io/v1","kind":"CSIDriver","metadata":{"name":"` + csitest.DefaultName + `"},"spec":{"requiresRepublish":true}}`
	r.edit("argo", types.ApplyPatchType, configuration, new(true))
	r.hasEvent("CSIDriverConflict", `spec.requiresRepublish is true and not false: it is set by field manager "argo" (Apply)`)
	if !*r.object().Spec.RequiresRepublish {
		t.Error("a field of others was changed")
	}
	r.edit("csi-cluster-driver-registrar", types.MergePatchType, `{"spec":{"requiresRepublish":false}}`, nil) // as the event says
	r.eventually("take the field over", func() bool { return r.applied("requiresRepublish") })

	stopDriver()
	csitest.New(csitest.Options{Version: "v2", Controller: []csi.ControllerServiceCapability_RPC_Type{}}).ServeAt(t, socket)
	r.hasEvent("CSIDriverImmutable", "spec.attachRequired is true and not false")
	before := r.object()
	if err := r.client.StorageV1().CSIDrivers().Delete(t.Context(), csitest.DefaultName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("create the object again", func() bool { return r.object() != nil })
	if live := r.object(); live.UID == before.UID || *live.Spec.AttachRequired || !*live.Spec.PodInfoOnMount || *live.Spec.RequiresRepublish {
		t.Errorf("the object is %+v", live.Spec)
	}
	cancel()
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
