package claim

import (
	"errors"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/longshore-csi/longshore/csikittest/csitest"
	"github.com/longshore-csi/longshore/provisioner/internal/capabilities"
	"github.com/longshore-csi/longshore/provisioner/internal/kubeapitest/fixtures"
)

// gold is a VolumeAttributesClass of a driver.
func gold(of string) *storagev1.VolumeAttributesClass {
	return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: of, Parameters: map[string]string{"iops": "100"}}
}

// TestPrepare checks what a claim is asked for with: each part of the request comes from where it should.
func TestPrepare(t *testing.T) {
	const reserved = "csi.storage.k8s.io/"
	cases := map[string]struct {
		reason   string
		settings func(*Settings)
		caps     func(*capabilities.Set)
		class    func(*storagev1.StorageClass)
		claim    func(*corev1.PersistentVolumeClaim)
		want     func(*csi.CreateVolumeRequest)
	}{
		"Plain": {
			reason: "Name, size and access mode of the claim, and nothing that nobody asked for.",
		},
		"Parameters": {
			reason: "The driver gets the parameters of the class that are its own.",
			class: func(c *storagev1.StorageClass) {
				c.Parameters = map[string]string{"type": "ssd", reserved + "fstype": "xfs"}
			},
			want: func(r *csi.CreateVolumeRequest) {
				r.Parameters = map[string]string{"type": "ssd"}
				r.VolumeCapabilities[0].GetMount().FsType = "xfs"
			},
		},
		"DefaultFSType": {
			reason:   "--default-fstype fills in what the class leaves open.",
			settings: func(s *Settings) { s.DefaultFSType = "ext4" },
			want:     func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].GetMount().FsType = "ext4" },
		},
		"ClassBeforeDefault": {
			reason:   "The class wins over --default-fstype.",
			settings: func(s *Settings) { s.DefaultFSType = "ext4" },
			class:    func(c *storagev1.StorageClass) { c.Parameters = map[string]string{reserved + "fstype": "xfs"} },
			want:     func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].GetMount().FsType = "xfs" },
		},
		"MountOptions": {
			reason: "The mount options of the class are part of each capability.",
			class:  func(c *storagev1.StorageClass) { c.MountOptions = []string{"noatime", "ro"} },
			want: func(r *csi.CreateVolumeRequest) {
				r.VolumeCapabilities[0].GetMount().MountFlags = []string{"noatime", "ro"}
			},
		},
		"ExtraMetadata": {
			reason:   "--extra-create-metadata passes the claim and the volume name to the driver.",
			settings: func(s *Settings) { s.ExtraCreateMetadata = true },
			want: func(r *csi.CreateVolumeRequest) {
				r.Parameters = map[string]string{reserved + "pvc/name": "data", reserved + "pvc/namespace": "team", reserved + "pv/name": "pvc-uid-1"}
			},
		},
		"CutName": {
			reason:   "--volume-name-prefix and --volume-name-uuid-length make the name.",
			settings: func(s *Settings) { s.Naming.Prefix, s.Naming.UUIDLength = "vol", 4 },
			want:     func(r *csi.CreateVolumeRequest) { r.Name = "vol-uid1" },
		},
		"SingleNodeModes": {
			reason: "The capability of the driver changes what ReadWriteOnce means.",
			caps:   func(c *capabilities.Set) { c.SingleNode = true },
			want: func(r *csi.CreateVolumeRequest) {
				r.VolumeCapabilities[0].AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
			},
		},
		"TwoModes": {
			reason: "Each access mode is a capability of its own, in the order of the claim.",
			claim: func(c *corev1.PersistentVolumeClaim) {
				c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteOnce}
			},
			want: func(r *csi.CreateVolumeRequest) {
				r.VolumeCapabilities = []*csi.VolumeCapability{mounted(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY), r.VolumeCapabilities[0]}
			},
		},
		"Block": {
			reason: "A raw block volume has no file system, whatever the default is.",
			claim: func(c *corev1.PersistentVolumeClaim) {
				mode := corev1.PersistentVolumeBlock
				c.Spec.VolumeMode = &mode
			},
			settings: func(s *Settings) { s.DefaultFSType = "ext4" },
			want: func(r *csi.CreateVolumeRequest) {
				r.VolumeCapabilities[0].AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
			},
		},
		"AttributesClass": {
			reason: "The parameters of the VolumeAttributesClass go apart from those of the class, unchanged.",
			claim: func(c *corev1.PersistentVolumeClaim) {
				name := "gold"
				c.Spec.VolumeAttributesClassName = &name
			},
			want: func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"iops": "100"} },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			settings, claim, class := rigSettings(), fixtures.Claim(), fixtures.Class()
			apply(&settings, tc.settings)
			apply(claim, tc.claim)
			apply(class, tc.class)
			onRigWith(t, csitest.Options{}, settings, func(t *testing.T, r *rig) {
				s := claimState{driver: driver, caps: capabilities.Set{Attributes: true, Create: true, Modify: true}, claim: claim, class: class}
				apply(&s.caps, tc.caps)
				intent, err := r.prepare(fixtures.Quiet(t), s)
				if err != nil || intent.Secrets != nil {
					t.Fatalf("%s\nsecrets %v, error %v, want none", tc.reason, intent.Secrets, err)
				}
				want := &csi.CreateVolumeRequest{
					Name: "pvc-uid-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30},
					VolumeCapabilities: []*csi.VolumeCapability{mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)},
				}
				apply(want, tc.want)
				if diff := cmp.Diff(want, intent.Request, protocmp.Transform()); diff != "" {
					t.Errorf("%s\nrequest (-want +got):\n%s", tc.reason, diff)
				}
				if calls, writes := r.Calls(), r.Writes(); calls != nil || writes != nil {
					t.Errorf("%s\npreparing has effects: calls %q, writes %q", tc.reason, calls, writes)
				}
			}, gold(driver))
		})
	}
}

