package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// faults are the broken clusters.
func faults() []fault {
	return []fault{ // those that take longest first
		{"RegistrationLost", (*broken).registrationLost, []string{"is no longer registered on this node", "look whether the driver's pod on this node runs"}},
		{"TwoDriversOfOneName", (*broken).twoDrivers, []string{"Two drivers have the name", "remove one of them, or give it another name"}},
		{"DriverStopped", (*broken).driverStopped, []string{"csi-provisioner has lost its connection to the driver at", "look whether the driver's container runs"}},
		{"DriverHung", (*broken).driverHung, []string{"csi-provisioner gets no answer from the driver", "look at the log of the driver's container"}},
		{"WrongParameter", (*broken).wrongParameter, []string{`parameter "typo": unknown`, "must be one of"}},
		{"ClassOfNoDriver", (*broken).classOfNoDriver, []string{"'nosuch.example.com'", "verify that the provisioner is running"}},
		{"SecretMissing", (*broken).secretMissing, []string{"get secret", `secrets "nosuch" not found`}},
		{"SecretKeyMisspelt", (*broken).secretKeyMisspelt, []string{"csi.storage.k8s.io/provisioner-secret-nam", "unknown parameter key with the reserved prefix"}},
		{"NoCapacity", (*broken).noCapacity, []string{"9000Ti", "1Ti"}},
		{"TopologyOfNoNode", (*broken).topologyOfNoNode, []string{"No node of the driver is in the allowedTopologies", "Correct the class"}},
		{"DetachFails", (*broken).detachFails, []string{"the storage system is away", "the volume stays attached until a later try succeeds"}},
		{"ExpansionRefused", (*broken).expansionRefused, []string{"the limit is 20Mi", "request another size, of more than the "}},
		{"SnapshotOfNoClaim", (*broken).snapshotOfNoClaim, []string{"PersistentVolumeClaim", "no-such-claim does not exist"}},
		{"RestoreOfNothing", (*broken).restoreOfNothing, []string{`VolumeSnapshot`, `nosuch" not found`}},
		{"RestoreTooSmall", (*broken).restoreTooSmall, []string{"the claim requests 1Mi", "must request at least"}},
		{"SnapshotClassMissing", (*broken).snapshotClassMissing, []string{"VolumeSnapshotClass", "does not exist"}},
		{"WriteForbidden", (*broken).writeForbidden, []string{`cannot create resource "persistentvolumes"`, "saving its PersistentVolume is retried"}},
		{"ListForbidden", (*broken).listForbidden, []string{"waiting for the first list of StorageClass", "does the role of csi-provisioner allow list and watch?"}},
		{"DiskFull", (*broken).diskFull, []string{"no space left on device", "/state"}},
	}
}

func (b *broken) driverStopped() (kind, name string) {
	b.serve("csi-provisioner")
	b.bind()
	b.stop()
	b.CreateClaim("more", b.class)
	return "CSIDriver", b.name
}

func (b *broken) driverHung() (kind, name string) {
	b.serve("csi-provisioner")
	b.bind()
	b.driver.Inject(csitest.Fault{Hang: true})
	b.CreateClaim("more", b.class)
	return "CSIDriver", b.name
}

// claimOf makes a claim of a class with parameters of the cluster's driver.
func (b *broken) claimOf(parameters map[string]string) (kind, name string) {
	class := testbed.Class(b.class, b.Driver, storagev1.VolumeBindingImmediate)
	class.Parameters = parameters
	b.AddClass(class)
	b.CreateClaim("data", class.Name)
	return "PersistentVolumeClaim", "data"
}

func (b *broken) wrongParameter() (kind, name string) {
	return b.claimOf(map[string]string{"typo": "x"})
}

func (b *broken) classOfNoDriver() (kind, name string) {
	b.name = "nosuch.example.com"
	b.claim("data")
	return "PersistentVolumeClaim", "data"
}

func (b *broken) secretMissing() (kind, name string) {
	return b.claimOf(map[string]string{"csi.storage.k8s.io/provisioner-secret-name": "nosuch", "csi.storage.k8s.io/provisioner-secret-namespace": b.Namespace})
}

func (b *broken) secretKeyMisspelt() (kind, name string) {
	return b.claimOf(map[string]string{"csi.storage.k8s.io/provisioner-secret-nam": "nosuch"})
}

