package intents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

// quiet returns a context for a test that does not want to see a log.
func quiet(t *testing.T) context.Context {
	t.Helper()
	return klog.NewContext(t.Context(), klog.Logger{})
}

// full returns an intent with all that a record has, in a topology of many segments.
func full(t *testing.T, uid types.UID, segments int) Intent {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data-" + string(uid), UID: uid}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	spec := volume.Spec{
		Name: "pvc-" + string(uid), Claim: claim, Class: &storagev1.StorageClass{MountOptions: []string{"noatime"}}, FSType: "ext4",
		Parameters: map[string]string{"pool": "fast"}, MutableParameters: map[string]string{"iops": "100"},
		Source: &volume.Source{
			Ref: volume.SourceRef{Kind: "VolumeSnapshot", Namespace: "team", Name: "monday"},
			Content: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
				Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "snap-1"},
			}},
		},
	}
	spec.Secrets.Provision = &corev1.SecretReference{Namespace: "storage", Name: "login"}
	spec.Parameters = volume.WithMetadata(spec.Parameters, claim, spec.Name)
	spec.Topology = &csi.TopologyRequirement{}
	for i := range segments {
		segment := &csi.Topology{Segments: map[string]string{"topology.kubernetes.io/zone": fmt.Sprint("zone-", i), "kubernetes.io/hostname": fmt.Sprint("host-", i)}}
		spec.Topology.Requisite, spec.Topology.Preferred = append(spec.Topology.Requisite, segment), append(spec.Topology.Preferred, segment)
	}
	request, err := spec.Request()
	if err != nil {
		t.Fatal(err)
	}
	return Intent{Spec: spec, Request: request, Opened: time.Unix(1700000000, 0), Secrets: Secrets{"password": "hunter2"}}
}

// longUID is as long as the UIDs of Kubernetes.
func longUID(n int) types.UID {
	return types.UID(fmt.Sprintf("6f1b2c3d-0000-4000-8000-%012d", n))
}

