package integration

import (
	"context"
	"errors"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/devcluster/internal/bootstrap"
)

func TestSecondBootstrapFindsEverythingThere(t *testing.T) {
	client := clientOf(t, admin(t))
	before, err := client.StorageV1().CSIDrivers().Get(t.Context(), driver, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !*before.Spec.AttachRequired || !*before.Spec.PodInfoOnMount || !*before.Spec.StorageCapacity || len(before.Spec.VolumeLifecycleModes) != 2 {
		t.Errorf("CSIDriver %+v", before.Spec)
	}
	if _, err := bootstrap.Apply(t.Context(), bootstrap.Config{REST: admin(t)}, told()); err != nil {
		t.Fatal(err)
	}
	after, err := client.StorageV1().CSIDrivers().Get(t.Context(), driver, metav1.GetOptions{})
	if err != nil || after.UID != before.UID || after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the second time was a write: %v, %v", after, err)
	}
}

// TestBootstrapOfADriverThatTellsNoCapacity: the scheduler would wait for objects that nobody writes.
func TestBootstrapOfADriverThatTellsNoCapacity(t *testing.T) {
	const silent = "silent.example.com"
	client := clientOf(t, admin(t)).StorageV1().CSIDrivers()
	t.Cleanup(func() { _ = client.Delete(context.Background(), silent, metav1.DeleteOptions{}) })
	if _, err := bootstrap.Apply(t.Context(), bootstrap.Config{REST: admin(t)}, bootstrap.Driver{Info: csiclient.Info{Name: silent}}); err != nil {
		t.Fatal(err)
	}
	if got, err := client.Get(t.Context(), silent, metav1.GetOptions{}); err != nil || *got.Spec.StorageCapacity {
		t.Errorf("CSIDriver %+v, %v", got, err)
	}
}

func TestBootstrapNeedsRightsAndAServer(t *testing.T) {
	if _, err := bootstrap.Apply(t.Context(), bootstrap.Config{REST: userConfig(t, "nobody-special")}, told()); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("without rights: %v", err)
	}
	unreachable := &rest.Config{Host: "https://127.0.0.1:1"}
	if _, err := bootstrap.Apply(t.Context(), bootstrap.Config{REST: unreachable}, told()); err == nil || !strings.Contains(err.Error(), "Namespace/longshore-system") {
		t.Errorf("without a server: %v", err)
	}
}