func (b *broken) noCapacity() (kind, name string) {
	claim := testbed.Claim(b.Namespace, "data", b.ImmediateClass())
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("9000Ti")
	b.AddClaim(claim)
	return "PersistentVolumeClaim", "data"
}

func (b *broken) topologyOfNoNode() (kind, name string) {
	class := testbed.Class(b.class, b.Driver, storagev1.VolumeBindingImmediate)
	class.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: topologyKey, Values: []string{"node-99"}}}}}
	b.AddClass(class)
	b.CreateClaim("data", class.Name)
	return "PersistentVolumeClaim", "data"
}

func (b *broken) registrationLost() (kind, name string) {
	b.serve()
	end := b.registrar(b.address)
	time.Sleep(registrationInterval + 10*time.Second) // the agent has seen it
	end()
	return "Node", b.Dev.Nodes[0]
}

func (b *broken) detachFails() (kind, name string) {
	b.serve("csi-provisioner", "csi-attacher")
	b.registrar(b.address)
	b.bind()
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: b.Namespace},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: b.name, NodeName: b.Dev.Nodes[0], Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new(b.Volume("data").Name)}},
	}
	b.Retry("create attachment "+a.Name, func(ctx context.Context) error {
		_, err := b.Client.StorageV1().VolumeAttachments().Create(ctx, a, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	b.Wait("attachment "+a.Name+" to be attached", func(ctx context.Context) (bool, error) {
		got, err := b.Client.StorageV1().VolumeAttachments().Get(ctx, a.Name, metav1.GetOptions{})
		return err == nil && got.Status.Attached, err
	})
	b.driver.Inject(csitest.Fault{Method: "ControllerUnpublishVolume", Code: codes.Internal, Message: "the storage system is away"})
	b.deleteAttachment(a)
	return "VolumeAttachment", a.Name
}

// expansionRefused goes back to a smaller size afterwards, which works.
func (b *broken) expansionRefused() (kind, name string) {
	b.serve("csi-provisioner", "csi-resizer")
	b.bind()
	b.driver.Inject(csitest.Fault{Method: "ControllerExpandVolume", Code: codes.OutOfRange, Message: "the limit is 20Mi"})
	b.Grow("data", "32Mi")
	b.WaitEvent("VolumeResizeFailed", "the limit is 20Mi")
	b.driver.Heal()
	b.Grow("data", "20Mi")
	b.Retry("wait for the smaller size", func(ctx context.Context) error { return b.grown(ctx, "data", "20Mi") })
	if i := slices.IndexFunc(b.Claim("data").Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimControllerResizeError
	}); i >= 0 {
		b.T.Errorf("the claim still has the condition %v", b.Claim("data").Status.Conditions[i])
	}
	return "PersistentVolumeClaim", "data"
}

func (b *broken) snapshotOfNoClaim() (kind, name string) {
	b.AddSnapshotClass("")
	b.snapshots = append(b.snapshots, b.TakeSnapshot("absent", "no-such-claim"))
	return "VolumeSnapshot", "absent"
}

func (b *broken) restoreOfNothing() (kind, name string) {
	b.RestoreSnapshot("copy", "nosuch")
	return "PersistentVolumeClaim", "copy"
}

func (b *broken) restoreTooSmall() (kind, name string) {
	b.AddSnapshotClass("")
	b.createClaim()
	b.WaitBound("data")
	taken := b.TakeSnapshot("monday", "data")
	b.WaitSnapshotReady(taken)
	claim := testbed.Claim(b.Namespace, "copy", b.ImmediateClass())
	claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: new("snapshot.storage.k8s.io"), Kind: "VolumeSnapshot", Name: "monday"}
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1Mi")
	b.AddClaim(claim)
	b.snapshots = append(b.snapshots, taken)
	return "PersistentVolumeClaim", "copy"
}

func (b *broken) snapshotClassMissing() (kind, name string) {
	b.createClaim()
	b.WaitBound("data")
	b.snapshots = append(b.snapshots, b.TakeSnapshot("monday", "data"))
	return "VolumeSnapshot", "monday"
}

// user makes a user with the rights of csi-provisioner that a rule leaves it, and returns its kubeconfig.
func (b *broken) user(without func(*rbacv1.PolicyRule)) (kubeconfig string) {
	b.Retry("make a user of few rights", func(ctx context.Context) error {
		role, err := b.Client.RbacV1().ClusterRoles().Get(ctx, testbed.ComponentUser+"csi-provisioner", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range role.Rules {
			without(&role.Rules[i])
		}
		role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"}})
		role = &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: b.Namespace}, Rules: role.Rules}
		if _, err := b.Client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); testbed.IgnoreExists(err) != nil {
			return err
		}
		_, err = b.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: role.ObjectMeta, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: b.Namespace}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		}, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	return testbed.Impersonate(b.T, b.Dev.Kubeconfig, b.Namespace)
}