// mounted is the capability of a mounted volume in a mode.
func mounted(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

// TestPrepareErrors distinguishes errors that need a change of the claim or its class from those that a retry may resolve.
func TestPrepareErrors(t *testing.T) {
	withGold := func(c *corev1.PersistentVolumeClaim) {
		name := "gold"
		c.Spec.VolumeAttributesClassName = &name
	}
	withSecret := func(c *storagev1.StorageClass) { c.Parameters = fixtures.SecretClass("plain").Parameters }
	cases := map[string]struct {
		reason  string
		claim   func(*corev1.PersistentVolumeClaim)
		class   func(*storagev1.StorageClass)
		objs    []runtime.Object
		want    string
		blocked bool
	}{
		"BadParameter": {
			reason: "A class does not get better by waiting.", blocked: true,
			class: func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"csi.storage.k8s.io/x": ""} },
			want:  `storage class "fast"`,
		},
		"BadTemplate": {
			reason: "A template that the claim does not fit is reported with the class.", blocked: true,
			class: func(c *storagev1.StorageClass) {
				c.Parameters = fixtures.SecretClass("${pvc.annotations['a']}").Parameters
			},
			want: `invalid tokens: ["pvc.annotations['a']"]`,
		},
		"NoSize": {
			reason: "A claim without a size cannot be asked for.", blocked: true,
			claim: func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil },
			want:  "spec.resources.requests.storage",
		},
		"NoSecret": {
			reason: "A secret may come at any time, without an event.",
			class:  withSecret, want: "get secret team/plain",
		},
		"NoAttributesClass": {
			reason: "A VolumeAttributesClass may come at any time, without an event.",
			claim:  withGold, want: `get VolumeAttributesClass "gold"`,
		},
		"AttributesClassOfAnother": {
			reason: "The parameters of another driver's class mean nothing to ours.",
			claim:  withGold, objs: []runtime.Object{gold("other.example.com")}, want: `it is for driver "other.example.com", must be for "` + driver + `"`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			claim, class := fixtures.Claim(), fixtures.Class()
			apply(claim, tc.claim)
			apply(class, tc.class)
			onRig(t, func(t *testing.T, r *rig) {
				s := claimState{driver: driver, caps: capabilities.Set{Attributes: true, Create: true, Modify: true}, claim: claim, class: class}
				_, err := r.create(fixtures.Quiet(t), s)
				fixtures.Contains(t, tc.reason, r.Events.Take(), "Warning ProvisioningFailed", tc.want)
				switch {
				case tc.blocked && err != nil:
					t.Errorf("%s\nthe queue would try again: %v", tc.reason, err)
				case !tc.blocked && (err == nil || !strings.Contains(err.Error(), tc.want)):
					t.Errorf("%s\nerror %v, want one with %q, for the queue to try again", tc.reason, err, tc.want)
				}
				if calls := r.Calls(); calls != nil {
					t.Errorf("%s\ncalls %q, want none", tc.reason, calls)
				}
				if got := r.stage(); got != "closed" {
					t.Errorf("%s\nan intent is left open in stage %s, though nothing was asked for", tc.reason, got)
				}
			}, tc.objs...)
		})
	}
}

// TestVerify reads a claim live only when the cache may be behind, and believes what it reads.
func TestVerify(t *testing.T) {
	now := metav1.Now()
	cases := map[string]struct {
		reason string
		marked bool
		live   func(*corev1.PersistentVolumeClaim)
		gone   bool
		err    error
		want   bool
	}{
		"NotMarked": {
			reason: "Most claims cost no read, whatever the API would say.",
			live:   func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv" }, want: true,
		},
		"Pending":  {reason: "A claim that still waits gets its volume.", marked: true, want: true},
		"Gone":     {reason: "A claim that is gone gets none.", marked: true, gone: true},
		"Bound":    {reason: "A claim that was provisioned before gets no second volume.", marked: true, live: func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "pv" }},
		"Deleting": {reason: "Nothing is begun for a claim that is being deleted.", marked: true, live: func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp, c.Finalizers = &now, []string{"f"} }},
		"Replaced": {reason: "A successor of the name has a look of its own.", marked: true, live: func(c *corev1.PersistentVolumeClaim) { c.UID = "uid-2" }},
		"Away":     {reason: "Without an answer nothing is begun.", marked: true, err: apierrors.NewServiceUnavailable("away")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			live := fixtures.Claim()
			apply(live, tc.live)
			var objs []runtime.Object
			if !tc.gone {
				objs = append(objs, live)
			}
			onRig(t, func(t *testing.T, r *rig) {
				if tc.marked {
					r.unverify("uid-1")
				}
				if tc.err != nil {
					r.Cluster.Fail("get", "persistentvolumeclaims", tc.err, 1)
				}
				got, err := r.verify(fixtures.Quiet(t), fixtures.Claim())
				if got != tc.want || !errors.Is(err, tc.err) {
					t.Errorf("%s\ngot %v, %v, want %v, %v", tc.reason, got, err, tc.want, tc.err)
				}
				if left := r.claimRecords.Get("uid-1").unverified; left != (tc.marked && !tc.want) {
					t.Errorf("%s\nstill to be verified: %v", tc.reason, left)
				}
			}, objs...)
		})
	}
}
