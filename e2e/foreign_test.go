package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/devcluster"
)

// unpackUpstream puts programs of kubernetes-csi into a directory. They are unpacked by a program of the directory that UPSTREAM names, or of
// the one beside the checkout. Without them a test is skipped, and a benchmark, which was asked for, fails.
func unpackUpstream(t testing.TB, names ...string) (dir string) {
	t.Helper()
	upstream := cmp.Or(os.Getenv("UPSTREAM"), "../../shared/upstream")
	unpack := filepath.Join(upstream, "unpack")
	if _, err := os.Stat(unpack); errors.Is(err, os.ErrNotExist) {
		why := fmt.Sprintf("there are no programs of kubernetes-csi in %s: name another directory by UPSTREAM, which has a program `unpack DIR NAME...`", upstream)
		if _, ok := t.(*testing.B); ok {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	dir = t.TempDir()
	mustRun(t, exec.Command(unpack, append([]string{dir}, names...)...))
	return dir
}

// upstreamDriver runs kubernetes-csi's driver for devcluster, which starts a driver for the controller, and then one for each node. As
// this driver knows only the volumes that it has made itself, the one for the node is the one for the controller.
const upstreamDriver = `#!/bin/sh -eu
# MODE ENDPOINT NODE STATEDIR
socket=${2#unix://}
if [ "$1" = controller ]; then
	echo "$socket" >"$0.socket"
	exec "$(dirname "$0")/hostpathplugin" --drivername=hostpath.csi.k8s.io --endpoint="$2" --nodeid=%s --statedir="$4" --enable-attach --v=5
fi
ln -sf "$(cat "$0.socket")" "$socket"
trap exit TERM
while :; do sleep 1; done
`

// TestForeignDriver has our sidecars, snapshot-controller and node agent serve the driver of kubernetes-csi.
func TestForeignDriver(t *testing.T) {
	dev(t)
	dir := unpackUpstream(t, "hostpathplugin")
	script := filepath.Join(dir, "driver")
	if err := os.WriteFile(script, fmt.Appendf(nil, upstreamDriver, devcluster.NodeNames(1)[0]), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	s := foreignScene(t, "--driver="+script, "--driver-flags={mode} {endpoint} {node} {statedir}")
	s.useVolumes()
	s.useSnapshots()
}

// inlineDriver runs SPIFFE's driver for devcluster.
const inlineDriver = `#!/bin/sh -eu
# ENDPOINT NODE
dir=$(dirname "$0")
mkdir -p "$dir/sockets"
exec "$dir/spiffe-csi-driver" -node-id "$2" -plugin-name inline.example.com -csi-socket-path "${1#unix://}" -workload-api-socket-dir "$dir/sockets"
`

// inlineObject is the CSIDriver object of that driver.
const inlineObject = `{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: inline.example.com},
spec: {attachRequired: false, podInfoOnMount: true, fsGroupPolicy: None, volumeLifecycleModes: [Ephemeral]}}
`

// TestForeignDriverWithoutController runs a cluster for a driver that provisions, attaches, expands and snapshots nothing: the components of
// the controller side wait, and the volume of a pod is mounted.
func TestForeignDriverWithoutController(t *testing.T) {
	dev(t)
	dir := unpackUpstream(t, "spiffe-csi-driver")
	script := filepath.Join(dir, "driver")
	if err := os.WriteFile(script, []byte(inlineDriver), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	object := filepath.Join(dir, "csidriver.yaml")
	if err := os.WriteFile(object, []byte(inlineObject), 0o600); err != nil {
		t.Fatal(err)
	}
	s := foreignScene(t, "--driver="+script, "--driver-flags={endpoint} {node}", "--csidriver="+object)
	readOnly := true
	s.Scene.createPod(Pod(s.Namespace, "workload", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: s.Driver, ReadOnly: &readOnly}}))
	s.WaitRunning("workload")
	s.Wait("csi-snapshotter to say why it is not ready", func(ctx context.Context) (bool, error) {
		text, err := s.ready(ctx, "csi-snapshotter")
		if err == nil && !strings.Contains(text, "does not announce CREATE_DELETE_SNAPSHOT") {
			err = errors.New(text)
		}
		return err == nil, err
	})
	status, err := s.Dev.Client.Status(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range status.Processes {
		if p.Restarts > 0 && p.Name != "etcd" && !strings.HasPrefix(p.Name, "kube-") { // these wait for each other no longer than 10 s
			t.Errorf("%s has ended: %s", p.Name, p.LastExit)
		}
	}
	s.DeletePod("workload")
	s.WaitNoPod("workload")
}

// ready returns what /readyz of a process answers.
func (s *story) ready(ctx context.Context, process string) (string, error) {
	i := slices.IndexFunc(s.Dev.Processes, func(p devcluster.Process) bool { return p.Name == process })
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Dev.Processes[i].HTTP+"/readyz", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// TestForeignSidecars has the sidecars of kubernetes-csi serve our driver.
func TestForeignSidecars(t *testing.T) {
	dev(t)
	dir := unpackUpstream(t, "csi-provisioner", "csi-attacher")
	s := foreignScene(t)
	for _, name := range []string{"csi-provisioner", "csi-attacher"} {
		s.retry("stop our "+name, func(ctx context.Context) error { return s.Dev.Hold(ctx, name) })
		cmd := exec.Command(filepath.Join(dir, name), "--csi-address="+filepath.Join(s.Dev.dir, "run", "csi.sock"), "--v=5")
		kubeconfig := s.Dev.kubeconfig(name)
		cmd.Args = append(cmd.Args, "--kubeconfig="+kubeconfig)
		if name == "csi-provisioner" { // the scheduler waits for the capacities of the driver
			cmd.Args = append(cmd.Args, "--feature-gates=Topology=true", "--extra-create-metadata", "--enable-capacity", "--capacity-ownerref-level=-1")
			cmd.Env = []string{"NAMESPACE=" + devcluster.Namespace, "KUBECONFIG=" + kubeconfig} // which it prefers to the flag
		}
		s.background(cmd)
	}
	s.useVolumes()
}

// TestForeignInline has our registrar register the driver of SPIFFE with our node agent, for which it mounts a directory into a pod.
func TestForeignInline(t *testing.T) {
	dev(t)
	dir := unpackUpstream(t, "spiffe-csi-driver")
	s := &story{Scene: bed.NewScene(t), t: t}
	readOnly, policy := true, storagev1.NoneFSGroupPolicy
	driver := s.Namespace + ".example.com" // short: the path of a socket has at most 107 bytes
	s.createDriver(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{
		AttachRequired: new(bool), PodInfoOnMount: &readOnly, FSGroupPolicy: &policy,
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral},
	}})
	node := s.Dev.Nodes[0]
	root := s.Dev.NodeDirs[node]
	socket, sockets := filepath.Join(root, "plugins", driver, "csi.sock"), filepath.Join(dir, "workload-api")
	for _, path := range []string{filepath.Dir(socket), sockets} {
		if err := os.MkdirAll(path, 0o755); err != nil { //nolint:gosec // of root, as in its manifests
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(socket)) })
	if err := os.WriteFile(filepath.Join(sockets, "agent.sock"), []byte("of the node"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.background(exec.Command(filepath.Join(dir, "spiffe-csi-driver"), "-node-id", node, "-plugin-name", driver, "-csi-socket-path", socket, "-workload-api-socket-dir", sockets))
	s.run("csi-node-driver-registrar", "--csi-address="+socket, "--kubelet-registration-path="+socket, "--plugin-registration-path="+filepath.Join(root, "plugins_registry"))

	pod := Pod(s.Namespace, "workload", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver, ReadOnly: &readOnly}})
	pod.Spec.NodeName = node
	s.Scene.createPod(pod)
	pod = s.WaitRunning(pod.Name)
	target := s.Dev.Target(node, string(pod.UID), "data")
	if text, err := os.ReadFile(filepath.Join(target, "agent.sock")); string(text) != "of the node" {
		t.Errorf("the pod has %q, %v in the volume, want the directory of the driver", text, err)
	}
	s.DeletePod(pod.Name)
	s.WaitNoPod(pod.Name)
	s.WaitNothingLeft()
}

// foreignScene returns a scene in a cluster of its own.
func foreignScene(t *testing.T, flags ...string) *story {
	t.Helper()
	return &story{Scene: ownCluster(t, 1, flags...).NewScene(t), t: t}
}

// background runs a program until the test ends.
func (s *story) background(cmd *exec.Cmd) {
	s.t.Helper()
	log, err := os.Create(filepath.Join(s.t.TempDir(), "log"))
	if err != nil {
		s.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		end(cmd)
		if s.t.Failed() {
			s.t.Logf("== end of the log of %s\n%s", cmd.Path, tail(log.Name(), 30))
		}
		_ = log.Close()
	})
}

