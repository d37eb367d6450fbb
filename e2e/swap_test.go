package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// Who has not renewed a lease for longer than swapRenew ends, and nothing here starts it again.
const (
	swapLease = 20 * time.Second
	swapRenew = 15 * time.Second
	swapRetry = time.Second
)

// upstream stands for the sidecars that a user has before the swap, as far as ours meet them: they compete for leases of the
// same names, by the same library. It does nothing when it leads.
type upstream struct {
	*story
	leading map[string]chan struct{}
	end     func()
}

// startUpstream lets old replicas compete for the leases until end is called.
func (s *story) startUpstream(leases []string) *upstream {
	s.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var electing sync.WaitGroup
	u := &upstream{story: s, leading: map[string]chan struct{}{}, end: func() { cancel(); electing.Wait() }}
	s.T.Cleanup(u.end)
	for _, name := range leases {
		leads := make(chan struct{})
		u.leading[name] = leads
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: devcluster.Namespace, Name: name},
				Client:     s.Client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: s.Namespace},
			},
			LeaseDuration: swapLease, RenewDeadline: swapRenew, RetryPeriod: swapRetry,
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { close(leads) },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			s.T.Fatal(err)
		}
		electing.Go(func() { elector.Run(ctx) })
	}
	return u
}

// waitLeading waits until the old replicas lead.
func (u *upstream) waitLeading() {
	u.T.Helper()
	for name, leads := range u.leading {
		u.Wait("the old replica to lead by "+name, func(context.Context) (bool, error) {
			select {
			case <-leads:
				return true, nil
			default:
				return false, nil
			}
		})
	}
}

// renewals waits until each lease was renewed a few times: long enough for others to have asked for it, too.
func (u *upstream) renewals(n int) {
	u.T.Helper()
	for name := range u.leading {
		seen := map[time.Time]bool{}
		u.Wait(fmt.Sprintf("%d renewals of %s", n, name), func(ctx context.Context) (bool, error) {
			lease, err := u.Client.CoordinationV1().Leases(devcluster.Namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			if holder := lease.Spec.HolderIdentity; holder == nil || *holder != u.Namespace {
				u.T.Fatalf("lease %s has holder %v while the old replica leads", name, holder)
			}
			seen[lease.Spec.RenewTime.Time] = true
			return len(seen) > n, nil
		})
	}
}

// TestSwapFromUpstreamAndBack starts our sidecars with a command line of upstream's while an old replica leads: they wait, take
// over when it goes, and give the leases back when they end, so that a swap back is as smooth.
func TestSwapFromUpstreamAndBack(t *testing.T) {
	dev(t)
	s := newStory(t)
	driver := csitest.New(csitest.Options{Name: "swapped.example.com"})
	class := testbed.Class(s.Namespace+"-swapped", "swapped.example.com", storagev1.VolumeBindingImmediate)
	s.AddClass(class)
	attachment := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: s.Namespace},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "swapped.example.com", NodeName: "no-such-node",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("no-such-volume")},
		},
	}
	old := s.startUpstream([]string{"swapped-example-com", "external-attacher-leader-swapped-example-com"})
	old.waitLeading()

	address := driver.Serve(t)
	var ends []func()
	for component, flags := range map[string][]string{
		"csi-provisioner": {"--feature-gates=Topology=true", "--extra-create-metadata=true", "--timeout=60s", "--kube-api-qps=20", "--kube-api-burst=40"},
		"csi-attacher":    {"--timeout=60s", "--worker-threads=10", "--reconcile-sync=1m", "--default-fstype=ext4"},
	} {
		ends = append(ends, s.Run(component, append([]string{
			"-v=5", "--csi-address=" + address, "--kubeconfig=" + s.Dev.KubeconfigOf(component),
			"--leader-election", "--leader-election-namespace=" + devcluster.Namespace,
			"--leader-election-lease-duration=" + swapLease.String(),
			"--leader-election-renew-deadline=" + swapRenew.String(),
			"--leader-election-retry-period=" + swapRetry.String(),
		}, flags...)...))
	}
	s.CreateClaim("data", class.Name)
	s.Retry("create attachment "+attachment.Name, func(ctx context.Context) error {
		_, err := s.Client.StorageV1().VolumeAttachments().Create(ctx, attachment, metav1.CreateOptions{})
		return testbed.IgnoreExists(err)
	})
	s.Wait("the new sidecars to know the driver", func(context.Context) (bool, error) {
		return timesCalled(driver, "GetPluginCapabilities") >= len(ends), nil
	})
	old.renewals(4)
	if n := timesCalled(driver, "CreateVolume"); n != 0 || s.Claim("data").Status.Phase != corev1.ClaimPending || s.attachError(attachment.Name) {
		t.Fatalf("the new sidecars act while the old ones lead: %d CreateVolume, claim %s, attachment looked at: %t",
			n, s.Claim("data").Status.Phase, s.attachError(attachment.Name))
	}

	old.end()
	s.WaitBound("data")
	s.Wait("the attachment to be looked at", func(context.Context) (bool, error) { return s.attachError(attachment.Name), nil })
	if n := timesCalled(driver, "CreateVolume"); n != 1 {
		t.Errorf("%d calls of CreateVolume, want 1", n)
	}
	s.deleteClaim()
	s.Retry("delete attachment "+attachment.Name, func(ctx context.Context) error {
		return testbed.IgnoreNotFound(s.Client.StorageV1().VolumeAttachments().Delete(ctx, attachment.Name, metav1.DeleteOptions{}))
	})
	s.Wait("the volume to be deleted", func(context.Context) (bool, error) { return timesCalled(driver, "DeleteVolume") == 1, nil })

	driver.Inject(csitest.Fault{Method: "CreateVolume", After: true, Code: codes.Unavailable})
	s.CreateClaim("undecided", class.Name)
	s.Wait("a second creation", func(context.Context) (bool, error) { return timesCalled(driver, "CreateVolume") > 1, nil })
	back := s.startUpstream([]string{"swapped-example-com", "external-attacher-leader-swapped-example-com"})
	for _, end := range ends {
		end()
	}
	back.waitLeading()
	back.renewals(1)
	s.nothingLeft("undecided")
}

// nothingLeft looks at a claim whose provisioner ended while the driver owed it an answer: it carries nothing of ours, and goes when it is deleted though
// nobody is there who knows of us.
func (s *story) nothingLeft(name string) {
	s.T.Helper()
	claim := s.Claim(name)
	for _, finalizer := range claim.Finalizers {
		if finalizer != "kubernetes.io/pvc-protection" {
			s.T.Errorf("claim %s has the finalizer %s", name, finalizer)
		}
	}
	for key := range claim.Annotations {
		if !strings.HasSuffix(strings.Split(key, "/")[0], "kubernetes.io") {
			s.T.Errorf("claim %s has the annotation %s", name, key)
		}
	}
	s.DeleteClaim(name)
	s.Wait("claim "+name+" to go", func(ctx context.Context) (bool, error) {
		_, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), testbed.IgnoreNotFound(err)
	})
}

// attachError reports whether an attacher has said why it does not attach.
func (s *story) attachError(name string) (failed bool) {
	s.T.Helper()
	s.Retry("get attachment "+name, func(ctx context.Context) error {
		a, err := s.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
		failed = err == nil && a.Status.AttachError != nil
		return err
	})
	return failed
}

// timesCalled tells how often a method of the driver was called.
func timesCalled(driver *csitest.Driver, method string) int {
	return len(slices.DeleteFunc(driver.Calls(), func(c csitest.Call) bool { return c.Method != method }))
}
