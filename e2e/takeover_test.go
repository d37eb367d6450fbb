package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// takeover is a node of which csi-node-agent and the real kubelet take over each other's root directory. The containers run all the time,
// as those of a stopped kubelet do.
type takeover struct {
	*play
	program string
	agent   *exec.Cmd
	stdin   io.Closer
	log     bytes.Buffer
}

// newTakeover skips the test where there is no kubelet.
func newTakeover(t *testing.T, modes ...storagev1.VolumeLifecycleMode) *takeover {
	t.Helper()
	node := newKubeletNode(t)
	if node.agent() {
		t.Skip("needs the kubelet of a node of a kind cluster, whose name is in " + kubeletNodeEnv)
	}
	o := &takeover{program: node.install("nodeagent", "./cmd/csi-node-agent")}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("== the log of csi-node-agent\n%s", &o.log)
		}
	})
	o.play = newPlay(t, node, scenario{capabilities: stages, driver: func(d *storagev1.CSIDriverSpec) {
		d.AttachRequired, d.VolumeLifecycleModes = new(true), modes
	}})
	o.attach()
	return o
}

// toAgent stops the kubelet and starts the agent, which knows when it has registered the driver.
func (o *takeover) toAgent() {
	o.T.Helper()
	o.step("csi-node-agent takes over")
	o.Retry("stop the kubelet", o.node.stopKubelet)
	o.T.Cleanup(func() { // also when the test has failed
		if err := errors.Join(o.stopAgent(), o.node.startKubelet(context.Background())); err != nil {
			o.T.Error(err)
		}
	})
	o.startAgent()
}

func (o *takeover) startAgent() {
	o.T.Helper()
	// The agent ends with its standard input, as docker passes no signals on.
	o.agent = o.node.command(context.Background(), "sh", "-c", `"$@" & read -r _; kill -9 $!; wait $!`, "sh",
		o.program, "--kubeconfig=/etc/kubernetes/kubelet.conf", "--node-name="+o.node.name, "--root-dir="+o.node.root, "--sync-frequency=5s", "--v=4")
	o.agent.Stdout, o.agent.Stderr = &o.log, &o.log
	stdin, err := o.agent.StdinPipe()
	if err == nil {
		o.stdin, err = stdin, o.agent.Start()
	}
	if err != nil {
		o.T.Fatal(err)
	}
	o.await(1, registered, codes.OK)
}

func (o *takeover) stopAgent() error {
	if o.agent == nil {
		return nil
	}
	_ = o.stdin.Close()
	_ = o.agent.Wait() // it was killed
	o.agent = nil
	_, err := o.node.run(context.Background(), "sh", "-c", "! pgrep -x csi-node-agent")
	return err
}

// toKubelet stops the agent and starts the kubelet.
func (o *takeover) toKubelet() {
	o.T.Helper()
	o.step("the kubelet takes over")
	if err := o.stopAgent(); err != nil {
		o.T.Fatal(err)
	}
	o.Retry("start the kubelet", o.node.startKubelet)
	o.await(1, registered, codes.OK)
}

// forms are the forms of the volumes: pods have the name of a form and a suffix.
var forms = []string{"fs", "block", "inline"}

// startForms starts a pod for each form of volume.
func (o *takeover) startForms(suffix string) {
	o.T.Helper()
	for _, form := range forms {
		name := form + suffix
		switch form {
		case "fs":
			o.volume(name)
			o.start(o.pod(name, name))
		case "block":
			o.volume(name, asBlock)
			o.start(asDevices(o.pod(name, name)))
		case "inline":
			o.start(o.inline(name))
		}
	}
}

// stopForms deletes these pods, whose volumes go.
func (o *takeover) stopForms(suffix string) {
	o.T.Helper()
	o.stop("fs"+suffix, unstage)
	o.stop("block"+suffix, unstage)
	o.stop("inline"+suffix, unpublish)
}

// checkMounted wants the volumes of pods to be mounted where the pods have them, and never to have been unpublished.
func (o *takeover) checkMounted(suffixes ...string) {
	o.T.Helper()
	for _, suffix := range suffixes {
		for _, form := range forms {
			name := form + suffix
			o.Wait("the volume of "+name+" to be mounted", func(ctx context.Context) (bool, error) {
				mounts, err := o.node.run(ctx, "cat", "/proc/self/mountinfo")
				return err == nil && strings.Contains(mounts, string(o.uids[name])+"/volumes/kubernetes.io~csi/") ||
					strings.Contains(mounts, "/volumeDevices/publish/"+o.Namespace+"-"+name+"/"+string(o.uids[name])), err
			})
			for _, call := range o.calls.since(0) {
				if call.Method == unpublish && strings.Contains(string(call.Request), string(o.uids[name])) {
					o.T.Errorf("the volume of %s, which uses it, was unpublished: %s", name, call)
				}
			}
		}
	}
}