// useVolumes has pods use a volume, a copy of it, and one with late binding, and deletes all of them.
func (s *story) useVolumes() {
	s.t.Helper()
	immediate, late := s.ImmediateClass(), s.LateClass()
	s.CreateClaim("data", immediate)
	s.CreatePod("writer", FromClaim("data"))
	s.CreateClaim("later", late)
	s.CreatePod("late", FromClaim("later"))
	for _, pod := range []string{"writer", "late"} {
		s.WaitRunning(pod)
	}
	s.askFor(clone(Claim(s.Namespace, "copy", immediate), "data"))
	s.WaitBound("copy")
	s.CreatePod("reader", FromClaim("copy"))
	s.WaitRunning("reader")
	for _, name := range []string{"data", "later", "copy"} {
		volume := s.Volume(name)
		if source := volume.Spec.CSI; source == nil || source.Driver != "hostpath.csi.k8s.io" || source.VolumeHandle == "" {
			s.t.Errorf("claim %s has the volume %+v", name, volume.Spec)
		}
		s.waitAttached(volume.Name)
	}
	for _, pod := range []string{"writer", "late", "reader"} {
		s.DeletePod(pod)
		s.WaitNoPod(pod)
	}
	for _, claim := range []string{"copy", "later", "data"} {
		s.DeleteClaim(claim)
	}
	s.waitNoVolumes()
}

