package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// forgedRecord is a record as builds before docs/adr/0007 have put on claims, with a request of the user's own in each of its fields.
const forgedRecord = `{"version":1,"records":[{"uid":%q,"volume":"*/../pvc-of-the-victim","claim":"other/data","claimPart":"0d","since":1,"bytes":1099511627776,"named":true,"request":"0a","secret":"0b","segment":"0e","source":"0c"}],` +
	`"parts":{"0a":"EgAaBhoCCAcSACIPCgZzdWJEaXISBXBvdGhlcg==","0b":{"namespace":"kube-system","name":"admin"},"0c":{"Kind":"VolumeSnapshot","Namespace":"other","Name":"s"},"0d":"other/data","0e":{"zone":"elsewhere"}}}`

// TestForgedRecord has a user with the ClusterRole edit in one namespace put on claims whatever the provisioner has ever read from them, however that is run: the driver is called
// with what the spec of the claim and the administrator's class say, and with nothing else. It lists the calls.
func TestForgedRecord(t *testing.T) {
	dev(t)
	for _, form := range []string{elected, alone, ofNode} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			l := newLeakTest(t, form, 1)
			l.address = filepath.Join(t.TempDir(), "csi.sock")
			l.driver.ServeAt(t, l.address)
			l.createSecret("keys")
			for name, mode := range map[string]storagev1.VolumeBindingMode{"now": storagev1.VolumeBindingImmediate, "late": storagev1.VolumeBindingWaitForFirstConsumer} {
				class := testbed.Class(l.class+"-"+name, l.name, mode)
				class.Parameters = map[string]string{"pool": "fast", "csi.storage.k8s.io/provisioner-secret-name": "keys", "csi.storage.k8s.io/provisioner-secret-namespace": l.Namespace}
				l.AddClass(class)
			}
			tenant, uids := l.tenant(), map[string]types.UID{}
			for _, name := range []string{"now", "late", "now-deleted", "late-deleted"} {
				claim := testbed.Claim(l.Namespace, name, l.class+"-"+strings.TrimSuffix(name, "-deleted"))
				claim.Finalizers = []string{"csi.longshore.dev/provisioner-in-progress"}
				claims := tenant.CoreV1().PersistentVolumeClaims(l.Namespace)
				l.Retry("create claim "+name, func(ctx context.Context) error {
					_, err := claims.Create(ctx, claim, metav1.CreateOptions{})
					return testbed.IgnoreExists(err)
				})
				uids[name] = l.Claim(name).UID
				annotations := map[string]string{
					"volume.kubernetes.io/storage-provisioner": l.name, "volume.beta.kubernetes.io/storage-provisioner": l.name, "csi.longshore.dev/abandon": string(uids[name]),
					recordAnnotation: fmt.Sprintf(forgedRecord, uids[name]), recordAnnotation + "-unread": "H4sIAAAAAAAA/wEAAP//AAAAAAAAAAA=",
				}
				patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
				if err != nil {
					t.Fatal(err)
				}
				l.Retry("forge the record of claim "+name, func(ctx context.Context) error {
					_, err := claims.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
					return err
				})
				if strings.HasSuffix(name, "-deleted") {
					l.DeleteClaim(name)
					l.Wait("claim "+name+" to be kept by the forged finalizer alone", func(ctx context.Context) (bool, error) {
						got, err := claims.Get(ctx, name, metav1.GetOptions{})
						return err == nil && len(got.Finalizers) == 1, err
					})
				}
			}
			l.start()
			defer l.kill("term")
			l.Wait("the volume of the claim that may have one", func(ctx context.Context) (bool, error) {
				claim, err := tenant.CoreV1().PersistentVolumeClaims(l.Namespace).Get(ctx, "now", metav1.GetOptions{})
				return err == nil && claim.Status.Phase == corev1.ClaimBound, err
			})
			for _, name := range []string{"now-deleted", "late-deleted"} {
				l.Wait("the end of claim "+name, func(ctx context.Context) (bool, error) {
					_, err := tenant.CoreV1().PersistentVolumeClaims(l.Namespace).Get(ctx, name, metav1.GetOptions{})
					return apierrors.IsNotFound(err), testbed.IgnoreNotFound(err)
				})
			}
			l.Wait("the marks to be gone", func(ctx context.Context) (bool, error) {
				claim, err := tenant.CoreV1().PersistentVolumeClaims(l.Namespace).Get(ctx, "now", metav1.GetOptions{})
				return err == nil && claim.Annotations[recordAnnotation] == "" && len(claim.Finalizers) == 1, err
			})
			l.DeleteClaim("now")
			l.DeleteClaim("late")
			l.WaitNothingLeft()
			want := map[string]int{"pvc-" + string(uids["now"]): 1}
			if form != ofNode { // where no node had taken the claim, so that nothing can have been asked
				want["pvc-"+string(uids["now-deleted"])] = 1
			}
			l.wantAsked(want)
		})
	}
}

// tenant returns a client of a user who may edit the namespace, and nothing else.
func (l *leakTest) tenant() kubernetes.Interface {
	l.T.Helper()
	user := "tenant-of-" + l.Namespace
	l.Retry("give the tenant rights", func(ctx context.Context) error {
		_, err := l.Client.RbacV1().RoleBindings(l.Namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "tenant"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	config := rest.CopyConfig(l.Config)
	config.Impersonate.UserName = user
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		l.T.Fatal(err)
	}
	if _, err := client.CoordinationV1().Leases(devcluster.Namespace).List(l.T.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		l.T.Fatalf("the tenant may list Leases of the provisioner: %v", err)
	}
	return client
}

// wantAsked checks all calls that make or delete volumes: how often each volume was asked for, with what, and which were deleted.
func (l *leakTest) wantAsked(volumes map[string]int) {
	l.T.Helper()
	asked, ids := map[string]int{}, map[string]bool{}
	for _, v := range l.driver.Volumes() {
		ids[v.ID] = true
	}
	for _, call := range l.driver.Calls() {
		switch request := call.Request.(type) {
		case *csi.CreateVolumeRequest:
			l.T.Logf("CreateVolume %v", request)
			asked[request.GetName()]++
			if request.GetCapacityRange().GetRequiredBytes() != 16<<20 || request.GetVolumeContentSource() != nil || len(request.GetVolumeCapabilities()) != 1 {
				l.T.Errorf("CreateVolume asks for something that no claim asks for: %v", request)
			}
			if diff := cmp.Diff(map[string]string{"pool": "fast"}, request.GetParameters()); diff != "" {
				l.T.Errorf("CreateVolume of %s has other parameters than the class (-want +got):\n%s", request.GetName(), diff)
			}
			if diff := cmp.Diff(map[string]string{"key": "value"}, request.GetSecrets()); diff != "" {
				l.T.Errorf("CreateVolume of %s has another secret than that of the class (-want +got):\n%s", request.GetName(), diff)
			}
			if l.form != ofNode && request.GetAccessibilityRequirements() != nil {
				l.T.Errorf("CreateVolume of %s has a topology: %v", request.GetName(), request)
			}
		case *csi.DeleteVolumeRequest:
			l.T.Logf("DeleteVolume %v", request)
			if name := strings.TrimPrefix(request.GetVolumeId(), "vol-"); volumes[name] == 0 || ids[request.GetVolumeId()] {
				l.T.Errorf("DeleteVolume of %q, which belongs to no claim that was deleted", request.GetVolumeId())
			}
		}
	}
	if diff := cmp.Diff(volumes, asked); diff != "" {
		l.T.Errorf("volumes that were asked for (-want +got):\n%s", diff)
	}
}