func drop(list *[]string, what string) {
	*list = slices.DeleteFunc(*list, func(s string) bool { return s == what })
}

func (b *broken) writeForbidden() (kind, name string) {
	b.serve()
	b.runAs("csi-provisioner", b.user(func(r *rbacv1.PolicyRule) {
		if slices.Contains(r.Resources, "persistentvolumes") {
			drop(&r.Verbs, "create")
		}
	}))
	b.claim("data")
	return "PersistentVolumeClaim", "data"
}

func (b *broken) listForbidden() (kind, name string) {
	b.serve()
	b.runAs("csi-provisioner", b.user(func(r *rbacv1.PolicyRule) { drop(&r.Resources, "storageclasses") }))
	b.claim("data")
	return "CSIDriver", b.name
}

// diskFull is a reference driver of its own on a small file system.
func (b *broken) diskFull() (kind, name string) {
	state := filepath.Join(b.T.TempDir(), "state")
	if err := os.Mkdir(state, 0o755); err != nil {
		b.T.Fatal(err)
	}
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, "size=4m"); err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() {
		if err := unix.Unmount(state, unix.MNT_DETACH); err != nil {
			b.T.Error(err)
		}
	})
	b.Run("hostpathplugin", "--drivername="+b.name, "--endpoint=unix://"+b.address, "--statedir="+state, "--nodeid="+b.Dev.Nodes[0], "--enable-topology=false")
	b.Wait("the driver to listen", func(context.Context) (bool, error) { _, err := os.Stat(b.address); return err == nil, err })
	if err := os.WriteFile(filepath.Join(state, "other"), make([]byte, 8<<20), 0o600); !strings.Contains(err.Error(), "no space") {
		b.T.Fatalf("fill the file system: %v", err)
	}
	b.runAs("csi-provisioner", b.Dev.KubeconfigOf("csi-provisioner"))
	b.claim("data")
	return "PersistentVolumeClaim", "data"
}

func (b *broken) twoDrivers() (kind, name string) {
	b.serve()
	b.registrar(b.address)
	time.Sleep(registrationInterval + 10*time.Second) // the agent has seen it
	other := filepath.Join(b.T.TempDir(), "csi.sock")
	csitest.New(csitest.Options{Name: b.name, NodeID: b.Dev.Nodes[0]}).ServeAt(b.T, other)
	b.registrar(other)
	return "Node", b.Dev.Nodes[0]
}

// registrationInterval is how often the agent of a node looks at the registrations.
const registrationInterval = 30 * time.Second

// TestRecoversByItself: no one needs to do anything about the Lease of a process that is dead, nor about an API server that stands still for a while.
func TestRecoversByItself(t *testing.T) {
	dev(t)
	t.Run("LeaseOfDeadProcess", func(t *testing.T) {
		b := newBroken(t)
		b.serve()
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: "external-resizer-" + strings.ReplaceAll(b.name, ".", "-")},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: new("dead-pod"), LeaseDurationSeconds: new(int32(15)), AcquireTime: new(metav1.NowMicro()), RenewTime: new(metav1.NowMicro()),
			},
		}
		b.Retry("make the Lease of a dead process", func(ctx context.Context) error {
			_, err := b.Client.CoordinationV1().Leases(devcluster.Namespace).Create(ctx, lease, metav1.CreateOptions{})
			return testbed.IgnoreExists(err)
		})
		b.RunWith([]string{"POD_NAME=" + b.Namespace}, "csi-resizer", "--csi-address="+b.address, "--kubeconfig="+b.Dev.KubeconfigOf("csi-resizer"), "--leader-election", "--leader-election-namespace="+devcluster.Namespace)
		b.checkFirst("Lease", lease.Name, []string{b.Namespace, "became leader"})
	})
	t.Run("APIServerStandsStill", func(t *testing.T) {
		s := newStory(t)
		s.Signal("kube-apiserver", "STOP")
		time.Sleep(5 * time.Second)
		s.Signal("kube-apiserver", "CONT")
		s.createClaim()
		s.bound()
		s.deleteClaim()
		s.WaitNothingLeft()
	})
}
