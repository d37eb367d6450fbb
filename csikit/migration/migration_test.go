package migration

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

const (
	ebs   = "ebs.csi.aws.com"
	awsID = "kubernetes.io/aws-ebs"
)

// TestOf names the plugins that can be migrated. The transcripts of the provisioner have a volume of each.
func TestOf(t *testing.T) {
	for driver, want := range map[string]string{
		ebs:                        awsID,
		"pd.csi.storage.gke.io":    "kubernetes.io/gce-pd",
		"disk.csi.azure.com":       "kubernetes.io/azure-disk",
		"file.csi.azure.com":       "kubernetes.io/azure-file",
		"cinder.csi.openstack.org": "kubernetes.io/cinder",
		"csi.vsphere.vmware.com":   "kubernetes.io/vsphere-volume",
		"pxd.portworx.com":         "kubernetes.io/portworx-volume",
		"hostpath.csi.example.com": "",
		awsID:                      "",
	} {
		if got := Of(driver).Name(); got != want {
			t.Errorf("driver %q replaces %q, want %q", driver, got, want)
		}
	}
}

// volumeOf returns a PersistentVolume with a source, and what change makes of it.
func volumeOf(source corev1.PersistentVolumeSource, change func(pv *corev1.PersistentVolume)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source}}
	if change != nil {
		change(pv)
	}
	return pv
}

// disk is the source of a volume of the plugin.
func disk(id string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: id}}
}

// within returns a node affinity with one term.
func within(pairs ...string) *corev1.VolumeNodeAffinity {
	var term corev1.NodeSelectorTerm
	for i := 0; i < len(pairs); i += 2 {
		term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{Key: pairs[i], Operator: corev1.NodeSelectorOpIn, Values: pairs[i+1 : i+2]})
	}
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}}
}

