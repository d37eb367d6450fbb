package kubetest_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

func names(cluster *kubetest.Cluster, resource string) (names []string) {
	for _, obj := range cluster.Objects(resource) {
		names = append(names, strings.TrimPrefix(obj.GetNamespace()+"/"+obj.GetName(), "/"))
	}
	return names
}

func TestApply(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New(claim("b"), claim("a"), volume("pv"))
	before := cluster.Objects("persistentvolumeclaims")[0]
	err := cluster.Apply(claim("a", func(pvc *corev1.PersistentVolumeClaim) { pvc.Status.Phase = corev1.ClaimBound }),
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"default/c-00003", "ns/a", "ns/b"}, names(cluster, "persistentvolumeclaims")); d != "" {
		t.Errorf("sorted, with the default namespace (-want +got):\n%s", d)
	}
	after, ok := cluster.Objects("persistentvolumeclaims")[1].(*corev1.PersistentVolumeClaim)
	if !ok || after.Status.Phase != corev1.ClaimBound {
		t.Errorf("the status is applied, got %+v", after)
	}
	if after.UID != before.GetUID() || after.ResourceVersion == before.GetResourceVersion() {
		t.Errorf("the object stays the same, in a new version: %+v, %+v", before, after)
	}
	if got := cluster.Writes(); len(got) != 0 {
		t.Errorf("the test's hand leaves no trace, got %+v", got)
	}
	if got := cluster.Objects("unicorns"); got != nil {
		t.Errorf("there are no unicorns, got %v", got)
	}
}

func TestApplyRefuses(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		obj    runtime.Object
	}{
		"NoName":      {reason: "Objects have names.", obj: volume("")},
		"NoObject":    {reason: "Lists are not objects.", obj: &corev1.NodeList{}},
		"UnknownKind": {reason: "Kinds are limited.", obj: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}},
		"Unstored":    {reason: "Some kinds are never stored.", obj: &metav1.PartialObjectMetadata{}},
		"HalfGone":    {reason: "Without a finalizer it would be gone.", obj: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", DeletionTimestamp: ptr.To(metav1.Now())}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := kubetest.New().Apply(tc.obj); err == nil {
				t.Errorf("%s: want an error", tc.reason)
			}
			defer func() {
				if recover() == nil {
					t.Errorf("%s: New panics", tc.reason)
				}
			}()
			kubetest.New(tc.obj)
		})
	}
}

func TestRemoveAndMerge(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New(claim("a", func(pvc *corev1.PersistentVolumeClaim) { pvc.Finalizers = []string{"f"} }), volume("pv"))
	if err := cluster.Remove("persistentvolumeclaims", "ns", "a"); err != nil {
		t.Fatal(err)
	}
	if got := cluster.Objects("persistentvolumeclaims"); len(got) != 1 || got[0].GetDeletionTimestamp() == nil {
		t.Errorf("finalizers hold it, got %v", got)
	}
	if err := cluster.Merge("persistentvolumeclaims", "ns", "a", []byte(`{"metadata":{"finalizers":null},"status":{"phase":"Lost"}}`)); err != nil {
		t.Fatal(err)
	}
	if got := cluster.Objects("persistentvolumeclaims"); len(got) != 0 {
		t.Errorf("nothing holds it any more, got %v", got)
	}
	if err := cluster.Merge("persistentvolumes", "", "pv", []byte(`{"status":{"phase":"Released"}}`)); err != nil {
		t.Fatal(err)
	}
	if pv, ok := cluster.Objects("persistentvolumes")[0].(*corev1.PersistentVolume); !ok || pv.Status.Phase != corev1.VolumeReleased {
		t.Errorf("the status is merged, got %+v", pv)
	}
	for _, err := range []error{cluster.Remove("persistentvolumes", "", "x"), cluster.Merge("persistentvolumes", "", "x", nil)} {
		if !apierrors.IsNotFound(err) {
			t.Errorf("what is not there is not found, got %v", err)
		}
	}
	for _, patch := range []string{`[`, `{"metadata":{"finalizers":"x"}}`} {
		if err := cluster.Merge("persistentvolumes", "", "pv", []byte(patch)); !apierrors.IsBadRequest(err) {
			t.Errorf("patch %s: want bad request, got %v", patch, err)
		}
	}
	if err := cluster.Remove("unicorns", "", "x"); err == nil {
		t.Error("unknown resources cannot be removed")
	}
	if err := cluster.Merge("unicorns", "", "x", nil); err == nil {
		t.Error("nor merged")
	}
}

func TestResourceOf(t *testing.T) {
	t.Parallel()
	cluster := kubetest.New()
	for _, resource := range cluster.Resources() {
		if got, err := cluster.ResourceOf(resource); err != nil || got != resource {
			t.Errorf("want %s, got %s, %v", resource, got, err)
		}
	}
	if got, err := cluster.ResourceOf("PersistentVolumeClaim"); err != nil || got != "persistentvolumeclaims" {
		t.Errorf("kinds are known, got %s, %v", got, err)
	}
	if _, err := cluster.ResourceOf("unicorn"); err == nil || !strings.Contains(err.Error(), `"unicorn"`) {
		t.Errorf("the error names what is unknown, got %v", err)
	}
}

// Every kind of the client can be created, listed and found again.
func TestAllKinds(t *testing.T) {
	t.Parallel()
	client := kubetest.New().Client()
	meta := metav1.ObjectMeta{Name: "x"}
	_, err := client.Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: meta, Status: corev1.NodeStatus{Phase: corev1.NodeRunning}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if node := must[*corev1.Node](t)(client.Nodes().Get(t.Context(), "x", metav1.GetOptions{})); node.Status.Phase != corev1.NodeRunning {
		t.Errorf("nodes come with their status, got %q", node.Status.Phase)
	}
	lists := map[string]func() (int, error){
		"classes": func() (int, error) {
			l, err := client.StorageClasses().List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		"csinodes": func() (int, error) {
			l, err := client.CSINodes().List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		"csidrivers": func() (int, error) {
			l, err := client.CSIDrivers().List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		"attributes": func() (int, error) {
			l, err := client.VolumeAttributesClasses().List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		"leases": func() (int, error) {
			l, err := client.Leases("").List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		"secrets": func() (int, error) {
			l, err := client.Secrets("").List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		"attachments": func() (int, error) {
			l, err := client.VolumeAttachments().List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
	}
	for name, list := range lists {
		if n, err := list(); n != 0 || err != nil {
			t.Errorf("%s: want an empty list, got %d, %v", name, n, err)
		}
	}
}