// TestRecord stores and reads an intent.
func TestRecord(t *testing.T) {
	intent := full(t, longUID(1), 5000)
	r, shared, err := recordOf(intent, strings.Repeat("n", 253))
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.intent(shared)
	if err != nil {
		t.Fatal(err)
	}
	want := full(t, longUID(1), 1)
	if diff := cmp.Diff(want.Request, got.Request, protocmp.Transform()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if got.UID() != longUID(1) || got.Spec.Name != intent.Spec.Name || got.Spec.Claim.Namespace != "team" || got.Spec.Claim.Name != intent.Spec.Claim.Name {
		t.Errorf("claim %s/%s, volume %q", got.Spec.Claim.Namespace, got.Spec.Claim.Name, got.Spec.Name)
	}
	if *got.Spec.Secrets.Provision != *intent.Spec.Secrets.Provision || got.Spec.Source.Ref != intent.Spec.Source.Ref {
		t.Errorf("secret %v, source %v", got.Spec.Secrets.Provision, got.Spec.Source.Ref)
	}
	if !got.Recovered || !got.Unknown() || !got.Opened.Equal(intent.Opened) || got.Stage != Creating {
		t.Errorf("intent %+v, want one whose outcome is unknown", got)
	}
}

// TestRecordSize has the longest names and a large topology: a record stays small, and has no secret.
func TestRecordSize(t *testing.T) {
	long := strings.Repeat("n", 253)
	for name, change := range map[string]func(*Intent){
		"Usual":    func(*Intent) {},
		"LongName": func(i *Intent) { i.Spec.Claim.Name = long },
		"LongPlace": func(i *Intent) {
			i.Spec.Claim.Namespace, i.Spec.Claim.Name = strings.Repeat("s", 63), strings.Repeat("n", 63)
		},
		"LongSecret":  func(i *Intent) { i.Spec.Secrets.Provision.Name = long },
		"LongSource":  func(i *Intent) { i.Spec.Source.Ref.Name = long },
		"Uncertain":   func(i *Intent) { i.Uncertain = time.Now() },
		"HugeSize":    func(i *Intent) { i.Request.CapacityRange.RequiredBytes = 1<<63 - 1 },
		"ManyOptions": func(i *Intent) { i.Request.Parameters = map[string]string{"text": strings.Repeat("p", 5000)} },
		"EverythingIs": func(i *Intent) {
			i.Spec.Claim.Name, i.Uncertain = long, time.Now()
			i.Request.CapacityRange.RequiredBytes = 1<<63 - 1
		},
	} {
		t.Run(name, func(t *testing.T) {
			intent := full(t, longUID(1), 5000)
			change(&intent)
			r, shared, err := recordOf(intent, strings.Repeat("n", 253))
			if err != nil {
				t.Fatal(err)
			}
			text, err := encode([]record{r}, shared)
			if err != nil {
				t.Fatal(err)
			}
			if r.size() > recordSize {
				t.Errorf("%d bytes, must be at most %d: %+v", r.size(), recordSize, r)
			}
			if got, err := r.intent(shared); err != nil || got.Spec.Claim.Name != intent.Spec.Claim.Name || got.Spec.Claim.Namespace != intent.Spec.Claim.Namespace || got.Spec.Name != intent.Spec.Name {
				t.Errorf("claim %s/%s, volume %q, error %v", got.Spec.Claim.Namespace, got.Spec.Claim.Name, got.Spec.Name, err)
			}
			if strings.Contains(text, "hunter2") {
				t.Errorf("a secret is in %s", text)
			}
			if len(text) > recordSize+8000 {
				t.Errorf("%d bytes with what records share", len(text))
			}
		})
	}
}

// TestRecordRefuses reads records that are incomplete.
func TestRecordRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"Version":  {text: `{"version":2}`, want: "version 2, must be 1"},
		"Form":     {text: `{`, want: "decode records"},
		"NoVolume": {text: `{"version":1,"records":[{"uid":"u"}]}`, want: "fields uid and volume"},
		"NoPart":   {text: `{"version":1,"records":[{"uid":"u","volume":"v","request":"0a"}]}`, want: `part "0a" is missing`},
		"Part":     {text: `{"version":1,"records":[{"uid":"u","volume":"v","request":"0a"}],"parts":{"0a":{}}}`, want: `part "0a"`},
		"Source":   {text: `{"version":1,"records":[{"uid":"u","volume":"v","request":"0a","source":"0b"}],"parts":{"0a":""}}`, want: `part "0b" is missing`},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := decode(tc.text)
			for _, r := range d.Records {
				_, err = r.intent(d.Parts)
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// configOf returns the configuration of a journal.
func configOf(cluster *kubetest.Cluster, identity string) JournalConfig {
	return JournalConfig{Leases: cluster.Client().Leases("storage"), Name: "driver", Identity: identity, Labels: map[string]string{"team": "storage"}}
}

// open returns a journal of a process that has started, and what stops it.
func open(t *testing.T, cluster *kubetest.Cluster, identity string) (*Journal, func()) {
	t.Helper()
	j := NewJournal(NewClaims(nil, ""))
	stop, err := j.Start(quiet(t), configOf(cluster, identity))
	if err != nil {
		t.Fatal(err)
	}
	return j, stop
}

// stored returns the volumes that the Leases hold records of.
func stored(t *testing.T, cluster *kubetest.Cluster) (volumes []string) {
	t.Helper()
	for _, object := range cluster.Objects("leases") {
		lease, _ := object.(*coordinationv1.Lease)
		if size := len(lease.Annotations[Annotation]); size > pageSize {
			t.Errorf("Lease %q has %d bytes, at most %d are allowed", lease.Name, size, pageSize)
		}
		d, err := decode(lease.Annotations[Annotation])
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range d.Records {
			volumes = append(volumes, string(r.UID))
		}
	}
	return volumes
}

func TestJournalIsAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, stop := open(t, kubetest.New(), "one")
		defer stop()
		testStore(t, j)
	})
}