// TestTakeover has csi-node-agent take over from a kubelet, and the kubelet from the agent: what pods use stays mounted, and what they
// no longer use goes, whether the kubelet or the agent has mounted it.
func TestTakeover(t *testing.T) {
	o := newTakeover(t, storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral)
	o.startForms("-1")
	o.startForms("-2")

	o.toAgent()
	o.checkMounted("-1", "-2")
	o.stopForms("-1")
	o.startForms("-3")
	o.checkMounted("-2", "-3")

	o.toKubelet()
	for _, suffix := range []string{"-2", "-3"} {
		o.waitContainers(suffix)
		o.checkMounted(suffix)
	}
	o.stopForms("-2")
	o.stopForms("-3")
	o.Wait("nothing to be left on the node", o.nothingLeft)
	rebooted, err := o.Client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Rebooted"})
	if err != nil || len(rebooted.Items) > 0 {
		t.Errorf("the kubelet reported a reboot of the node: %+v, %v", rebooted.Items, err)
	}
}

// waitContainers waits until the kubelet runs the containers of pods: with an agent, pods have none.
func (o *takeover) waitContainers(suffix string) {
	o.T.Helper()
	for _, form := range forms {
		o.Wait("the container of "+form+suffix+" to run", func(ctx context.Context) (bool, error) {
			pod, err := o.Client.CoreV1().Pods(o.Namespace).Get(ctx, form+suffix, metav1.GetOptions{})
			if err != nil || len(pod.Status.ContainerStatuses) == 0 {
				return false, err
			}
			c := pod.Status.ContainerStatuses[0]
			if c.State.Running == nil || !strings.HasPrefix(c.ContainerID, "containerd://") {
				return false, fmt.Errorf("the container is %+v", c)
			}
			return true, nil
		})
	}
}

// TestTakeoverOfUnknownMounts has the agent take over a directory with mounts that belong to nothing it knows: it reports each of them
// once, and no volume that was in use leaves volumesInUse, until they are gone.
func TestTakeoverOfUnknownMounts(t *testing.T) {
	// With a driver for inline volumes, the mount in the pod would be taken for one of them.
	o := newTakeover(t, storagev1.VolumeLifecyclePersistent)
	o.volume("data")
	o.start(o.pod("a", "data"))
	name := corev1.UniqueVolumeName("kubernetes.io/csi/" + o.driver + "^handle-data")
	o.waitInUse(name, true)
	uid := o.uids["a"] // in no other run on this cluster, whose events may still be there
	pod, pv := o.node.root+"/pods/gone-"+string(uid), o.node.root+"/plugins/kubernetes.io/csi/pv"
	unknown := []string{pod + "/volumes/kubernetes.io~csi/lost", pv + "/old-" + string(uid)}
	remove := fmt.Sprintf("umount %s/mount %s/globalmount; rm -rf --one-file-system %s %s", unknown[0], unknown[1], pod, pv)
	o.Retry("stop the kubelet", o.node.stopKubelet)
	t.Cleanup(func() { _, _ = o.node.run(context.Background(), "sh", "-c", remove) })
	for _, path := range []string{unknown[0] + "/mount", unknown[1] + "/globalmount"} {
		o.Retry("mount "+path, func(ctx context.Context) error {
			_, err := o.node.run(ctx, "sh", "-c", fmt.Sprintf("mkdir -p %[1]s && { mountpoint -q %[1]s || mount -t tmpfs unknown %[1]s; }", path))
			return err
		})
	}
	o.toAgent()
	o.waitReported(unknown)
	o.stop("a", unstage)
	o.waitReported(unknown)
	o.waitInUse(name, true)

	o.step("the mounts are removed, and the agent starts again")
	if err := o.stopAgent(); err != nil {
		t.Fatal(err)
	}
	if _, err := o.node.run(t.Context(), "sh", "-c", remove); err != nil {
		t.Fatal(err)
	}
	o.startAgent()
	o.waitInUse(name, false)
	o.toKubelet()
	o.Wait("nothing to be left on the node", o.nothingLeft)
}

// waitInUse waits until a volume is in volumesInUse of the Node, or not.
func (o *takeover) waitInUse(name corev1.UniqueVolumeName, want bool) {
	o.T.Helper()
	o.Wait(fmt.Sprintf("%s in volumesInUse: %t", name, want), func(ctx context.Context) (bool, error) {
		node, err := o.Client.CoreV1().Nodes().Get(ctx, o.node.name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return slices.Contains(node.Status.VolumesInUse, name) == want, nil
	})
}

// waitReported waits until each path has one event UnknownVolumeMount about the Node, which came once.
func (o *takeover) waitReported(paths []string) {
	o.T.Helper()
	o.Wait("an event for each unknown mount", func(ctx context.Context) (bool, error) {
		list, err := o.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=UnknownVolumeMount,involvedObject.name=" + o.node.name})
		if err != nil {
			return false, err
		}
		for _, path := range paths {
			var events []string
			for _, e := range list.Items {
				if strings.Contains(e.Message, path) {
					events = append(events, fmt.Sprintf("%s (%d times)", e.Message, max(e.Count, 1)))
				}
			}
			if len(events) != 1 || !strings.HasSuffix(events[0], "(1 times)") {
				return false, fmt.Errorf("events about %s: %q", path, events)
			}
		}
		return true, nil
	})
}
