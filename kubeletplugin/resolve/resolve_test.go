package resolve

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/longshore-csi/longshore/csikittest/kubetest"
	"github.com/longshore-csi/longshore/kubeletplugin/kubeapi"
	"github.com/longshore-csi/longshore/kubeletplugin/layout"
	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

const driver = "d.example"

func ptr[T any](v T) *T { return &v }

func claim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "claim-1"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-1"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func pv(change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:  []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
			Capacity:     corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			MountOptions: []string{"noatime"},
			ClaimRef:     &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "claim-1"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: "vol-1", FSType: "xfs", ReadOnly: true,
				VolumeAttributes:     map[string]string{"a": "b"},
				NodeStageSecretRef:   &corev1.SecretReference{Namespace: "s", Name: "stage"},
				NodePublishSecretRef: &corev1.SecretReference{Namespace: "s", Name: "publish"},
			}},
		},
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func csiDriver(change ...func(*storagev1.CSIDriverSpec)) *storagev1.CSIDriver {
	d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{
		PodInfoOnMount: ptr(true), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{"Persistent", "Ephemeral"},
	}}
	for _, f := range change {
		f(&d.Spec)
	}
	return d
}

func pod(source corev1.VolumeSource, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "poduid-1"},
		Spec: corev1.PodSpec{
			ServiceAccountName: "sa",
			SecurityContext:    &corev1.PodSecurityContext{FSGroup: ptr(int64(7))},
			Containers:         []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: "vol1"}}}},
			Volumes:            []corev1.Volume{{Name: "vol1", VolumeSource: source}},
		},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func byClaim() corev1.VolumeSource {
	return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data", ReadOnly: true}}
}

func inline() corev1.VolumeSource {
	return corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
		Driver: driver, FSType: ptr("ext4"), ReadOnly: ptr(true), VolumeAttributes: map[string]string{"size": "1Gi"},
		NodePublishSecretRef: &corev1.LocalObjectReference{Name: "mine"},
	}}
}

func generic() corev1.VolumeSource {
	return corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
}

func resolver(c *kubetest.Cluster, d *storagev1.CSIDriver) *Resolver {
	return New(Config{
		StatusKnown: true,
		Objects: kubeapi.Objects{
			API: c.Client(), CSIDriver: func(string) *storagev1.CSIDriver { return d }, Self: func() *corev1.Node { return &corev1.Node{} },
		},
	})
}

