package testbed

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/devcluster"
)

func TestLeftoversOnDisk(t *testing.T) {
	root := t.TempDir()
	d := &Dev{dir: root, Status: devcluster.Status{StateDir: filepath.Join(root, "data"), NodeDirs: map[string]string{"n": filepath.Join(root, "nodes", "n")}}}
	files := map[string]bool{ // path: is it a leftover?
		"data/controller.lock":                                    false,
		"data/records/.spare":                                     false,
		"data/controller.sock":                                    false,
		"data/nodes/n/lock":                                       false,
		"data/volumes/v/file":                                     true,
		"nodes/n/plugins/hostpath/csi.sock":                       false,
		"nodes/n/plugins/kubernetes.io/csi/d/sha/vol_data.json":   true,
		"nodes/n/pods/uid/volumes/kubernetes.io~csi/pv/stray":     true,
		"nodes/n/plugins_registry/d-reg.sock":                     false,
		"nodes/n/plugins/kubernetes.io/csi/something-of-the-node": false,
	}
	for path := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	left, err := d.leftovers()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for path := range files {
		got[path] = false
	}
	for _, path := range left {
		rel, _ := filepath.Rel(root, path)
		got[rel] = true
	}
	if diff := cmp.Diff(files, got); diff != "" {
		t.Error(diff)
	}
}

func TestRemainsOfOthersAreLeftOut(t *testing.T) {
	volume := func(name string, claim *corev1.ObjectReference) corev1.PersistentVolume {
		source := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h-" + name}}
		return corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{ClaimRef: claim, PersistentVolumeSource: source}}
	}
	attachment := func(name string, volume *string) storagev1.VolumeAttachment {
		return storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: volume}}}
	}
	volumes := []corev1.PersistentVolume{
		volume("mine", &corev1.ObjectReference{Namespace: "me"}), volume("yours", &corev1.ObjectReference{Namespace: "you"}), volume("free", nil),
	}
	attachments := []storagev1.VolumeAttachment{
		attachment("a-mine", new("mine")), attachment("a-yours", new("yours")), attachment("a-gone", new("gone")), attachment("a-inline", nil),
	}
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	for _, handle := range []string{"mine", "yours", "gone"} {
		node.Status.VolumesInUse = append(node.Status.VolumesInUse, corev1.UniqueVolumeName("kubernetes.io/csi/d^h-"+handle))
	}
	for name, tc := range map[string]struct {
		reason, namespace string
		want              []string
	}{
		"Mine": {
			reason: "what nobody owns is everybody's", namespace: "me", want: []string{
				"volume mine", "volume free", "attachment a-mine", "attachment a-gone", "attachment a-inline",
				"in use on n: kubernetes.io/csi/d^h-mine", "in use on n: kubernetes.io/csi/d^h-gone",
			},
		},
		"Any": {
			reason: "nothing is left out", want: []string{
				"volume mine", "volume yours", "volume free", "attachment a-mine", "attachment a-yours", "attachment a-gone", "attachment a-inline",
				"in use on n: kubernetes.io/csi/d^h-mine", "in use on n: kubernetes.io/csi/d^h-yours", "in use on n: kubernetes.io/csi/d^h-gone",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, ownRemains(tc.namespace, volumes, attachments, []corev1.Node{node})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