// TestJournalOutlivesTheProcess kills the process, and lets another go on.
func TestJournalOutlivesTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		one, stop := open(t, cluster, "one")
		for n := range 3 {
			if err := one.Open(quiet(t), full(t, longUID(n), 3)); err != nil {
				t.Fatal(err)
			}
		}
		if got := len(stored(t, cluster)); got != 3 {
			t.Fatalf("%d records are stored when Open has returned, want 3", got)
		}
		ended, uncertain := full(t, longUID(0), 3), full(t, longUID(1), 3)
		uncertain.Uncertain = time.Now()
		if err := errors.Join(one.Close(quiet(t), ended.UID()), one.Update(quiet(t), uncertain)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lazyWrite + time.Second)
		synctest.Wait()
		two, stopTwo := open(t, cluster, "two")
		defer stopTwo()
		var got []string
		for _, intent := range two.List() {
			got = append(got, intent.Spec.Name)
			if !intent.Recovered || !intent.Unknown() {
				t.Errorf("intent %+v, want one whose outcome is unknown", intent)
			}
		}
		if diff := cmp.Diff([]string{"pvc-" + string(longUID(1)), "pvc-" + string(longUID(2))}, got); diff != "" {
			t.Errorf("volumes in progress (-want +got):\n%s", diff)
		}
		// The first process still runs. It must not ask for a volume that the second does not know of.
		if err := one.Open(quiet(t), full(t, longUID(9), 1)); !errors.Is(err, ErrSuperseded) {
			t.Errorf("the process before stores a record: %v, want %v", err, ErrSuperseded)
		}
		stop()
		if got := len(stored(t, cluster)); got != 2 {
			t.Errorf("%d records are stored, want 2", got)
		}
	})
}

// TestJournalWritesInGroups opens many intents at a time.
func TestJournalWritesInGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		j, stop := open(t, cluster, "one")
		defer stop()
		cluster.ResetWrites()
		var working sync.WaitGroup
		for n := range 1000 {
			working.Go(func() {
				if err := j.Open(quiet(t), full(t, longUID(n), 1)); err != nil {
					t.Error(err)
				}
			})
		}
		working.Wait()
		if got := len(cluster.Writes()); got > 100 {
			t.Errorf("%d writes for 1,000 records", got)
		}
		if got := len(stored(t, cluster)); got != 1000 {
			t.Errorf("%d records, want 1,000", got)
		}
	})
}

// TestJournalHasPages stores more than one Lease takes, and frees the room again.
func TestJournalHasPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		j, stop := open(t, cluster, "one")
		const volumes = 3000
		for n := range volumes {
			if n%1000 != 0 {
				continue
			}
			var working sync.WaitGroup
			for m := n; m < n+1000; m++ {
				working.Go(func() {
					if err := j.Open(quiet(t), full(t, longUID(m), 1)); err != nil {
						t.Error(err)
					}
				})
			}
			working.Wait()
		}
		if got, leases := len(stored(t, cluster)), len(cluster.Objects("leases")); got != volumes || leases < 2 || leases > 5 {
			t.Errorf("%d records in %d Leases, want %d in some", got, leases, volumes)
		}
		stop()
		next, stop := open(t, cluster, "two")
		if got := len(next.List()); got != volumes {
			t.Errorf("%d volumes are in progress after a restart, want %d", got, volumes)
		}
		for n := range volumes {
			_ = next.Close(quiet(t), longUID(n))
		}
		stop()
		if got := stored(t, cluster); got != nil {
			t.Errorf("%d records are left", len(got))
		}
	})
}

// TestJournalOfALostLeader lets a former leader begin a new page that its successor has not seen.
func TestJournalOfALostLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		one, stopOne := open(t, cluster, "one")
		defer stopOne()
		_, stopTwo := open(t, cluster, "two")
		defer stopTwo()
		one.mu.Lock()
		one.pages[0].size = pageSize // it is full
		one.mu.Unlock()
		if err := one.Open(quiet(t), full(t, longUID(1), 1)); !errors.Is(err, ErrSuperseded) {
			t.Errorf("error %v, want %v", err, ErrSuperseded)
		}
	})
}