func TestPersistent(t *testing.T) {
	got, problems := resolver(kubetest.New(claim(), pv()), csiDriver()).Pod(t.Context(), pod(byClaim()))
	if len(problems) > 0 {
		t.Fatalf("problems: %v", problems)
	}
	want := []volume.Publication{{
		PodVolumes: []string{"vol1"},
		Volume: volume.Volume{
			Name: "kubernetes.io/csi/d.example^vol-1", Driver: driver, Handle: "vol-1", Attachable: true,
			FSType: "xfs", MountOptions: []string{"noatime"}, AccessMode: corev1.ReadWriteOncePod, Exclusive: true,
			Attributes: map[string]string{"a": "b"}, StageSecret: &corev1.SecretReference{Namespace: "s", Name: "stage"},
		},
		Pod:      volume.Pod{Namespace: "ns", Name: "pod", UID: "poduid-1", ServiceAccount: "sa"},
		SpecName: "pv-1", ReadOnly: true, PodInfo: true,
		PublishSecret: &corev1.SecretReference{Namespace: "s", Name: "publish"}, FSGroup: ptr(int64(7)), ChangeGroup: true,
		Claim: volume.Claim{Namespace: "ns", Name: "data", UID: "claim-1"}, Capacity: 2 << 30,
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("publication (-want +got):\n%s", diff)
	}
}

// raw makes a PersistentVolume a raw block volume, and asBlock has the container use it as one.
func raw(v *corev1.PersistentVolume) { v.Spec.VolumeMode = ptr(corev1.PersistentVolumeBlock) }

func asBlock(p *corev1.Pod) {
	p.Spec.Containers[0].VolumeMounts = nil
	p.Spec.Containers[0].VolumeDevices = []corev1.VolumeDevice{{Name: "vol1", DevicePath: "/dev/x"}}
}

// TestBlock: a raw block volume has its name in its paths, and nothing that belongs to a file system.
func TestBlock(t *testing.T) {
	file := csiDriver(func(s *storagev1.CSIDriverSpec) {
		s.FSGroupPolicy = ptr(storagev1.FileFSGroupPolicy)
		s.RequiresRepublish, s.TokenRequests = ptr(true), []storagev1.TokenRequest{{Audience: "a"}}
	})
	mounted, problems := resolver(kubetest.New(claim(), pv()), file).Pod(t.Context(), pod(byClaim()))
	got, more := resolver(kubetest.New(claim(), pv(raw)), file).Pod(t.Context(), pod(byClaim(), asBlock))
	if len(problems)+len(more) > 0 || len(mounted) != 1 {
		t.Fatalf("problems: %v %v", problems, more)
	}
	want := mounted[0]
	want.Volume.Device, want.Volume.FSType, want.Volume.MountOptions = "pv-1", "", nil
	want.FSGroup, want.ChangeGroup = nil, false
	if diff := cmp.Diff([]volume.Publication{want}, got); diff != "" {
		t.Errorf("all else is as for a file system (-want +got):\n%s", diff)
	}
	if k := got[0].Key(); !k.Block {
		t.Errorf("key %+v, want one of a block volume", k)
	}
}

func TestInline(t *testing.T) {
	got, problems := resolver(kubetest.New(), csiDriver()).Pod(t.Context(), pod(inline()))
	if len(problems) > 0 {
		t.Fatalf("problems: %v", problems)
	}
	want := []volume.Publication{{
		PodVolumes: []string{"vol1"},
		Volume: volume.Volume{
			Name: "kubernetes.io/csi/8:poduid-1-vol1", Driver: driver, Handle: layout.InlineHandle("poduid-1", "vol1"),
			Ephemeral: true, FSType: "ext4", AccessMode: corev1.ReadWriteOnce, Attributes: map[string]string{"size": "1Gi"},
		},
		Pod:      volume.Pod{Namespace: "ns", Name: "pod", UID: "poduid-1", ServiceAccount: "sa"},
		SpecName: "vol1", ReadOnly: true, PodInfo: true,
		PublishSecret: &corev1.SecretReference{Namespace: "ns", Name: "mine"}, FSGroup: ptr(int64(7)), ChangeGroup: true,
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("an inline volume is never attached or staged, and its secret is the pod's namespace's (-want +got):\n%s", diff)
	}
}

func TestVariants(t *testing.T) {
	cases := map[string]struct {
		reason string
		pv     *corev1.PersistentVolume
		driver *storagev1.CSIDriver
		check  func(volume.Publication) bool
	}{
		"NoAttach":     {reason: "attachRequired false", pv: pv(), driver: csiDriver(func(s *storagev1.CSIDriverSpec) { s.AttachRequired = ptr(false) }), check: func(p volume.Publication) bool { return !p.Volume.Attachable }},
		"NoObject":     {reason: "a driver without an object is attached", pv: pv(), check: func(p volume.Publication) bool { return p.Volume.Attachable && !p.PodInfo }},
		"NoAccessMode": {reason: "ReadWriteOnce is the default", pv: pv(func(v *corev1.PersistentVolume) { v.Spec.AccessModes = nil }), check: func(p volume.Publication) bool { return p.Volume.AccessMode == corev1.ReadWriteOnce }},
		"NotExclusive": {reason: "ReadWriteOncePod among others; the first one is sent", pv: pv(func(v *corev1.PersistentVolume) {
			v.Spec.AccessModes = append(v.Spec.AccessModes, corev1.ReadWriteMany)
		}), check: func(p volume.Publication) bool {
			return !p.Volume.Exclusive && p.Volume.AccessMode == corev1.ReadWriteOncePod
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, problems := resolver(kubetest.New(claim(), tc.pv), tc.driver).Pod(t.Context(), pod(byClaim()))
			if len(got) != 1 || len(problems) > 0 || !tc.check(got[0]) {
				t.Errorf("%s: got %+v, problems %v", tc.reason, got, problems)
			}
		})
	}
}

// TestMountOptionsAsTheKubelet: the kubelet's CSI plugin passes PersistentVolume.spec.mountOptions; the beta annotation
// is for in-tree plugins, and its options must not reach a driver.
func TestMountOptionsAsTheKubelet(t *testing.T) {
	annotated := pv(func(v *corev1.PersistentVolume) {
		v.Annotations = map[string]string{"volume.beta.kubernetes.io/mount-options": "ro,nosuid"}
	})
	got, problems := resolver(kubetest.New(claim(), annotated), csiDriver()).Pod(t.Context(), pod(byClaim()))
	if len(got) != 1 || len(problems) > 0 {
		t.Fatalf("got %+v, problems %v", got, problems)
	}
	if diff := cmp.Diff([]string{"noatime"}, got[0].Volume.MountOptions); diff != "" {
		t.Errorf("mount options (-want +got):\n%s", diff)
	}
}

func TestLeftOut(t *testing.T) {
	cases := map[string]struct {
		reason string
		pod    *corev1.Pod
	}{
		"EmptyDir":  {reason: "no CSI volume", pod: pod(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})},
		"NotUsed":   {reason: "no container mounts it", pod: pod(inline(), func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = nil })},
		"OtherKind": {reason: "the volume behind the claim is no CSI volume", pod: pod(byClaim())},
	}
	nfs := pv(func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{}}
	})
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, problems := resolver(kubetest.New(claim(), nfs), csiDriver()).Pod(t.Context(), tc.pod)
			if len(got)+len(problems) > 0 {
				t.Errorf("%s: got %+v, problems %v, want nothing", tc.reason, got, problems)
			}
		})
	}
}