// TestComponentsHaveTheirRightsAndNoMore asks the server what each user may do.
func TestComponentsHaveTheirRightsAndNoMore(t *testing.T) {
	const provisioner, attacher, resizer = "longshore:csi-provisioner", "longshore:csi-attacher", "longshore:csi-resizer"
	const snapshotter, controller = "longshore:csi-snapshotter", "longshore:snapshot-controller"
	const snapshots, groups = "snapshot.storage.k8s.io", "groupsnapshot.storage.k8s.io"
	tests := map[string]struct {
		reason, user, namespace, verb, group, resource, sub string
		want                                                bool
	}{
		"ProvisionerMakesVolumes":       {reason: "its work", user: provisioner, verb: "create", resource: "persistentvolumes", want: true},
		"ProvisionerWatchesClaims":      {reason: "its work", user: provisioner, namespace: "default", verb: "watch", resource: "persistentvolumeclaims", want: true},
		"ProvisionerSeesAttachments":    {reason: "a volume in use is not deleted", user: provisioner, verb: "list", group: "storage.k8s.io", resource: "volumeattachments", want: true},
		"ProvisionerReadsSecrets":       {reason: "secrets of a class are given to the driver", user: provisioner, namespace: "default", verb: "get", resource: "secrets", want: true},
		"ProvisionerListsNoSecrets":     {reason: "it knows the name of the secret", user: provisioner, namespace: "default", verb: "list", resource: "secrets"},
		"ProvisionerMakesNoClaims":      {reason: "claims are the user's", user: provisioner, namespace: "default", verb: "create", resource: "persistentvolumeclaims"},
		"ProvisionerReadsNoPods":        {reason: "pods are not its business", user: provisioner, namespace: "default", verb: "get", resource: "pods"},
		"ProvisionerAttachesNothing":    {reason: "the controller manager does", user: provisioner, verb: "create", group: "storage.k8s.io", resource: "volumeattachments"},
		"ProvisionerLeads":              {reason: "leases in its namespace", user: provisioner, namespace: "longshore-system", verb: "update", group: "coordination.k8s.io", resource: "leases", want: true},
		"ProvisionerLeadsNowhereElse":   {reason: "the leases of the nodes are not its own", user: provisioner, namespace: "kube-node-lease", verb: "update", group: "coordination.k8s.io", resource: "leases"},
		"ProvisionerTellsCapacity":      {reason: "objects in its namespace", user: provisioner, namespace: "longshore-system", verb: "create", group: "storage.k8s.io", resource: "csistoragecapacities", want: true},
		"ProvisionerTellsNowhereElse":   {reason: "namespaces are the users'", user: provisioner, namespace: "default", verb: "create", group: "storage.k8s.io", resource: "csistoragecapacities"},
		"AttacherReportsAttachment":     {reason: "its work", user: attacher, verb: "patch", group: "storage.k8s.io", resource: "volumeattachments", sub: "status", want: true},
		"AttacherKeepsVolumes":          {reason: "its finalizer", user: attacher, verb: "patch", resource: "persistentvolumes", want: true},
		"AttacherFindsTheNodeID":        {reason: "its work", user: attacher, verb: "watch", group: "storage.k8s.io", resource: "csinodes", want: true},
		"AttacherDeletesNoVolumes":      {reason: "the provisioner does", user: attacher, verb: "delete", resource: "persistentvolumes"},
		"AttacherDeletesNoAttachments":  {reason: "the controller manager does", user: attacher, verb: "delete", group: "storage.k8s.io", resource: "volumeattachments"},
		"AttacherReadsNoPods":           {reason: "pods are not its business", user: attacher, namespace: "default", verb: "list", resource: "pods"},
		"AttacherReadsNoClaims":         {reason: "claims are not its business", user: attacher, namespace: "default", verb: "get", resource: "persistentvolumeclaims"},
		"AttacherLeads":                 {reason: "leases in its namespace", user: attacher, namespace: "longshore-system", verb: "create", group: "coordination.k8s.io", resource: "leases", want: true},
		"AttacherWritesEvents":          {reason: "users learn what went wrong", user: attacher, namespace: "default", verb: "create", resource: "events", want: true},
		"ResizerSetsCapacity":           {reason: "its work", user: resizer, verb: "patch", resource: "persistentvolumes", want: true},
		"ResizerReportsProgress":        {reason: "its work", user: resizer, namespace: "default", verb: "patch", resource: "persistentvolumeclaims", sub: "status", want: true},
		"ResizerChangesNoClaims":        {reason: "what a claim asks for is the user's", user: resizer, namespace: "default", verb: "patch", resource: "persistentvolumeclaims"},
		"ResizerDeletesNoVolumes":       {reason: "the provisioner does", user: resizer, verb: "delete", resource: "persistentvolumes"},
		"ResizerFindsClasses":           {reason: "parameters of modifications", user: resizer, verb: "watch", group: "storage.k8s.io", resource: "volumeattributesclasses", want: true},
		"ResizerLeads":                  {reason: "leases in its namespace", user: resizer, namespace: "longshore-system", verb: "create", group: "coordination.k8s.io", resource: "leases", want: true},
		"SnapshotterReportsContents":    {reason: "its work", user: snapshotter, verb: "patch", group: snapshots, resource: "volumesnapshotcontents", sub: "status", want: true},
		"SnapshotterReportsGroups":      {reason: "its work", user: snapshotter, verb: "patch", group: groups, resource: "volumegroupsnapshotcontents", sub: "status", want: true},
		"SnapshotterReadsSecrets":       {reason: "secrets of a class are given to the driver", user: snapshotter, namespace: "default", verb: "get", resource: "secrets", want: true},
		"SnapshotterListsNoSecrets":     {reason: "it knows the name of the secret", user: snapshotter, namespace: "default", verb: "list", resource: "secrets"},
		"SnapshotterMakesNoContents":    {reason: "the snapshot-controller does", user: snapshotter, verb: "create", group: snapshots, resource: "volumesnapshotcontents"},
		"SnapshotterReadsNoSnapshots":   {reason: "contents have all that it needs", user: snapshotter, namespace: "default", verb: "list", group: snapshots, resource: "volumesnapshots"},
		"SnapshotterLeads":              {reason: "leases in its namespace", user: snapshotter, namespace: "longshore-system", verb: "create", group: "coordination.k8s.io", resource: "leases", want: true},
		"ControllerMakesContents":       {reason: "its work", user: controller, verb: "create", group: snapshots, resource: "volumesnapshotcontents", want: true},
		"ControllerMakesMembers":        {reason: "snapshots of groups", user: controller, namespace: "default", verb: "create", group: snapshots, resource: "volumesnapshots", want: true},
		"ControllerKeepsClaims":         {reason: "its finalizer", user: controller, namespace: "default", verb: "patch", resource: "persistentvolumeclaims", want: true},
		"ControllerMakesNoGroups":       {reason: "groups are the user's", user: controller, namespace: "default", verb: "create", group: groups, resource: "volumegroupsnapshots"},
		"ControllerReadsNoSecrets":      {reason: "it knows no driver", user: controller, namespace: "default", verb: "get", resource: "secrets"},
		"ControllerLeads":               {reason: "leases in its namespace", user: controller, namespace: "longshore-system", verb: "update", group: "coordination.k8s.io", resource: "leases", want: true},
		"AttacherGrantsNobodyAnything":  {reason: "no way to more rights", user: attacher, verb: "create", group: "rbac.authorization.k8s.io", resource: "clusterrolebindings"},
		"ProvisionerGrantsNobodyAnyway": {reason: "no way to more rights", user: provisioner, verb: "create", group: "rbac.authorization.k8s.io", resource: "clusterrolebindings"},
	}
	// The authorizer learns of new rules a moment after they are written. What is granted is waited for; once all of that is
	// there, nothing more will come, and what is denied is denied.
	for _, granted := range []bool{true, false} {
		for name, tc := range tests {
			if tc.want != granted {
				continue
			}
			t.Run(name, func(t *testing.T) {
				asked := authorizationv1.ResourceAttributes{Namespace: tc.namespace, Verb: tc.verb, Group: tc.group, Resource: tc.resource, Subresource: tc.sub}
				if !granted {
					if mayDo(t, tc.user, asked) {
						t.Errorf("%s: %s may %s %s %s", tc.reason, tc.user, tc.verb, tc.group, tc.resource)
					}
					return
				}
				eventually(t, tc.reason, func(context.Context) string {
					if !mayDo(t, tc.user, asked) {
						return tc.user + " may not"
					}
					return ""
				})
			})
		}
	}
}

func mayDo(t *testing.T, user string, asked authorizationv1.ResourceAttributes) bool {
	t.Helper()
	config := rest.CopyConfig(admin(t))
	config.Impersonate.UserName = user
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &asked}}
	got, err := clientOf(t, config).AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Status.Allowed
}

// TestWaitNodes plays a node that comes: first its Node, then its condition, then its driver.
func TestWaitNodes(t *testing.T) {
	const name = "late"
	client := clientOf(t, admin(t))
	waits := func(want string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		cancel() // one look, no wait
		err := server.boot.WaitNodes(ctx, []string{name}, driver)
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
			t.Fatalf("got %v, want %q", err, want)
		}
	}
	waits("wait for the nodes")
	done := make(chan error, 1)
	go func() { done <- server.boot.WaitNodes(t.Context(), []string{name}, driver) }()
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
		_ = client.StorageV1().CSINodes().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	patch := `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
	if _, err := client.CoreV1().Nodes().PatchStatus(t.Context(), node.Name, []byte(patch)); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Fatalf("complete without a driver: %v", err)
	default:
	}
	csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: name}}}}
	if _, err := client.StorageV1().CSINodes().Create(t.Context(), csiNode, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
