package clusters

import (
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

	"github.com/longshore-csi/longshore/devcluster"
	"github.com/longshore-csi/longshore/e2e/testbed"
)

// mockDriver writes a script that runs the mock driver of Kubernetes' own storage tests for devcluster, which starts a driver for the
// controller, and then one for each node. As the mock knows only the volumes that it has made itself, the one for the node is a link to
// the socket of the one for the controller. It announces one node, by the driver's name.
func mockDriver(t testing.TB, flags ...string) (script string) {
	t.Helper()
	script = filepath.Join(t.TempDir(), "driver")
	text := fmt.Sprintf(`#!/bin/sh -eu
# MODE ENDPOINT
socket=${2#unix://}
if [ "$1" = controller ]; then
	echo "$socket" >"$0.socket"
	exec %s -driver-name=hostpath.csi.k8s.io -endpoint="$socket" %s
fi
ln -sf "$(cat "$0.socket")" "$socket"
trap exit TERM
while :; do sleep 1; done
`, testbed.KubernetesProgram(t, "mockdriver"), strings.Join(flags, " "))
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	return script
}

// TestForeignDriver has our sidecars, snapshot-controller and node agent serve a driver that is not of this tree.
func TestForeignDriver(t *testing.T) {
	dev(t)
	s := foreignScene(t, "--driver="+mockDriver(t), "--driver-flags={mode} {endpoint}")
	s.useVolumes()
	s.useSnapshots()
}

// inlineObject is the CSIDriver object of a driver of inline volumes.
const inlineObject = `{apiVersion: storage.k8s.io/v1, kind: CSIDriver, metadata: {name: hostpath.csi.k8s.io},
spec: {attachRequired: false, podInfoOnMount: true, fsGroupPolicy: None, volumeLifecycleModes: [Ephemeral]}}
`

// TestForeignDriverWithoutController runs a cluster for a driver that provisions, attaches, expands and snapshots nothing: the components of
// the controller side wait, and the inline volume of a pod is published and unpublished.
func TestForeignDriverWithoutController(t *testing.T) {
	dev(t)
	object := filepath.Join(t.TempDir(), "csidriver.yaml")
	if err := os.WriteFile(object, []byte(inlineObject), 0o600); err != nil {
		t.Fatal(err)
	}
	s := foreignScene(t, "--driver="+mockDriver(t, "-node-only"), "--driver-flags={mode} {endpoint}", "--csidriver="+object)
	s.AddPod(testbed.Pod(s.Namespace, "workload", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: s.Driver}}))
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
	s := foreignScene(t)
	for _, name := range []string{"csi-provisioner", "csi-attacher"} {
		s.Retry("stop our "+name, func(ctx context.Context) error { return s.Dev.Hold(ctx, name) })
		cmd := exec.Command(testbed.UpstreamProgram(t, name), "--csi-address="+s.Dev.Socket(), "--v=5")
		kubeconfig := s.Dev.KubeconfigOf(name)
		cmd.Args = append(cmd.Args, "--kubeconfig="+kubeconfig)
		if name == "csi-provisioner" { // the scheduler waits for the capacities of the driver
			cmd.Args = append(cmd.Args, "--feature-gates=Topology=true", "--extra-create-metadata", "--enable-capacity", "--capacity-ownerref-level=-1")
			cmd.Env = []string{"NAMESPACE=" + devcluster.Namespace, "KUBECONFIG=" + kubeconfig} // which it prefers to the flag
		}
		s.Background(cmd)
	}
	s.useVolumes()
}

// foreignScene returns a scene in a cluster of its own.
func foreignScene(t *testing.T, flags ...string) *story {
	t.Helper()
	return &story{newCluster(t, 1, flags...).NewScene(t)}
}

// useVolumes has pods use a volume, a copy of it, and one with late binding, and deletes all of them.
func (s *story) useVolumes() {
	s.T.Helper()
	immediate, late := s.ImmediateClass(), s.LateClass()
	s.CreateClaim("data", immediate)
	s.CreatePod("writer", testbed.FromClaim("data"))
	s.CreateClaim("later", late)
	s.CreatePod("late", testbed.FromClaim("later"))
	for _, pod := range []string{"writer", "late"} {
		s.WaitRunning(pod)
	}
	s.AddClaim(testbed.Clone(testbed.Claim(s.Namespace, "copy", immediate), "data"))
	s.WaitBound("copy")
	s.CreatePod("reader", testbed.FromClaim("copy"))
	s.WaitRunning("reader")
	for _, name := range []string{"data", "later", "copy"} {
		volume := s.Volume(name)
		if source := volume.Spec.CSI; source == nil || source.Driver != "hostpath.csi.k8s.io" || source.VolumeHandle == "" {
			s.T.Errorf("claim %s has the volume %+v", name, volume.Spec)
		}
		s.WaitAttached(volume.Name)
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
	s.T.Helper()
	s.Wait("all volumes and attachments to be gone", func(ctx context.Context) (bool, error) {
		left, err := s.RemainsInAPI(ctx, "") // a foreign driver keeps files of its own
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left: %q", left)
		}
		return err == nil, err
	})
}

// useSnapshots takes a snapshot, makes a volume of it, and deletes both.
func (s *story) useSnapshots() {
	s.T.Helper()
	s.AddSnapshotClass("")
	s.CreateClaim("data", s.ImmediateClass())
	s.WaitBound("data")
	taken := s.TakeSnapshot("monday", "data")
	s.WaitSnapshotReady(taken)
	s.RestoreSnapshot("copy", "monday")
	s.WaitBound("copy")
	s.Delete(taken)
	s.WaitNoSnapshots()
	s.DeleteClaim("copy")
	s.DeleteClaim("data")
	s.waitNoVolumes()
}