func TestToCSI(t *testing.T) {
	made := map[string]string{provisionedBy: awsID, "pv.kubernetes.io/migrated-to": ebs}
	cases := map[string]struct {
		reason string
		pv     *corev1.PersistentVolume
		// handle, annotations and affinity are those of the result; same says that it is the volume itself.
		handle      string
		annotations map[string]string
		affinity    *corev1.VolumeNodeAffinity
		same, err   bool
	}{
		"Made": {
			reason: "The region follows from the zone, and drivers do not know it.",
			pv: volumeOf(disk("aws://us-east-1a/vol-1"), func(pv *corev1.PersistentVolume) {
				pv.Annotations = made
				pv.Spec.NodeAffinity = within(corev1.LabelTopologyZone, "us-east-1a", corev1.LabelTopologyRegion, "us-east-1")
			}),
			handle: "vol-1", annotations: made, affinity: within("topology.ebs.csi.aws.com/zone", "us-east-1a"),
		},
		"OldLabels": {
			reason: "Volumes of older versions of Kubernetes have no node affinity but labels.",
			pv: volumeOf(disk("vol-1"), func(pv *corev1.PersistentVolume) {
				pv.Annotations = made
				pv.Labels = map[string]string{corev1.LabelFailureDomainBetaZone: "us-east-1a", corev1.LabelFailureDomainBetaRegion: "us-east-1"}
			}),
			handle: "vol-1", annotations: made, affinity: within("topology.ebs.csi.aws.com/zone", "us-east-1a"),
		},
		"OnlyRegion": {
			reason: "A region alone is a restriction that does not follow from anything else.",
			pv: volumeOf(disk("vol-1"), func(pv *corev1.PersistentVolume) {
				pv.Annotations, pv.Spec.NodeAffinity = made, within(corev1.LabelTopologyRegion, "us-east-1")
			}),
			handle: "vol-1", annotations: made, affinity: within(corev1.LabelTopologyRegion, "us-east-1"),
		},
		"Static": {
			reason: "A volume that was made by hand for the plugin is not one that was made by hand for the driver.",
			pv:     volumeOf(disk("vol-1"), nil), handle: "vol-1", annotations: map[string]string{provisionedBy: awsID},
		},
		"Malformed": {reason: "What is no volume of the driver cannot become one.", pv: volumeOf(disk("aws://a/b"), nil), same: true, err: true},
		"CSI": {
			reason: "CSI volumes stay as they are.", handle: "vol-1", same: true,
			pv: volumeOf(corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: ebs, VolumeHandle: "vol-1"}}, nil),
		},
		"OtherPlugin": {
			reason: "Volumes of other plugins are another provisioner's.", same: true,
			pv: volumeOf(corev1.PersistentVolumeSource{Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "1"}}, nil),
		},
		"NoPlugin": {
			reason: "Most in-tree volumes are not migrated at all.", same: true,
			pv: volumeOf(corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s"}}, nil),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before := tc.pv.DeepCopy()
			got, err := Of(ebs).ToCSI(tc.pv)
			if (err != nil) != tc.err || (got == tc.pv) != tc.same {
				t.Fatalf("%s\nerror %v, want one: %v; the same object: %v, want %v", tc.reason, err, tc.err, got == tc.pv, tc.same)
			}
			if diff := cmp.Diff(before, tc.pv); diff != "" {
				t.Errorf("%s\nthe input was changed (-before +after):\n%s", tc.reason, diff)
			}
			if tc.same {
				return
			}
			if got.Spec.CSI.VolumeHandle != tc.handle || got.Spec.CSI.Driver != ebs {
				t.Errorf("%s\nsource %+v, want the handle %q", tc.reason, got.Spec.CSI, tc.handle)
			}
			if diff := cmp.Diff(tc.annotations, got.Annotations); diff != "" {
				t.Errorf("%s\nannotations (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.affinity, got.Spec.NodeAffinity); diff != "" {
				t.Errorf("%s\nnode affinity (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestToInTree(t *testing.T) {
	csiVolume := func(driver, handle string) *corev1.PersistentVolume {
		return volumeOf(corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}, nil)
	}
	cases := map[string]struct {
		reason string
		pv     *corev1.PersistentVolume
		want   corev1.PersistentVolumeSource
		err    bool
	}{
		"Volume":       {reason: "The source has the form of the plugin.", pv: csiVolume(ebs, "vol-1"), want: disk("vol-1")},
		"Malformed":    {reason: "A volume ID in which the plugin finds no disk.", pv: csiVolume("pd.csi.storage.gke.io", "disk-1"), err: true},
		"Irreversible": {reason: "A volume that could not be found again by its in-tree form.", pv: csiVolume("csi.vsphere.vmware.com", "id"), err: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Of(tc.pv.Spec.CSI.Driver).ToInTree(tc.pv)
			if (err != nil) != tc.err {
				t.Fatalf("%s\nerror %v, want one: %v", tc.reason, err, tc.err)
			}
			if err != nil {
				return
			}
			if diff := cmp.Diff(tc.want, got.Spec.PersistentVolumeSource); diff != "" {
				t.Errorf("%s\nsource (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestClass(t *testing.T) {
	zone := func(key string) []corev1.TopologySelectorTerm {
		return []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: key, Values: []string{"us-east-1a"}}}}}
	}
	class := func(provisioner string, parameters map[string]string, allowed []corev1.TopologySelectorTerm) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "old", UID: "u"}, Provisioner: provisioner, Parameters: parameters, AllowedTopologies: allowed}
	}
	cases := map[string]struct {
		reason      string
		class, want *storagev1.StorageClass
		err         bool
	}{
		"InTree": {
			reason: "Parameters and topology keys become those of the driver, whose class it is from then on.",
			class:  class(awsID, map[string]string{"fstype": "xfs", "type": "gp3"}, zone(corev1.LabelFailureDomainBetaZone)),
			want:   class(ebs, map[string]string{"csi.storage.k8s.io/fstype": "xfs", "type": "gp3"}, zone("topology.ebs.csi.aws.com/zone")),
		},
		"Contradiction": {
			reason: "What has no CSI form must not reach the driver in another one.", err: true,
			class: class(awsID, map[string]string{"zone": "us-east-1a"}, zone(corev1.LabelTopologyZone)), want: class(ebs, nil, nil),
		},
		"CSI":   {reason: "A class of the driver stays as it is.", class: class(ebs, map[string]string{"fstype": "xfs"}, nil), want: class(ebs, map[string]string{"fstype": "xfs"}, nil)},
		"Other": {reason: "So does any other.", class: class("kubernetes.io/gce-pd", nil, nil), want: class("kubernetes.io/gce-pd", nil, nil)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := Of(ebs).Class(klog.Logger{}, tc.class)
			if (err != nil) != tc.err {
				t.Fatalf("%s\nerror %v, want one: %v", tc.reason, err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\nclass (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestNoPlugin verifies that a driver that replaces nothing costs nothing.
func TestNoPlugin(t *testing.T) {
	plugin, pv, class := Of("hostpath.csi.example.com"), volumeOf(disk("vol-1"), nil), &storagev1.StorageClass{Provisioner: awsID}
	if allocations := testing.AllocsPerRun(10, func() {
		if got, err := plugin.ToCSI(pv); got != pv || err != nil {
			t.Errorf("volume %v, error %v, want the volume itself", got, err)
		}
		if got, err := plugin.Class(klog.Logger{}, class); got != class || err != nil {
			t.Errorf("class %v, error %v, want the class itself", got, err)
		}
	}); allocations != 0 {
		t.Errorf("%v allocations, want none", allocations)
	}
	if plugin.Made(volumeOf(disk("vol-1"), nil)) {
		t.Error("a volume is one of no plugin")
	}
}
