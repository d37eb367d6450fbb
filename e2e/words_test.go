package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/devcluster"
)

const auditLog = `{"verb":"patch","user":{"username":"longshore:csi-attacher"},"objectRef":{"resource":"volumeattachments","subresource":"status"}}
{"verb":"patch","user":{"username":"longshore:csi-attacher"},"objectRef":{"resource":"volumeattachments"}}
{"verb":"patch","user":{"username":"system:node:node-1"},"objectRef":{"resource":"nodes","subresource":"status"}}
{"verb":"patch","user":{"username":"system:node:node-2"},"objectRef":{"resource":"nodes","subresource":"status"}}
{"verb":"update","user":{"username":"system:node:node-2"},"objectRef":{"resource":"leases"}}
{"verb":"update","user":{"username":"system:serviceaccount:kube-system:pv-protection-controller"},"objectRef":{"resource":"persistentvolumes"}}
{"verb":"get","user":{"username":"longshore:csi-attacher"},"objectRef":{"resource":"persistentvolumes"}}
{"verb":"watch","user":{"username":"longshore:csi-attacher"},"objectRef":{"resource":"volumeattachments"}}
{"kind":"Event","verb":"patch","user":{"user{"kind":"Event","verb":"create","user":{"username":"longshore:killed"},"objectRef":{"resource":"events"}}
{"verb":"update","user":{"username":"admin"},"impersonatedUser":{"username":"longshore:measured"},"objectRef":{"resource":"leases"}}
`

func TestCountWrites(t *testing.T) {
	got, err := count(strings.NewReader(auditLog))
	if err != nil {
		t.Fatal(err)
	}
	want := Writes{
		"csi-attacher":             {"patch volumeattachments/status": 1, "patch volumeattachments": 1},
		"csi-node-agent":           {"patch nodes/status": 2},
		"pv-protection-controller": {"update persistentvolumes": 1},
		"killed":                   {"create events": 1},
		"measured":                 {"update leases": 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	got.Add(want)
	if got.By("csi-attacher") != 4 || len(got.Users()) != 5 {
		t.Errorf("got %v", got)
	}
	if table := got.Table(2); !strings.Contains(table, "csi-node-agent") || !strings.Contains(table, "2.00") {
		t.Errorf("table:\n%s", table)
	}
	if _, err := count(strings.NewReader("torn")); err == nil || !strings.Contains(err.Error(), "torn") {
		t.Errorf("got %v", err)
	}
}

func TestLeftoversOnDisk(t *testing.T) {
	root := t.TempDir()
	d := &Dev{dir: root, Status: devcluster.Status{StateDir: filepath.Join(root, "data"), NodeDirs: map[string]string{"n": filepath.Join(root, "nodes", "n")}}}
	files := map[string]bool{ // path: is it a leftover?
		"data/controller.lock":                                    false,
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
	left, err := d.Leftovers()
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

func TestTimesAreFromTheClaimsCreation(t *testing.T) {
	w := &Times{created: map[string]time.Time{}, bound: map[string]time.Time{}, mounted: map[string]time.Time{}, changed: make(chan struct{}, 1)}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	w.see(claim)
	bound := claim.DeepCopy()
	bound.Status.Phase = corev1.ClaimBound
	w.see(bound)
	w.see(bound)
	w.see(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}})
	b, m := w.Wait(t, 1)
	if len(b) != 1 || len(m) != 1 || b[0] < 0 || m[0] < b[0] {
		t.Errorf("bound %v, mounted %v", b, m)
	}
}

func TestObjectsAreWhatTheTestsSay(t *testing.T) {
	if c := Claim("n", "a", "class"); *c.Spec.StorageClassName != "class" || c.Namespace != "n" {
		t.Errorf("claim %+v", c)
	}
	p := Pod("n", "a", Inline("d.example.com"))
	if p.Spec.Volumes[0].CSI.Driver != "d.example.com" || p.Spec.Containers[0].VolumeMounts[0].Name != p.Spec.Volumes[0].Name {
		t.Errorf("pod %+v", p)
	}
	if s := FromClaim("a"); s.PersistentVolumeClaim.ClaimName != "a" {
		t.Errorf("source %+v", s)
	}
}

func TestNamesOfScenes(t *testing.T) {
	for test, want := range map[string]string{
		"TestKilledInTheMiddle/Create/csi-attacher": "e2e-7-killedinthemiddle-create-csi-attacher",
		"BenchmarkClaim/Concurrent1":                "e2e-7-benchmarkclaim-concurrent1",
		"TestA_b#01":                                "e2e-7-a-b-01",
		"Test" + strings.Repeat("x", 43) + "/long":  "e2e-7-" + strings.Repeat("x", 43), // a name must not end in a dash
	} {
		if got := sceneName(7, test); got != want {
			t.Errorf("%s: got %q, want %q", test, got, want)
		}
	}
}

func TestTailOfALog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("a\nb\nc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tail(path, 2); got != "b\nc" {
		t.Errorf("got %q", got)
	}
	if got := tail(path+"x", 2); !strings.Contains(got, "no such file") {
		t.Errorf("got %q", got)
	}
}