func TestProblems(t *testing.T) {
	owned := func(c *corev1.PersistentVolumeClaim) { c.Name = "pod-vol1" }
	cases := map[string]struct {
		reason string
		claim  *corev1.PersistentVolumeClaim
		pv     *corev1.PersistentVolume
		driver *storagev1.CSIDriver
		pod    *corev1.Pod
		event  string
		text   string
	}{
		"Unbound": {reason: "wait for the claim", claim: claim(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending }), text: "not bound"},
		"Deleting": {reason: "a claim that goes", claim: claim(func(c *corev1.PersistentVolumeClaim) {
			c.DeletionTimestamp = ptr(metav1.Now())
			c.Finalizers = []string{"x"}
		}), text: "being deleted"},
		"OtherClaim": {reason: "the volume is bound to another claim", pv: pv(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "claim-2" }), text: "another claim"},
		"NoClaimRef": {reason: "the volume is bound to nothing", pv: pv(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }), text: "bound to no claim"},
		"NotOwned":   {reason: "somebody else's claim of the generated name", claim: claim(owned), pod: pod(generic()), text: "was not created for pod"},
		"BlockName": {
			reason: "its paths would be those of other volumes", claim: claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "staging" }),
			pv: pv(raw, func(v *corev1.PersistentVolume) { v.Name = "staging" }), pod: pod(byClaim(), asBlock), event: ReasonFailedMap, text: "directory of other volumes",
		},
		"BlockAsFs": {reason: "the mode does not match", pv: pv(raw), text: "volumeMode Block"},
		"FsAsBlock": {reason: "the mode does not match", pod: pod(byClaim(), asBlock), event: ReasonFailedMap, text: "volumeMode Filesystem"},
		"InlineBlock": {
			reason: "inline volumes are file systems", pod: pod(inline(), asBlock), event: ReasonFailedMap, text: "inline",
		},
		"InlineMode": {reason: "test item T9", driver: csiDriver(func(s *storagev1.CSIDriverSpec) {
			s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{"Persistent"}
		}), pod: pod(inline()), text: `"Ephemeral" not supported`},
		"Affinity": {reason: "the volume is elsewhere", pv: pv(func(v *corev1.PersistentVolume) {
			v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}},
			}}}}
		}), text: "node affinity"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.claim == nil {
				tc.claim = claim()
			}
			if tc.pv == nil {
				tc.pv = pv()
			}
			if tc.driver == nil {
				tc.driver = csiDriver()
			}
			if tc.pod == nil {
				tc.pod = pod(byClaim())
			}
			if tc.event == "" {
				tc.event = ReasonFailedMount
			}
			got, problems := resolver(kubetest.New(tc.claim, tc.pv), tc.driver).Pod(t.Context(), tc.pod)
			if len(got) > 0 || len(problems) != 1 {
				t.Fatalf("%s: got %+v, problems %v, want one problem", tc.reason, got, problems)
			}
			p := problems[0]
			if p.Volume != "vol1" || p.Reason != tc.event || !strings.Contains(p.Wrap().Error(), tc.text) {
				t.Errorf("%s: problem %+v, want event %q with %q", tc.reason, p, tc.event, tc.text)
			}
		})
	}
}

// TestAuthorizerLag tells a refusal that will pass from one that a user must hear of.
func TestAuthorizerLag(t *testing.T) {
	c := kubetest.New(claim(), pv())
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumes"}, "pv-1", errors.New("no relationship found"))
	c.Fail("get", "persistentvolumes", refused, 1)
	r := resolver(c, csiDriver())
	if _, problems := r.Pod(t.Context(), pod(byClaim())); len(problems) != 1 || !problems[0].Transient {
		t.Errorf("problems %+v, want one that passes", problems)
	}
	if got, problems := r.Pod(t.Context(), pod(byClaim())); len(got) != 1 || len(problems) > 0 {
		t.Errorf("the second try: got %+v, problems %v", got, problems)
	}
	if _, problems := resolver(kubetest.New(), nil).Pod(t.Context(), pod(byClaim())); len(problems) != 1 || problems[0].Transient {
		t.Errorf("a claim that does not exist: problems %+v, want one that does not pass", problems)
	}
}