// TestJournalFaults has a case for each answer of the API.
func TestJournalFaults(t *testing.T) {
	away := apierrors.NewServiceUnavailable("away")
	cases := map[string]struct {
		reason string
		act    func(t *testing.T, cluster *kubetest.Cluster)
		err    error
		stored int
	}{
		"Away": {
			reason: "Without a record no volume is asked for.",
			act:    func(_ *testing.T, cluster *kubetest.Cluster) { cluster.Fail("update", "leases", away, 1) }, err: away,
		},
		"Unheard": {
			reason: "A write whose answer is lost is repeated, and the record that is of no use goes.",
			act: func(_ *testing.T, cluster *kubetest.Cluster) {
				cluster.Inject(kubetest.Fault{Verb: "update", Resource: "leases", Err: away, After: true, Times: 1})
			}, err: away,
		},
		"Deleted": {
			reason: "A Lease that was deleted is made again.",
			act: func(t *testing.T, cluster *kubetest.Cluster) {
				t.Helper()
				if err := cluster.Remove("leases", "storage", "driver-journal-0"); err != nil {
					t.Fatal(err)
				}
			}, stored: 1,
		},
		"Edited": {
			reason: "One that was labelled meanwhile is written all the same.",
			act: func(t *testing.T, cluster *kubetest.Cluster) {
				t.Helper()
				patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{"a": "b"}}})
				if err := cluster.Merge("leases", "storage", "driver-journal-0", patch); err != nil {
					t.Fatal(err)
				}
			}, stored: 1,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := kubetest.New()
				j, stop := open(t, cluster, "one")
				defer stop()
				tc.act(t, cluster)
				if err := j.Open(quiet(t), full(t, longUID(1), 1)); !errors.Is(err, tc.err) || (err == nil) != (tc.err == nil) {
					t.Errorf("%s\nerror %v, want %v", tc.reason, err, tc.err)
				}
				time.Sleep(2 * lazyWrite)
				synctest.Wait()
				if got := len(stored(t, cluster)); got != tc.stored || len(j.List()) != tc.stored {
					t.Errorf("%s\n%d records, %d intents, want %d", tc.reason, got, len(j.List()), tc.stored)
				}
				if err := j.Open(quiet(t), full(t, longUID(2), 1)); err != nil {
					t.Errorf("%s\nthe next one: %v", tc.reason, err)
				}
			})
		})
	}
}

// TestJournalForbidden works without the permission for Leases as it did before there was a journal.
func TestJournalForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		cluster.Fail("create", "leases", apierrors.NewForbidden(coordinationv1.Resource("leases"), "driver-journal-0", nil), 1000)
		j, stop := open(t, cluster, "one")
		defer stop()
		if j.Durable() {
			t.Error("the journal is durable")
		}
		testStore(t, j)
	})
}

// TestJournalRefusedLater loses the permission for Leases: volumes are made all the same.
func TestJournalRefusedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		j, stop := open(t, cluster, "one")
		defer stop()
		cluster.Fail("update", "leases", apierrors.NewForbidden(coordinationv1.Resource("leases"), "driver-journal-0", nil), 1000)
		for n := range 2 {
			if err := j.Open(quiet(t), full(t, longUID(n), 1)); err != nil {
				t.Fatal(err)
			}
		}
		if j.Durable() || len(j.List()) != 2 {
			t.Errorf("durable %v, %d intents, want 2 in memory alone", j.Durable(), len(j.List()))
		}
	})
}

// TestJournalOfAnotherVersion finds records that it cannot read. They stay, and the work goes on beside them.
func TestJournalOfAnotherVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const text = `{"version":7,"volumes":["pvc-1"]}`
		cluster := kubetest.New(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: "storage", Name: "driver-journal-0", Annotations: map[string]string{Annotation: text},
		}})
		one, stop := open(t, cluster, "one")
		if err := one.Open(quiet(t), full(t, longUID(1), 1)); err != nil {
			t.Fatal(err)
		}
		stop()
		two, stop := open(t, cluster, "two")
		defer stop()
		if got := two.List(); len(got) != 1 || got[0].UID() != longUID(1) {
			t.Errorf("%d volumes are in progress, want 1", len(got))
		}
		lease, _ := cluster.Objects("leases")[0].(*coordinationv1.Lease)
		if got := lease.Annotations[Annotation]; got != text || *lease.Spec.HolderIdentity != "two" {
			t.Errorf("the Lease has %s of %s, must keep %s", got, *lease.Spec.HolderIdentity, text)
		}
	})
}

// TestJournalWaitsForTheAPI starts while the API is away, and ends while it is.
func TestJournalWaitsForTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		cluster.Fail("get", "leases", apierrors.NewServiceUnavailable("away"), 3)
		j, stop := open(t, cluster, "one")
		if !j.Durable() {
			t.Error("the journal is not durable")
		}
		stop()
		if j.Durable() {
			t.Error("the journal is durable after its end")
		}
		cluster.Fail("get", "leases", apierrors.NewServiceUnavailable("away"), 1000)
		ctx, cancel := context.WithTimeout(quiet(t), time.Minute)
		defer cancel()
		if _, err := j.Start(ctx, configOf(cluster, "one")); err == nil {
			t.Error("a journal without an API has started")
		}
	})
}