// waitNoVolumes waits until the API server has no volume and no attachment.
func (s *story) waitNoVolumes() {
	s.t.Helper()
	s.Wait("all volumes and attachments to be gone", func(ctx context.Context) (bool, error) {
		left, err := s.remainsInAPI(ctx, "") // a foreign driver keeps files of its own
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left: %q", left)
		}
		return err == nil, err
	})
}

// useSnapshots takes a snapshot, makes a volume of it, and deletes both.
func (s *story) useSnapshots() {
	s.t.Helper()
	s.addSnapshotClass("")
	s.createClaim()
	s.WaitBound("data")
	taken := s.take("monday", "data")
	s.snapshotReady(taken)
	s.restore("copy", "monday")
	s.WaitBound("copy")
	s.delete(taken)
	s.waitNoSnapshots()
	s.DeleteClaim("copy")
	s.DeleteClaim("data")
	s.waitNoVolumes()
}

// waitAttached waits until a volume is attached to a node.
func (s *story) waitAttached(volume string) {
	s.t.Helper()
	s.Wait("volume "+volume+" to be attached", func(ctx context.Context) (bool, error) {
		list, err := s.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		return hasAttached(list.Items, volume), nil
	})
}

func hasAttached(list []storagev1.VolumeAttachment, volume string) bool {
	for _, a := range list {
		if name := a.Spec.Source.PersistentVolumeName; name != nil && *name == volume && a.Status.Attached {
			return true
		}
	}
	return false
}
